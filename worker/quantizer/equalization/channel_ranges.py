"""Ranges of channels on the calibration data, and those of weights and activations before and after, for the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.report import RangeChange
from service.contracts.specs import TensorRange, needs_calibration
from worker.quantizer.equalization.balance import BalancedTensor
from worker.quantizer.equalization.channel_groups import Flow
from worker.quantizer.graph.values import constant, name_of, node_name
from worker.quantizer.numerics.grids import Grid
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.labels import PINNED
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.plan.weights import weight_axis
from worker.quantizer.refine.draft import Draft
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.rows import ChannelExtremes


@dataclass(frozen=True)
class ObservedChannels:
    """Extremes of a tensor's channels on the calibration data, float64 [channels] each, and the channels' groups."""

    groups: np.ndarray
    low: np.ndarray
    high: np.ndarray


def watched(flow: Flow, plan: QuantizationPlan, *, before_limits: bool) -> dict[str, int]:
    """Tensors to observe, and the axis of their channels.

    Those that are quantized, those that layers read, and the results of limits; with ``before_limits`` their inputs.
    """
    names = [entry.source for entry in plan.activations.values()]
    names += [name_of(layer.node.inputs[0]) for layer in flow.layers if layer.node.inputs[0] is not None]
    names += [name_of(limit.node.outputs[0]) for limit in flow.limits]
    if before_limits:
        names += [name_of(limit.value) for limit in flow.limits]
    found = {}
    for name in dict.fromkeys(names):
        channels = flow.channels.get(name)
        axes = [] if channels is None else [k for k, size in enumerate(channels.shape) if size > 1]
        if channels is not None and len(axes) == 1 and channels.any():
            found[name] = axes[0]
    return found


def observed(flow: Flow, requests: list[Request]) -> dict[str, ObservedChannels]:
    """By tensor name; tensors with NaN or Inf, or of which nothing was seen, are left out."""
    found = {}
    for request in requests:
        channels = flow.channels.get(request.tensor)
        result = request.observer.result() if isinstance(request.observer, ChannelExtremes) else None
        if channels is None or result is None or not all(np.isfinite(part).all() for part in result):
            continue
        low, high = (part.astype(np.float64) for part in result)
        if low.size == channels.size:
            found[request.tensor] = ObservedChannels(channels.reshape(-1), low, high)
    return found


def find_silent(flow: Flow, plan: QuantizationPlan, seen: Mapping[str, ObservedChannels]) -> np.ndarray:
    """Groups whose channels are 0 in every tensor that was observed, bool [groups].

    A group that a layer reads from a tensor which was not observed is none of them.
    """
    touched, alive = np.zeros(flow.groups, bool), np.zeros(flow.groups, bool)
    before = {name_of(limit.value) for limit in flow.limits}
    for name, tensor in seen.items():
        if name in before and name not in plan.activations:
            continue  # what a limit cuts off counts behind it
        touched[tensor.groups] = True
        alive[tensor.groups[(tensor.low != 0) | (tensor.high != 0)]] = True
    for layer in flow.layers:
        name = name_of(layer.node.inputs[0]) if layer.node.inputs[0] is not None else ""
        entry = plan.activations.get(name)
        if name not in seen and (entry is None or entry.source not in seen):
            alive[layer.inputs] = True
    silent = touched & ~alive
    silent[PINNED] = False
    return silent


def quantized_values(
    flow: Flow, plan: QuantizationPlan, seen: Mapping[str, ObservedChannels], *, unlimited: frozenset[str] = frozenset()
) -> list[BalancedTensor]:
    """What was seen of every tensor that shares one scale among its channels.

    Args:
        flow: see there.
        plan: says which tensors those are.
        seen: by tensor.
        unlimited: limits, by node name, that are to be dropped: what they let through is as large as what they get.
    """
    dropped = {name_of(limit.node.outputs[0]): limit.value for limit in flow.limits if limit.node.name in unlimited}
    grids = {entry.source: entry.quantization for entry in plan.activations.values()}
    found = []
    for name, spec in plan.sources().items():
        tensor = seen.get(name)
        if tensor is None or not needs_calibration(spec.dtype):
            continue
        high = tensor.high
        if name in dropped and name_of(dropped[name]) in seen:
            high = np.maximum(high, seen[name_of(dropped[name])].high)
        below, above = np.maximum(-tensor.low, 0.0), np.maximum(high, 0.0)
        found.append(BalancedTensor(tensor.groups, below, above, _step(grids.get(name), max(below.max(), above.max()))))
    return found


def _step(grid: Grid | None, largest: float) -> float:
    """The step of a grid as a part of the largest value; 0 if it has no one step."""
    if not isinstance(grid, IntegerGrid) or grid.scale.size != 1 or largest == 0.0:
        return 0.0
    return float(grid.scale.reshape(-1)[0]) / largest


def range_changes(
    before: Draft, after: Draft, flow: Flow, seen: Mapping[str, ObservedChannels], factors: np.ndarray
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
