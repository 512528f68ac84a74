"""The ranges of weights and activations before and after, for the report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from service.contracts.calibration import TensorRange
from service.contracts.report import RangeChange
from worker.quantizer.equalization.cross_layer.dataflow import Flow
from worker.quantizer.equalization.cross_layer.observing import Seen
from worker.quantizer.graph.values import constant, name_of, node_name
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.plan.weights import weight_axis
from worker.quantizer.refine.draft import Draft


def range_changes(
    before: Draft, after: Draft, flow: Flow, seen: Mapping[str, Seen], factors: np.ndarray
) -> tuple[RangeChange, ...]:
    """Weights of the layers in order, then activations.

    Args:
        before: the draft that was equalized.
        after: what it became, calibrated.
        flow: of ``before``.
        seen: of ``before``.
        factors: by group.
    """
    old = {node_name(node): node for node in before.graph}
    new = {node_name(node): node for node in after.graph}
    rows = [
        _weight(old[name], new[name], before.plan)
        for name in (node_name(layer.node) for layer in flow.layers if layer.is_linear)
        if name in old and name in new
    ]
    for tensor in before.plan.sources():
        one, other = before.plan.ranges.get(tensor), after.plan.ranges.get(tensor)
        if one is None or other is None:
            continue
        was = now = None
        if tensor in seen:
            sizes = np.maximum(np.abs(seen[tensor].low), np.abs(seen[tensor].high))
            was, now = _spread(sizes), _spread(sizes * factors[seen[tensor].groups])
        rows.append(
            RangeChange(
                tensor=tensor,
                kind="activation",
                before=TensorRange(minimum=one.minimum, maximum=one.maximum),
                after=TensorRange(minimum=other.minimum, maximum=other.maximum),
                spread_before=was,
                spread_after=now,
            )
        )
    return tuple(row for row in rows if row is not None)


def _weight(old: ir.Node, new: ir.Node, plan: QuantizationPlan) -> RangeChange | None:
    one, other = constant(old.inputs[1]), constant(new.inputs[1])
    if one is None or other is None or old.inputs[1] is None or name_of(old.inputs[1]) not in plan.weights:
        return None
    axis = weight_axis(old) or 0
    was, now = (
        np.abs(np.moveaxis(array, axis, 0)).reshape(array.shape[axis], -1).max(axis=1) for array in (one, other)
    )
    return RangeChange(
        tensor=name_of(old.inputs[1]),
        kind="weight",
        node=node_name(old),
        before=TensorRange(minimum=float(one.min()), maximum=float(one.max())),
        after=TensorRange(minimum=float(other.min()), maximum=float(other.max())),
        spread_before=_spread(was),
        spread_after=_spread(now),
    )


def _spread(sizes: np.ndarray) -> float | None:
    """Largest channel beside the median one that is not 0."""
    alive = sizes[sizes > 0]
    return float(alive.max() / np.median(alive)) if alive.size else None
