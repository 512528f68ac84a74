"""What each site of a reconstruction costs, compared with the others: for telling how much of all is done."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_ir as ir

from worker.quantizer.finetune.moments.solver import MomentsSolver
from worker.quantizer.finetune.reconstruction.layers import Site
from worker.quantizer.graph.values import is_constant

# By gradients, in multiplications of one sample: an element that is read or written, and what a step takes anyhow.
_PER_ELEMENT, _STEP = 75.0, 5e6


def efforts(sites: Sequence[Site], by_moments: MomentsSolver | None) -> dict[str, float]:
    """What each site takes of all, by its name, on no scale; never 0.

    From moments, time grows slower than multiplications do, as small matrices are multiplied at less than full speed;
    and running the network up to a site, and gathering what it reads, takes about as long as solving it. The root of
    the multiplications and as much again for the average site come nearest to what was measured. By gradients, the
    activations of a depthwise layer take longer than its multiplications.

    Args:
        sites: that are visited.
        by_moments: solves them; None: gradients do.
    """
    if by_moments is not None:
        roots = {site.name: by_moments.effort(site) ** 0.5 for site in sites}
        average = max(sum(roots.values()) / max(len(roots), 1), 1.0)
        return {name: root + average for name, root in roots.items()}
    return {site.name: _STEP + sum(_by_gradients(node) for node in site.tuned) for site in sites}


def _by_gradients(node: ir.Node) -> float:
    """Multiplications of one sample, and what reading and rounding its activations takes beside them."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or not is_constant(weight) or weight.shape is None:
        return 0.0
    dims = weight.shape.numpy()
    outputs = dims[0] if len(dims) > 1 else 1
    made = _positions(node) * outputs
    taken = prod(_inner(node.inputs[0])) if node.inputs and node.inputs[0] is not None else made
    return made * prod(dims) / max(outputs, 1) + _PER_ELEMENT * (made + taken)


def _positions(node: ir.Node) -> float:
    """Places of the output that the weight is multiplied at, per sample; 1 where the shape does not tell."""
    inner = _inner(node.outputs[0])
    return float(prod(inner[1:] if node.op_type.startswith("Conv") else inner[:-1]))


def _inner(value: ir.Value) -> list[int]:
    """All dimensions behind the first that are known."""
    return [dim for dim in value.shape.dims[1:] if isinstance(dim, int)] if value.shape is not None else []
