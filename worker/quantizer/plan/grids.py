"""The grid of a tensor, by its spec and its numbers: activations by ranges, weights by values, biases by both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from service.contracts.errors import EngineError
from service.contracts.specs import ActivationSpec, WeightSpec, is_block, is_float8, needs_calibration
from worker.quantizer.graph.values import node_name
from worker.quantizer.numerics.blocks import FLOATS, BlockGrid, FloatGrid, Grid
from worker.quantizer.numerics.granularity import PER_TENSOR, Granularity, PerAxis, PerBlock
from worker.quantizer.numerics.integer import IntegerGrid, grid_for_range, integer_limits, snap_scale
from worker.quantizer.ops.linear import summed_axis
from worker.quantizer.plan.types import QuantizationPlan, Role, WeightPlan
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.weights import weight_range

# A quarter of the int32 range: the accumulator adds the products of weights and activations on top of the bias.
_BIAS_LIMIT = 2**29


def fill_activations(graph: ir.Graph, plan: QuantizationPlan, ranges: Mapping[str, Range]) -> None:
    """Give every planned activation its grid.

    ``ranges`` are by source tensor, where the type needs one; the plan is changed in place.

    Raises:
        EngineError: a range is missing or not finite; names the tensor.
    """
    values = {value.name: value for value in (*graph.inputs, *(made for node in graph for made in node.outputs))}
    for entry in plan.activations.values():
        if not needs_calibration(entry.spec.dtype):
            entry.quantization = _fixed_grid(entry.spec.dtype, values[entry.tensor], plan)
            continue
        found = ranges.get(entry.source)
        if found is None or not (np.isfinite(found.minimum) and np.isfinite(found.maximum)):
            raise EngineError(
                f"tensor {entry.source!r} has no finite range on the calibration data",
                hint="The float model computes NaN or Inf there; check the preprocessing, or exclude the node.",
                tensor=entry.source,
            )
        entry.quantization = activation_grid(entry.spec, found)


def _fixed_grid(dtype: str, value: ir.Value, plan: QuantizationPlan) -> Grid:
    """The grid of an activation of a type that needs no range."""
    return BlockGrid(dtype, _block_axis(value, plan)) if is_block(dtype) else FloatGrid(dtype)


def _block_axis(value: ir.Value, plan: QuantizationPlan) -> int:
    """The axis that blocks run along: the one its first linear reader sums over, else that of the channels."""
    for usage in value.uses():
        planned = plan.nodes.get(node_name(usage.node))
        if planned is not None and planned.role is Role.LINEAR and usage.idx < 2:
            return summed_axis(usage.node, usage.idx)
    return 1 if value.shape is None or len(value.shape) > 2 else -1


def activation_grid(spec: ActivationSpec, found: Range) -> Grid:
    """The grid of an activation of this spec and range; the spec's type is one that needs a range."""
    if is_float8(spec.dtype):
        largest = np.asarray(max(abs(found.minimum), abs(found.maximum)), np.float32)
        return FloatGrid(spec.dtype, FLOATS[spec.dtype].scale_for(largest))
    return integer_grid(spec, found)


def integer_grid(spec: ActivationSpec, found: Range) -> IntegerGrid:
    """The same for a type of integers."""
    scale, zero_point = grid_for_range(
        np.asarray(found.minimum),
        np.asarray(found.maximum),
        spec.dtype,
        symmetric=spec.symmetric,
        scale=spec.scale,
        reduce_range=spec.reduce_range,
    )
    return IntegerGrid(spec.dtype, scale, zero_point, symmetric=spec.symmetric, reduce_range=spec.reduce_range)


def weight_grid(array: np.ndarray, spec: WeightSpec, granularity: Granularity, *, threads: int = 1) -> Grid:
    """The grid of a weight.

    ``array`` is float32; ``granularity`` says which of its elements share a scale; for a block type, the blocks.
    """
    if isinstance(granularity, PerBlock) and is_block(spec.dtype):
        return BlockGrid(spec.dtype, granularity.axis)
    if not needs_calibration(spec.dtype):
        return FloatGrid(spec.dtype)
    groups, shape = granularity.rows(array), granularity.scale_shape(array.shape)
    low, high = weight_range(groups, spec, threads=threads)
    if is_float8(spec.dtype):
        largest = np.maximum(np.abs(low), np.abs(high))
        return FloatGrid(spec.dtype, FLOATS[spec.dtype].scale_for(largest).reshape(shape), granularity)
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
        granularity,
        symmetric=spec.symmetric,
        reduce_range=spec.reduce_range,
    )


def product_grid(node: ir.Node, weight: WeightPlan, source: IntegerGrid, channels: int) -> IntegerGrid:
    """The int32 grid of a bias: input scale times weight scale, one per channel if the weight has one per channel.

    ``channels`` is the number of values of the bias.

    Raises:
        EngineError: the weight has no integer grid.
    """
    scale = (float(source.scale) * _channel_scales(node, weight, channels)).astype(np.float32)
    per_channel = channels > 1 and weight.granularity != PER_TENSOR
    shape = scale if per_channel else scale[0]
    zero = np.zeros_like(shape, dtype=np.int32)
    granularity = PerAxis(0) if per_channel else PER_TENSOR
    return IntegerGrid("int32", np.asarray(shape), np.asarray(zero), granularity)


def own_bias_grid(bias: np.ndarray, dtype: str, kind: str) -> IntegerGrid:
    """A symmetric grid over the whole bias: the finest scale of ``kind`` that lets nothing saturate."""
    largest = np.abs(bias).max()
    scale, zero_point = grid_for_range(-largest, largest, dtype, symmetric=True, scale=kind)
    if float(scale) * integer_limits(dtype, symmetric=True)[1] < float(largest):
        scale, zero_point = grid_for_range(-2 * largest, 2 * largest, dtype, symmetric=True, scale=kind)
    return IntegerGrid(dtype, scale, zero_point, symmetric=True)


def raised_for_bias(
    node: ir.Node, weight: WeightPlan, source: IntegerGrid, bias: np.ndarray
) -> tuple[Grid | None, int]:
    """The weight's grid with scales so large that the int32 bias cannot overflow.

    ``bias`` is float32 of any shape.

    Returns:
        the grid, and the number of output channels concerned.
    """
    grid = weight.quantization
    if not isinstance(grid, IntegerGrid):
        return grid, 0
    flat = np.abs(bias.reshape(-1).astype(np.float64))
    needed = flat / (float(source.scale) * _BIAS_LIMIT)
    low = _channel_scales(node, weight, flat.size) < needed
    if not low.any():
        return grid, 0
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
    return replace(grid, scale=scale.astype(np.float32)), int(low.sum())


def _channel_scales(node: ir.Node, weight: WeightPlan, channels: int) -> np.ndarray:
    """float64 [channels]: the weight scale of every output channel."""
    if not isinstance(weight.quantization, IntegerGrid):
        raise EngineError(f"weight {weight.initializer!r} has no integer grid", tensor=weight.initializer)
    scale = np.atleast_1d(weight.quantization.scale).astype(np.float64)
    chosen: np.ndarray = scale[scale_of_channel(node, weight, channels, scale.size)]
    return chosen


def scale_of_channel(node: ir.Node, weight: WeightPlan, channels: int, scales: int) -> np.ndarray:
    """Int [channels]: which of the weight's scales each output channel has.

    A grouped ConvTranspose has one scale per channel of a group, a depthwise one has one per group.
    """
    numbers = np.arange(scales)
    return np.repeat(numbers, channels // scales) if _by_group(node, weight) else np.resize(numbers, channels)


def _by_group(node: ir.Node, weight: WeightPlan) -> bool:
    return node.op_type == "ConvTranspose" and weight.granularity == PerAxis(0)
