"""What is told of a finetuning: how much of it is done, the error of each layer, and a summary for the report."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.finetune.blocks import Block
from worker.quantizer.finetune.solvers import MomentsSolver
from worker.quantizer.graph.values import is_constant
from worker.quantizer.run.interface import Run

NOTHING_BETTER = declare("no-layer-improved", "no layer was changed for the better")
# Of networks with more layers only so many are told of, evenly spread: layers that another attempt has done are gone
# through in no time, and nobody tells more points of a curve apart.
MOST_TOLD = 256
# By gradients, in multiplications of one sample: an element that is read or written, and what a step takes anyhow.
_PER_ELEMENT, _STEP = 75.0, 5e6


@dataclass
class FinetuneProgress:
    """Counts as the walk goes on."""

    changed: list[str] = field(default_factory=list)  # names of the nodes that were changed
    # mean square error of the outputs before and after, by layer
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # why a layer was left out
    by_gradients: list[str] = field(default_factory=list)  # layers that the moments solver has left to the other
    refused: int = 0  # layers that were taken back, because the whole network got worse
    resumed: int = 0  # layers taken over from an earlier attempt, or job
    begin: float = field(default_factory=time.monotonic)

    def words(self, name: str, index: int, total: int) -> str:
        """The layer at work, what the last one came to, and the seconds left as the layers so far let expect."""
        words = name
        if self.errors:
            before, after = list(self.errors.values())[-1]
            words += f", error of the last one {before:.3g} -> {after:.3g}"
        if index:
            left = (time.monotonic() - self.begin) / index * (total - index)
            words += f", about {left:.0f} s left"
        return words

    def summary(self, notes: list[str], what: str) -> str:
        """One sentence for the report; ``what`` is what was counted."""
        total = len(self.errors) + len(self.skipped)
        parts = [f"{len(self.changed)} of {total} {what} changed"]
        gains = [math.log(after / before) for before, after in self.errors.values() if before > 0.0 and after > 0.0]
        if gains:
            parts.append(f"mean reconstruction error times {math.exp(sum(gains) / len(gains)):.3g}")
        if self.refused:
            parts.append(f"{self.refused} taken back, as the error of the whole network rose")
        if self.resumed:
            parts.append(f"{self.resumed} taken over from an earlier attempt or job")
        if self.by_gradients:
            names = ", ".join(self.by_gradients)
            parts.append(f"{names} by gradients, as second moments would take more time than these, or too much memory")
        reasons: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(name)
        parts += [f"{', '.join(names)} left out: {reason}" for reason, names in reasons.items()]
        return "; ".join([*parts, *notes])


def tell_layer(run: Run, stage: str, number: int, total: int, name: str, before: float, after: float) -> None:
    """Tell the figures of a finished layer, and in the log whose they are.

    ``number`` counts from 1, in the order of the network; errors are mean squares of its output.
    """
    if number * MOST_TOLD // total == (number - 1) * MOST_TOLD // total:
        return
    left = 100.0 * after / before if before > 0.0 else None
    run.metric(stage, number, {"error_before": before, "error_after": after, "error_left_percent": left})
    share = "" if left is None else f", {left:.3g} % of it left"
    run.log(f"{stage}, layer {number} of {total}, {name}: error {before:.3g} -> {after:.3g}{share}")


def efforts(blocks: Sequence[Block], by_moments: MomentsSolver | None) -> dict[str, float]:
    """What each block takes of all, by its name, on no scale; never 0.

    From moments, time grows slower than multiplications do, as small matrices are multiplied at less than full speed;
    and running the network up to a block, and gathering what it reads, takes about as long as solving it. The root of
    the multiplications and as much again for the average block come nearest to what was measured. By gradients, the
    activations of a depthwise layer take longer than its multiplications.

    ``by_moments`` solves the blocks; None: gradients do.
    """
    if by_moments is not None:
        roots = {block.name: by_moments.effort(block) ** 0.5 for block in blocks}
        average = max(sum(roots.values()) / max(len(roots), 1), 1.0)
        return {name: root + average for name, root in roots.items()}
    return {block.name: _STEP + sum(_by_gradients(node) for node in block.tuned) for block in blocks}


def _by_gradients(node: ir.Node) -> float:
    """Multiplications of one sample, and what reading and rounding its activations takes beside them."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or not is_constant(weight) or weight.shape is None:
        return 0.0
    dims = weight.shape.numpy()
    outputs = dims[0] if len(dims) > 1 else 1
    made = _positions(node) * outputs
    taken = math.prod(_inner(node.inputs[0])) if node.inputs and node.inputs[0] is not None else made
    return made * math.prod(dims) / max(outputs, 1) + _PER_ELEMENT * (made + taken)


def _positions(node: ir.Node) -> float:
    """Places of the output that the weight is multiplied at, per sample; 1 where the shape does not tell."""
    inner = _inner(node.outputs[0])
    return float(math.prod(inner[1:] if node.op_type.startswith("Conv") else inner[:-1]))


def _inner(value: ir.Value) -> list[int]:
    """All dimensions behind the first that are known."""
    return [dim for dim in value.shape.dims[1:] if isinstance(dim, int)] if value.shape is not None else []
