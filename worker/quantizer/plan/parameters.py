"""Fills a plan with numbers: activation grids from calibrated ranges, weight integers, biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from service.contracts.dtypes import is_block, is_float8, needs_calibration
from service.contracts.errors import EngineError
from service.contracts.specs import ActivationSpec
from worker.quantizer.graph.values import constant, name_of, node_name
from worker.quantizer.numerics.emission import float8_scale
from worker.quantizer.numerics.integer import IntegerGrid, grid_for_range, integer_limits, snap_scale
from worker.quantizer.numerics.rounded import RoundedGrid
from worker.quantizer.plan.types import Grid, QuantizationPlan, WeightPlan
from worker.quantizer.plan.weights import counted
from worker.quantizer.statistics.reducers import Range
from worker.quantizer.statistics.weights import weight_range

# A quarter of the int32 range: the accumulator adds the products of weights and activations on top of the bias.
_BIAS_LIMIT = 2**29


def fill_activations(plan: QuantizationPlan, ranges: Mapping[str, Range]) -> None:
    """Give every planned activation its grid.

    Args:
        plan: changed in place.
        ranges: by source tensor, where the type needs one.

    Raises:
        EngineError: a range is missing or not finite; names the tensor.
    """
    for entry in plan.activations.values():
        if not needs_calibration(entry.spec.dtype):
            entry.quantization = RoundedGrid(entry.spec.dtype, entry.axis if is_block(entry.spec.dtype) else None)
            continue
        found = ranges.get(entry.source)
        if found is None or not (np.isfinite(found.minimum) and np.isfinite(found.maximum)):
            raise EngineError(
                f"tensor {entry.source!r} has no finite range on the calibration data",
                hint="The float model computes NaN or Inf there; check the preprocessing, or exclude the node.",
                tensor=entry.source,
            )
        entry.quantization = activation_grid(entry.spec, found)


def activation_grid(spec: ActivationSpec, found: Range) -> Grid:
    """The grid of an activation of this spec and range; the spec's type is one that needs a range."""
    if is_float8(spec.dtype):
        largest = np.asarray(max(abs(found.minimum), abs(found.maximum)), np.float32)
        return RoundedGrid(spec.dtype, scale=float8_scale(largest, spec.dtype))
    scale, zero_point = grid_for_range(
        np.asarray(found.minimum),
        np.asarray(found.maximum),
        spec.dtype,
        symmetric=spec.symmetric,
        scale=spec.scale,
        reduce_range=spec.reduce_range,
    )
    return IntegerGrid(spec.dtype, scale, zero_point, symmetric=spec.symmetric, reduce_range=spec.reduce_range)


def fill_parameters(graph: ir.Graph, plan: QuantizationPlan, *, threads: int = 1) -> None:
    """Quantize weights and biases of a plan whose activations are filled; changed in place."""
    nodes = {node_name(node): node for node in graph}
    for weight in plan.weights.values():
        array = counted(_array(graph, weight.initializer), weight, plan)
        weight.quantization = weight_grid(array, weight, threads=threads)
    planned = {name: bias for name, bias in plan.biases.items() if bias.reason is None}
    for name, bias in planned.items():
        if bias.spec.dtype == "int32" and _input_grid(nodes[name], plan) is None:
            bias.reason = "an int32 bias needs an input on an integer grid"
    raised = {
        name: _guard_bias(graph, nodes[name], plan)
        for name, bias in planned.items()
        if bias.spec.dtype == "int32" and bias.reason is None
    }
    if any(raised.values()):
        where = ", ".join(f"{name} ({count})" for name, count in raised.items() if count)
        plan.notes.append(f"weight scales raised so that the int32 bias fits; node (channels): {where}")
    for weight in plan.weights.values():
        fill_weight_integers(graph, weight)
    for name in planned:
        fill_bias(graph, nodes[name], plan)


def fill_weight_integers(graph: ir.Graph, weight: WeightPlan) -> None:
    """The weight's integers on the grid that it has now."""
    if isinstance(weight.quantization, IntegerGrid):
        weight.integers = weight.quantization.quantize(_array(graph, weight.initializer))


def _array(graph: ir.Graph, initializer: str) -> np.ndarray:
    array = constant(graph.initializers[initializer])
    if array is None:
        raise EngineError(f"weight {initializer!r} is no constant", tensor=initializer)
    return array


def weight_grid(array: np.ndarray, weight: WeightPlan, *, threads: int = 1) -> Grid:
    """The grid of a weight: one, or one per channel or block.

    Args:
        array: float32, the weight.
        weight: its spec, axis and block size.
        threads: for the search of ranges.
    """
    spec = weight.spec
    if not needs_calibration(spec.dtype):
        return RoundedGrid(spec.dtype, weight.axis)
    groups, shape = _groups(array, weight.axis, weight.block_size)
    low, high = weight_range(groups, spec, threads=threads)
    if is_float8(spec.dtype):
        largest = np.maximum(np.abs(low), np.abs(high))
        return RoundedGrid(spec.dtype, weight.axis, float8_scale(largest, spec.dtype).reshape(shape))
    scale, zero_point = grid_for_range(
        low, high, spec.dtype, symmetric=spec.symmetric, scale=spec.scale, reduce_range=spec.reduce_range
    )
    dead = ~groups.any(axis=1)
    if dead.any():
        # Any scale holds zeros; a usual one keeps the bias of the dead channel exact.
        median = np.asarray(2.0**-7 if dead.all() else np.median(scale[~dead].astype(np.float64)))
        usual = snap_scale(median, spec.scale)
        scale = np.where(dead, usual, scale).astype(np.float32)
    return IntegerGrid(
        spec.dtype,
        scale.reshape(shape),
        zero_point.reshape(shape),
        axis=weight.axis,
        symmetric=spec.symmetric,
        reduce_range=spec.reduce_range,
        block_size=weight.block_size,
    )


def _groups(array: np.ndarray, axis: int | None, block_size: int | None) -> tuple[np.ndarray, tuple[int, ...]]:
    """Values that share a scale, as rows, and the shape that the scales have. The last blocks are padded with 0."""
    if axis is None:
        return array.reshape(1, -1), ()
    if block_size is None:
        moved = np.moveaxis(array, axis, 0)
        return moved.reshape(moved.shape[0], -1), (moved.shape[0],)
    blocks = -(-array.shape[axis] // block_size)
    moved = np.moveaxis(array, axis, -1)
    padding = [(0, 0)] * (array.ndim - 1) + [(0, blocks * block_size - array.shape[axis])]
    rows = np.pad(moved, padding).reshape(*moved.shape[:-1], blocks, block_size)
    # Rows in the order of the scales, whose block axis stands where the tensor's axis stood.
    ordered = np.moveaxis(rows, -2, axis)
    return ordered.reshape(-1, block_size), ordered.shape[:-1]


def _input_grid(node: ir.Node, plan: QuantizationPlan) -> IntegerGrid | None:
    value = node.inputs[0]
    entry = plan.activations.get(name_of(value)) if value is not None else None
    return entry.quantization if entry is not None and isinstance(entry.quantization, IntegerGrid) else None


def _input_scale(node: ir.Node, plan: QuantizationPlan) -> float:
    grid = _input_grid(node, plan)
    if grid is None:
        raise EngineError(f"node {node.name!r}: its input has no grid", node=node.name)
    return float(grid.scale)


def _channel_scales(node: ir.Node, weight: WeightPlan, channels: int) -> np.ndarray:
    """float64 [channels]: the weight scale of every output channel.

    A grouped ConvTranspose has one scale per channel of a group, a depthwise one has one per group.
    """
    if not isinstance(weight.quantization, IntegerGrid):
        raise EngineError(f"weight {weight.initializer!r} has no integer grid", tensor=weight.initializer)
    scale = np.atleast_1d(weight.quantization.scale).astype(np.float64)
    if _by_group(node, weight):
        return np.repeat(scale, channels // scale.size)
    return np.resize(scale, channels)


def _by_group(node: ir.Node, weight: WeightPlan) -> bool:
    return node.op_type == "ConvTranspose" and weight.axis == 0


def _guard_bias(graph: ir.Graph, node: ir.Node, plan: QuantizationPlan) -> int:
    """Raise weight scales so far that the int32 bias cannot overflow; returns the number of channels concerned."""
    bias = constant(graph.initializers[plan.biases[node_name(node)].initializer])
    value = node.inputs[1]
    weight = plan.weights.get(name_of(value)) if value is not None else None
    grid = weight.quantization if weight is not None else None
    if bias is None or weight is None or not isinstance(grid, IntegerGrid):
        return 0
    flat = np.abs(bias.reshape(-1).astype(np.float64))
    needed = flat / (_input_scale(node, plan) * _BIAS_LIMIT)
    low = _channel_scales(node, weight, flat.size) < needed
    if not low.any():
        return 0
    if grid.scale.ndim:
        size = grid.scale.size
        per_scale = (
            needed.reshape(size, -1).max(axis=1) if _by_group(node, weight) else needed.reshape(-1, size).max(axis=0)
        )
        scale = np.maximum(grid.scale, per_scale)
    else:
        scale = np.asarray(max(float(grid.scale), float(needed.max())))
    if weight.spec.scale != "float32":  # stay on the scale's own grid, above what is needed
        scale = snap_scale(np.where(scale > grid.scale, 2 * scale.astype(np.float64), grid.scale), weight.spec.scale)
    weight.quantization = replace(grid, scale=scale.astype(np.float32))
    return int(low.sum())


def fill_bias(graph: ir.Graph, node: ir.Node, plan: QuantizationPlan) -> None:
    """Grid and integers of the node's bias, on the grids that its input and weight have now."""
    entry = plan.biases[node_name(node)]
    bias = constant(graph.initializers[entry.initializer])
    if bias is not None:
        quantize_bias(node, plan, bias)


def quantize_bias(node: ir.Node, plan: QuantizationPlan, values: np.ndarray) -> None:
    """The same for a bias of other values, any shape; a bias that is stored as a float is left alone."""
    entry = plan.biases[node_name(node)]
    value = node.inputs[1]
    if entry.reason is not None or entry.is_half or value is None or name_of(value) not in plan.weights:
        return
    flat = values.reshape(-1)
    weight = plan.weights[name_of(value)]
    if entry.spec.dtype != "int32":
        entry.quantization = _own_bias_grid(flat, entry.spec.dtype, weight.spec.scale)
        entry.integers = entry.quantization.quantize(flat)
        return
    scale = (_input_scale(node, plan) * _channel_scales(node, weight, flat.size)).astype(np.float32)
    per_channel = weight.axis is not None and flat.size > 1
    shape = scale if per_channel else scale[0]
    zero = np.zeros_like(shape, dtype=np.int32)
    entry.quantization = IntegerGrid("int32", np.asarray(shape), np.asarray(zero), axis=0 if per_channel else None)
    entry.integers = entry.quantization.quantize(flat)


def _own_bias_grid(bias: np.ndarray, dtype: str, kind: str) -> IntegerGrid:
    """A symmetric grid over the whole bias: the finest scale of ``kind`` that lets nothing saturate."""
    largest = np.abs(bias).max()
    scale, zero_point = grid_for_range(-largest, largest, dtype, symmetric=True, scale=kind)
    if float(scale) * integer_limits(dtype, symmetric=True)[1] < float(largest):
        scale, zero_point = grid_for_range(-2 * largest, 2 * largest, dtype, symmetric=True, scale=kind)
    return IntegerGrid(dtype, scale, zero_point, symmetric=True)
