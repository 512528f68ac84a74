"""Writes factors, zeros and biases into the constants of layers; ranges of channels before and after.

A limit h (of a ReLU6 and the like) of a channel that is scaled by t is t h. Kept exactly, it is a Min with a value per
channel. Kept as one number for all channels, it holds for channels that never reach it on the calibration data as long
as they do not reach it when they are scaled; the others keep the factor 1. Or it is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import CrossLayerEqualization
from service.contracts.config import QuantizationConfig
from service.contracts.report import RangeChange
from service.contracts.specs import TensorRange, needs_calibration
from worker.quantizer.equalization.balance import BalancedTensor
from worker.quantizer.equalization.channel_graph import Fold
from worker.quantizer.equalization.channel_groups import ChannelLimit, Flow, ScalableLayer
from worker.quantizer.graph.metadata import hand_on
from worker.quantizer.graph.values import Names, add_initializer, constant, name_of, node_name
from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.numerics.integer import IntegerGrid, PerAxis
from worker.quantizer.ops.labels import PINNED
from worker.quantizer.plan.grids import weight_axis
from worker.quantizer.plan.targets import TARGETS
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.affine import replace_constant
from worker.quantizer.refine.draft import Draft
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.observers import ChannelExtremes

# Ranges of channels on the calibration data, and those of weights and activations before and after, for the report.


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

    ``unlimited`` are limits, by node name, that are to be dropped: what they let through is as large as what they get.
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

    ``flow``, ``seen`` and ``factors``, by group, are of ``before``; ``after`` is calibrated.
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
    was, now = (np.abs(PerAxis(axis).rows(array)).max(axis=1) for array in (one, other))
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


# A value that is this near to its limit has reached it.
_REACHED = 1.0 - 1e-6


def scale_layers(graph: ir.Graph, flow: Flow, factors: np.ndarray) -> list[str]:
    """Multiply every channel by its group's factor; the graph is changed in place.

    ``factors`` are float64 [groups], positive. Returns names of the nodes whose constants have changed.
    """

    def of(layer: ScalableLayer) -> dict[int, np.ndarray]:
        ratio, out = factors[layer.rows] / factors[layer.columns], factors[layer.outputs]
        return {1: ratio, 2: out} if layer.is_linear else {1: ratio, 2: out, 3: factors[layer.inputs]}

    return _multiply(graph, flow, factors, of)


def cut_off(graph: ir.Graph, flow: Flow, silent: np.ndarray) -> list[str]:
    """Zero all weights and biases of silent groups, bool [groups]; otherwise as ``scale_layers``."""
    kept = ~silent
    return _multiply(
        graph, flow, kept, lambda layer: {1: kept[layer.rows] & kept[layer.columns], 2: kept[layer.outputs]}
    )


def _multiply(
    graph: ir.Graph, flow: Flow, factors: np.ndarray, of: Callable[[ScalableLayer], dict[int, np.ndarray]]
) -> list[str]:
    """Multiply the constants of the layers by what ``of`` gives by input, and terms by the factors of their groups."""
    names, changed = Names(graph), []
    for layer in flow.layers:
        if (factors[layer.outputs] == 1.0).all() and (factors[layer.inputs] == 1.0).all():
            continue
        for index, factor in of(layer).items():
            array = constant(layer.node.inputs[index]) if len(layer.node.inputs) > index else None
            if array is not None:
                own = _kernels(factor, array) if index == 1 else factor.reshape(array.shape)
                _put(graph, layer.node, index, array * own, names)
        changed.append(node_name(layer.node))
    terms = [term for term in flow.terms if not (factors[term.channels] == 1.0).all()]
    apply_folds(graph, terms, factors, names)
    return changed + [node_name(term.node) for term in terms]


def apply_folds(graph: ir.Graph, folds: Sequence[Fold], factors: np.ndarray, names: Names) -> None:
    """Multiply constants by ``factors``, float64 by channel number; what others read too is copied first."""
    for fold in folds:
        array = constant(fold.node.inputs[fold.index])
        if array is None:
            raise ValueError(f"input {fold.index} of {fold.node!r} is not constant")
        _put(graph, fold.node, fold.index, fold.scaled(array, factors), names)


def put_bias(graph: ir.Graph, layer: ScalableLayer, bias: np.ndarray, names: Names) -> None:
    """Give the layer this bias, [out]; it need not have had one."""
    value = layer.node.inputs[2] if len(layer.node.inputs) > 2 else None
    shape = bias.shape if value is None or value.shape is None else tuple(int(dim) for dim in value.shape.numpy())
    weight = layer.node.inputs[1]
    stem = f"{name_of(weight)}_bias" if value is None and weight is not None else ""
    _put(graph, layer.node, 2, bias.reshape(shape), names, stem=stem)


def _kernels(factors: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """With an axis for each of the weight's; a vector of weights is one of columns."""
    if weight.ndim == 1:
        return factors.reshape(-1)
    return factors.reshape(*factors.shape, *[1] * (weight.ndim - 2))


def _put(graph: ir.Graph, node: ir.Node, index: int, array: np.ndarray, names: Names, *, stem: str = "") -> None:
    value = node.inputs[index] if index < len(node.inputs) else None
    name = name_of(value) if value is not None else stem
    replace_constant(graph, node, index, name, np.asarray(array, np.float32), names)


@dataclass(frozen=True)
class LimitPolicy:
    """What to do with limits ("per_channel", "never", "relu"), and why it was chosen."""

    mode: str
    reason: str


def choose_policy(spec: CrossLayerEqualization, config: QuantizationConfig) -> LimitPolicy:
    """The policy that ``replace_relu6`` asks for; what suits the target if it leaves that open."""
    if spec.replace_relu6 != "auto":
        return LimitPolicy(spec.replace_relu6, "as asked")
    target = TARGETS[config.target]
    if not target.integer_limits:
        return LimitPolicy("never", f"{target.name} has no limit per channel that it computes with the layer before it")
    if config.activation.dtype not in ("int8", "uint8"):
        return LimitPolicy("never", f"the runtime has no limit per channel for {config.activation.dtype}")
    return LimitPolicy("per_channel", f"{target.name} keeps limits on integers, for a few percent of the run time")


@dataclass(frozen=True)
class HeldFactors:
    """What limits that stay as they are ask of factors: which groups keep 1, and how large the others may become."""

    fixed: np.ndarray
    largest: np.ndarray


def held_by_limits(flow: Flow, seen: Mapping[str, ObservedChannels], policy: LimitPolicy) -> HeldFactors:
    """Find it; without any such limit nothing is asked.

    Limits of which nothing was seen fix all their channels.
    """
    fixed, largest = np.zeros(flow.groups, bool), np.full(flow.groups, np.inf)
    fixed[PINNED] = True
    for limit in flow.limits:
        if policy.mode == "per_channel" or is_dropped(limit, policy):
            continue
        tensor = seen.get(name_of(limit.node.outputs[0]))
        if tensor is None:
            fixed[limit.channels] = True
            continue
        for bound, extreme in ((-limit.low, -tensor.low), (limit.high, tensor.high)):
            if not math.isfinite(bound) or bound == 0.0:
                continue  # no limit; or 0, which no factor moves
            reached = extreme >= bound * _REACHED
            fixed[tensor.groups[reached]] = True
            free = (extreme > 0) & ~reached
            np.minimum.at(largest, tensor.groups[free], bound / extreme[free])
    return HeldFactors(fixed, largest)


def is_dropped(limit: ChannelLimit, policy: LimitPolicy) -> bool:
    """True for what ``relu`` turns into a Relu: Clip(0, h) with channels that can be scaled."""
    is_clip = limit.node.op_type == "Clip" and limit.low == 0.0 and math.isfinite(limit.high)
    return policy.mode == "relu" and is_clip and bool(limit.channels.any())


def rewrite_limits(
    graph: ir.Graph, flow: Flow, factors: np.ndarray, shift: np.ndarray, policy: LimitPolicy
) -> tuple[dict[str, str], list[str]]:
    """Scale the limits of scaled channels, or drop them; the graph is changed in place.

    ``factors`` and ``shift`` are by group; the latter was taken from the values before they were scaled. Returns
    operators of new nodes as users know them, by name; and the names of the limits concerned.
    """
    names, op_types, changed = Names(graph), dict[str, str](), []
    for limit in flow.limits:
        scale, taken = factors[limit.channels], shift[limit.channels]
        name = node_name(limit.node)
        if is_dropped(limit, policy):
            op_types |= _replace(graph, limit, [("Relu", None)], names)
        elif policy.mode == "per_channel" and _moves(limit, scale, taken):
            low, high = ((bound - taken) * scale for bound in (limit.low, limit.high))
            if np.ptp(scale) == 0.0 and np.ptp(taken) == 0.0:
                _set(graph, limit, float(low.flat[0]), float(high.flat[0]), names)
            else:
                op_types |= _replace(graph, limit, _steps(limit, low, high), names)
        else:
            continue
        changed.append(name)
    return op_types, changed


def _moves(limit: ChannelLimit, scale: np.ndarray, taken: np.ndarray) -> bool:
    """True if the limit has to follow its channels; one at 0 has not."""
    finite = [bound for bound in (limit.low, limit.high) if math.isfinite(bound)]
    return any(finite) and bool((scale != 1.0).any() or taken.any())


def _steps(limit: ChannelLimit, low: np.ndarray, high: np.ndarray) -> list[tuple[str, np.ndarray | None]]:
    """Operators with their bounds that limit channel by channel.

    A lower limit of 0 stays one: nothing is taken from values that may be below it.
    """
    steps: list[tuple[str, np.ndarray | None]] = []
    if limit.low == 0.0:
        steps.append(("Relu", None))
    elif math.isfinite(limit.low):
        steps.append(("Max", low))
    if math.isfinite(limit.high):
        steps.append(("Min", high))
    return steps


def _set(graph: ir.Graph, limit: ChannelLimit, low: float, high: float, names: Names) -> None:
    """One number for all channels, as before."""
    node = limit.node
    places = {1: low, 2: high} if node.op_type == "Clip" else {1 - limit.index: low if node.op_type == "Max" else high}
    for index, bound in places.items():
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and value.shape is not None and bound != 0.0:
            array = np.full(tuple(value.shape.numpy()), bound, np.float32)
            node.replace_input_with(index, add_initializer(graph, names.free(f"{node_name(node)}_bound"), array))


def _replace(
    graph: ir.Graph, limit: ChannelLimit, steps: list[tuple[str, np.ndarray | None]], names: Names
) -> dict[str, str]:
    """Put nodes in the place of a limit. The first bears its name; the last makes its result."""
    node, value, read = limit.node, limit.node.outputs[0], limit.value
    name, made = node_name(node), []
    for k, (op_type, bound) in enumerate(steps):
        own = name if k == 0 else names.free(f"{name}_limit")
        inputs = [read]
        if bound is not None:
            array = np.asarray(bound, np.float32)
            inputs.append(add_initializer(graph, names.free(f"{own}_bounds"), array))
        step = ir.node(op_type, inputs, name=own)
        read = step.outputs[0]
        read.name = names.free(f"{name_of(value)}_{op_type}")
        read.type, read.shape = value.type, value.shape
        hand_on([node], [step])
        made.append(step)
    graph.insert_after(node, made)
    ir.convenience.replace_all_uses_with(value, read)
    graph.remove(node, safe=True)
    read.name, value.name = name_of(value), None
    return {node_name(step): node.op_type for step in made if step.op_type != node.op_type}
