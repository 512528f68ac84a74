"""Fills a plan with numbers: activation grids from calibrated ranges, weight integers, int32 biases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from service.contracts.errors import EngineError
from worker.quantizer.graph.values import constant, name_of, node_name
from worker.quantizer.numerics.integer import IntegerGrid, grid_for_range
from worker.quantizer.plan.types import QuantizationPlan, WeightPlan
from worker.quantizer.statistics.reducers import Range

# A quarter of the int32 range: the accumulator adds the products of weights and activations on top of the bias.
_BIAS_LIMIT = 2**29


def fill_activations(plan: QuantizationPlan, ranges: Mapping[str, Range]) -> None:
    """Give every planned activation its grid.

    Args:
        plan: changed in place.
        ranges: by source tensor.

    Raises:
        EngineError: a range is missing or not finite; names the tensor.
    """
    for entry in plan.activations.values():
        found = ranges.get(entry.source)
        if found is None or not (np.isfinite(found.minimum) and np.isfinite(found.maximum)):
            raise EngineError(
                f"tensor {entry.source!r} has no finite range on the calibration data",
                hint="The float model computes NaN or Inf there; check the preprocessing, or exclude the node.",
                tensor=entry.source,
            )
        scale, zero_point = grid_for_range(
            np.asarray(found.minimum), np.asarray(found.maximum), entry.dtype, symmetric=entry.symmetric
        )
        entry.quantization = IntegerGrid(entry.dtype, scale, zero_point, symmetric=entry.symmetric)


def fill_parameters(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Quantize weights and biases of a plan whose activations are filled; changed in place."""
    nodes = {node_name(node): node for node in graph}
    for weight in plan.weights.values():
        _fill_scale(graph, weight)
    raised = {name: _guard_bias(graph, nodes[name], plan) for name, bias in plan.biases.items() if bias.reason is None}
    if any(raised.values()):
        where = ", ".join(f"{name} ({count})" for name, count in raised.items() if count)
        plan.notes.append(f"weight scales raised so that the int32 bias fits; node (channels): {where}")
    for weight in plan.weights.values():
        array = constant(graph.initializers[weight.initializer])
        if array is not None and weight.quantization is not None:
            weight.integers = weight.quantization.quantize(array)
    for name in plan.biases:
        _fill_bias(graph, nodes[name], plan)


def _fill_scale(graph: ir.Graph, weight: WeightPlan) -> None:
    array = constant(graph.initializers[weight.initializer])
    if array is None:
        raise EngineError(f"weight {weight.initializer!r} is no constant", tensor=weight.initializer)
    axes = None if weight.axis is None else tuple(k for k in range(array.ndim) if k != weight.axis)
    largest = np.abs(array).max(axis=axes)
    scale, zero_point = grid_for_range(-largest, largest, "int8", symmetric=True)
    dead = largest == 0
    if dead.any():
        # Any scale holds zeros; a usual one keeps the bias of the dead channel exact.
        usual = np.float32(1 / 127) if dead.all() else np.median(scale[~dead])
        scale = np.where(dead, usual, scale).astype(np.float32)
    weight.quantization = IntegerGrid("int8", scale, zero_point, axis=weight.axis, symmetric=True)


def _input_scale(node: ir.Node, plan: QuantizationPlan) -> float:
    value = node.inputs[0]
    entry = plan.activations[name_of(value)] if value is not None else None
    if entry is None or entry.quantization is None:
        raise EngineError(f"node {node.name!r}: its input has no grid", node=node.name)
    return float(entry.quantization.scale)


def _channel_scales(node: ir.Node, weight: WeightPlan, channels: int) -> np.ndarray:
    """float64 [channels]: the weight scale of every output channel (grouped ConvTranspose repeats its own)."""
    if weight.quantization is None:
        raise EngineError(f"weight {weight.initializer!r} has no grid", tensor=weight.initializer)
    scale = np.atleast_1d(weight.quantization.scale).astype(np.float64)
    return np.resize(scale, channels) if scale.size != 1 else np.full(channels, scale[0])


def _guard_bias(graph: ir.Graph, node: ir.Node, plan: QuantizationPlan) -> int:
    """Raise weight scales so far that the int32 bias cannot overflow; returns the number of channels concerned."""
    bias = constant(graph.initializers[plan.biases[node_name(node)].initializer])
    value = node.inputs[1]
    weight = plan.weights.get(name_of(value)) if value is not None else None
    grid = weight.quantization if weight is not None else None
    if bias is None or weight is None or grid is None:
        return 0
    flat = np.abs(bias.reshape(-1).astype(np.float64))
    needed = flat / (_input_scale(node, plan) * _BIAS_LIMIT)
    low = _channel_scales(node, weight, flat.size) < needed
    if not low.any():
        return 0
    if grid.scale.ndim:
        per_scale = needed.reshape(-1, grid.scale.size).max(axis=0)
        scale = np.maximum(grid.scale, per_scale).astype(np.float32)
    else:
        scale = np.float32(max(float(grid.scale), float(needed.max())))
    weight.quantization = IntegerGrid(grid.dtype, np.asarray(scale), grid.zero_point, grid.axis, grid.symmetric)
    return int(low.sum())


def _fill_bias(graph: ir.Graph, node: ir.Node, plan: QuantizationPlan) -> None:
    entry = plan.biases[node_name(node)]
    value = node.inputs[1]
    bias = constant(graph.initializers[entry.initializer])
    if entry.reason is not None or bias is None or value is None or name_of(value) not in plan.weights:
        return
    flat = bias.reshape(-1)
    weight = plan.weights[name_of(value)]
    scale = (_input_scale(node, plan) * _channel_scales(node, weight, flat.size)).astype(np.float32)
    per_channel = weight.axis is not None and flat.size > 1
    shape = scale if per_channel else scale[0]
    zero = np.zeros_like(shape, dtype=np.int32)
    entry.quantization = IntegerGrid("int32", np.asarray(shape), np.asarray(zero), axis=0 if per_channel else None)
    entry.integers = entry.quantization.quantize(flat)
