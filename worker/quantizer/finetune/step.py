"""Reconstruction as a step: one walk of the network, one layer or residual block after the other, each with what the
network quantized so far gives it.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from service.contracts.costs import MULTIPLICATIONS_PER_SECOND
from service.contracts.errors import InvalidConfigError
from service.contracts.reason import declare
from worker.quantizer.finetune.blocks import Block, BlockResult, residual_blocks, single_layers
from worker.quantizer.finetune.methods import METHODS, Spec
from worker.quantizer.finetune.samples import SampleGatherer
from worker.quantizer.finetune.solvers import GradientSolver, MomentsSolver
from worker.quantizer.graph.values import is_constant, name_of, node_name
from worker.quantizer.layerwise import Feed, Part, StoreLimits, Visit, Walk
from worker.quantizer.layerwise.frontier import real_samples
from worker.quantizer.numerics.blocks import NotFiniteError
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Step, StepResult, Toolkit
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
    unreached: int = 0  # layers that were left as they are, as time was over
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
        total = len(self.errors) + len(self.skipped) + self.unreached
        parts = [f"{len(self.changed)} of {total} {what} changed"]
        gains = [math.log(after / before) for before, after in self.errors.values() if before > 0.0 and after > 0.0]
        if gains:
            parts.append(f"mean reconstruction error times {math.exp(sum(gains) / len(gains)):.3g}")
        if self.refused:
            parts.append(f"{self.refused} taken back, as the error of the whole network rose")
        if self.unreached:
            parts.append(f"{self.unreached} not reached within max_seconds")
        if self.resumed:
            parts.append(f"{self.resumed} reused from an earlier attempt or job")
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


# Whether a layer's new parameters bring the whole network nearer to the float one: only what comes behind is run.

# Samples that the rest of the network is run on for every layer.
_SAMPLES = 16


class EndToEnd:
    """The error of one output of the network, from the walk's frontier on.

    Raises:
        InvalidConfigError: the network has no such output.
    """

    def __init__(self, walk: Walk, output_index: int) -> None:
        outputs = [name_of(value) for value in walk.graph.outputs]
        if output_index >= len(outputs):
            raise InvalidConfigError(
                f"output_index is {output_index}, and the model has {len(outputs)} outputs: {', '.join(outputs)}",
                hint="Outputs are counted from 0.",
            )
        self._walk = walk
        self._output = outputs[output_index]
        self._floats: dict[int, np.ndarray] = {}
        self._error: float | None = None

    def look(self, index: int) -> None:
        """Measure the network as it is, once; ``index`` is that of the visit."""
        if self._error is None:
            self._error = self._measure(index)

    def accepts(self, index: int) -> bool:
        """True if the error is smaller now than when it was last accepted; remembers the smaller one."""
        error = self._measure(index)
        if error is None or (self._error is not None and not error < self._error):
            return False
        self._error = error
        return True

    def _parts(self) -> list[Part]:
        chosen, samples = [], 0
        for part in self._walk.frontier.parts:
            if samples < _SAMPLES:
                chosen.append(part)
                samples += part.valid
        return chosen

    def _measure(self, index: int) -> float | None:
        """Mean squared error of the output; None if nothing from the visit on has a part in it."""
        frontier, nodes = self._walk.frontier, self._walk.rest(index)
        if not any(value.name == self._output for node in nodes for value in node.outputs):
            return None
        if not self._floats:
            piece = frontier.piece(nodes, [self._output], quantized=False, unrounded=False)
            for part in self._parts():
                self._floats[part.number] = frontier.run(piece, part, quantized=False)[self._output]
        piece = frontier.piece(nodes, [self._output], quantized=True, unrounded=True)
        total, elements = 0.0, 0
        for part in self._parts():
            made = frontier.run(piece, part, quantized=True)[self._output]
            wanted = self._floats[part.number]
            difference = real_samples(made, part).astype(np.float64) - real_samples(wanted, part)
            total += float(np.square(difference).sum())
            elements += difference.size
        return total / max(elements, 1)


NO_LAYER = declare("no-layer-of-type", "there is no quantized layer of type {op_types}")
NO_INTEGER_WEIGHT = declare("no-integer-weight", "no layer has a weight that can be chosen as a matrix of integers")
TOO_LONG = declare(
    "solver-too-slow",
    "solving its layers should take {seconds:.0f} s, of {most:g} s that max_solver_seconds allows",
    hint="Raise max_solver_seconds, or set it to null.",
    by_design=True,
)
_MOMENTS_WORDS = "solver moments, in which batch_size, num_iterations and learning_rate play no part"


class FinetuneStep(Step[Spec]):
    """AdaRound and AdaQuant: chooses integers, and what else may move, so that layers make what the float ones do."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """The draft with parameters that reconstruct the float layers better.

        From second moments, layers with so many inputs that gradients come cheaper are left to the gradient solver;
        where samples differ in shape, only those whose moments do not fit into memory.

        Raises:
            EngineError: a device is not available, or the runtime failed on the data.
            CanceledError: the run was canceled.
            ResourceLimitError: the tensors of a layer fit neither into memory nor on disk.
        """
        spec, services, plan, progress = self.spec, toolkit.services, draft.plan.copy(), FinetuneProgress()
        parameters = Parameters(draft.graph, plan)
        method = METHODS[spec.method](spec)
        by_moments = MomentsSolver(parameters, method, services.run) if spec.solver == "moments" else None
        find = residual_blocks if spec.block_wise and by_moments is None else single_layers
        blocks = {block.name: block for block in find(draft.graph, plan, spec.target_op_type)}
        if not blocks:
            return StepResult.nothing(NO_LAYER(op_types=", ".join(spec.target_op_type)))
        if by_moments is not None:
            refusals = {name: by_moments.refusal(block) for name, block in blocks.items()}
            progress.skipped = {name: reason for name, reason in refusals.items() if reason is not None}
        wanted = blocks.keys() - progress.skipped.keys()
        if not wanted:
            return StepResult.nothing(NO_INTEGER_WEIGHT.saying(progress.summary([], "layers")))
        if by_moments is not None and spec.max_solver_seconds is not None:
            seconds = sum(by_moments.effort(blocks[name]) for name in wanted) / MULTIPLICATIONS_PER_SECOND
            if seconds > spec.max_solver_seconds:
                return StepResult.nothing(TOO_LONG(seconds=seconds, most=spec.max_solver_seconds))
        limits = StoreLimits(level=spec.mem_opt_level, disk_bytes=spec.cache_limit_bytes)
        feed = Feed.of(toolkit, samples=spec.data_size, limits=limits, device=spec.infer_device)
        with (
            Walk(draft.prepared, plan, feed, visited=lambda node: node_name(node) in wanted) as walk,
            SampleGatherer(walk.frontier, limits, mixed=spec.drop_ratio < 1.0) as gatherer,
        ):
            judge = EndToEnd(walk, spec.output_index) if spec.selective_update else None
            by_gradients = GradientSolver(parameters, method, services, gatherer)
            varies = bool(feed.data.varying(feed.inputs))
            reconstruction = _Reconstruction(
                parameters, toolkit, spec, by_moments, by_gradients, judge, progress, varies
            )
            effort = efforts([blocks[name] for name in wanted], by_moments)
            behind, whole = 0.0, sum(effort.values())
            for visit in walk.visits():
                if not toolkit.time_limit.allows():
                    progress.unreached = visit.total - visit.index
                    break
                words = progress.words(visit.name, visit.index, visit.total)
                services.run.progress(spec.method, visit.index, visit.total, "layers", words, share=behind / whole)
                behind += effort[visit.name]
                reconstruction.reconstruct(blocks[visit.name], visit)
            services.run.progress(spec.method, walk.total, walk.total, "layers")
        what = "layers and blocks" if any(len(block.tuned) > 1 for block in blocks.values()) else "layers"
        solved = [] if by_moments is None else [_MOMENTS_WORDS]
        summary = progress.summary([*solved, *walk.notes, *gatherer.notes], what)
        if not progress.changed:
            return StepResult.nothing(NOTHING_BETTER.saying(summary), errors=progress.errors)
        return StepResult(replace(draft, plan=plan), tuple(progress.changed), summary, errors=progress.errors)


@dataclass(frozen=True)
class _Reconstruction:
    """Where one block after another is worked on.

    ``parameters`` are those that the walk runs with; ``varies`` if its samples differ in shape.
    """

    parameters: Parameters
    toolkit: Toolkit
    spec: Spec
    by_moments: MomentsSolver | None
    by_gradients: GradientSolver
    judge: EndToEnd | None
    progress: FinetuneProgress
    varies: bool

    def reconstruct(self, block: Block, visit: Visit) -> None:
        """Solve the block, or take what an earlier attempt found; write it into the plan if it is kept; tell of it."""
        services = self.toolkit.services
        store, key = services.checkpoint, f"{self.spec.method} {block.name}"
        stored = store.load_as(key, BlockResult.from_bytes)
        moments = self.by_moments
        # Gradients run samples together, which those of different shapes cannot.
        if moments is not None and not (moments.fits(visit) if self.varies else moments.is_cheaper(visit)):
            self.progress.by_gradients.append(block.name)
            moments = None
        found = self._solve(block, visit, moments) if stored is None else stored
        if isinstance(found, str):
            self.progress.skipped[block.name] = found
            return
        if stored is None:
            found = found if self._keeps(block, found, visit.index) else found.undone()
            if store.is_kept:
                store.save(key, found.to_bytes(), shared=True)
            services.reached("after_layer")
        else:
            self.progress.resumed += 1
            found.write(block.tuned, self.parameters)
        self.progress.errors[block.name] = found.error_before, found.error_after
        if found.changed:
            self.progress.changed += [node_name(node) for node in block.tuned]
        errors = self.progress.errors[block.name]
        tell_layer(services.run, self.spec.method, visit.index + 1, visit.total, block.name, *errors)

    def _solve(self, block: Block, visit: Visit, moments: MomentsSolver | None) -> BlockResult | str:
        seed = block_seed(self.spec, self.toolkit.case.config.seed, block.name)
        try:
            return self.by_gradients.solve(block, seed) if moments is None else moments.solve(visit, seed)
        except NotFiniteError as error:
            return str(error)

    def _keeps(self, block: Block, found: BlockResult, index: int) -> bool:
        """Write what was found into the plan; False if nothing was, or if the whole network got worse."""
        if not found.changed:
            return False
        if self.judge is None:
            found.write(block.tuned, self.parameters)
            return True
        before = self.parameters.plan.copy()
        self.judge.look(index)
        found.write(block.tuned, self.parameters)
        if self.judge.accepts(index):
            return True
        self.parameters.restore(before)
        self.progress.refused += 1
        return False


def block_seed(spec: Spec, seed: int, name: str) -> int:
    """Every block draws from a generator of its own, so that none hangs on others.

    The algorithm's ``fixed_seed`` wins over that of the config.
    """
    chosen = seed if spec.fixed_seed is None else spec.fixed_seed
    return int(np.random.SeedSequence([chosen, zlib.crc32(name.encode())]).generate_state(1)[0])
