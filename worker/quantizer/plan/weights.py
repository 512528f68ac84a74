"""Decides how the weight and the bias of a linear node are represented, before any number is known."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.calibration import MseCalibration
from service.contracts.dtypes import HALF_DTYPES, is_block, is_integer, needs_calibration
from service.contracts.specs import BiasSpec, WeightSpec
from worker.quantizer.graph.affine import output_channels
from worker.quantizer.graph.values import (
    constant,
    float_attribute,
    int_attribute,
    is_constant,
    name_of,
    node_name,
)
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.types import BiasPlan, QuantizationPlan, WeightPlan


def plan_weight(node: ir.Node, plan: QuantizationPlan, selection: Selection) -> None:
    """Enter the constant weight of ``node`` into the plan."""
    if node.inputs[1] is not None:
        _plan_weight(node, node.inputs[1], plan, selection.weight(node))


def plan_parameters(node: ir.Node, plan: QuantizationPlan, selection: Selection) -> None:
    """Enter the weight of ``node``, if it is constant, and its bias into the plan."""
    weight = node.inputs[1]
    if weight is None or not is_constant(weight):
        return
    plan_weight(node, plan, selection)
    if node.op_type != "MatMul" and len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = BiasPlan(node_name(node), name_of(node.inputs[2]), selection.bias(node))
        bias.reason = float_bias_reason(node, bias.spec, plan.weights[name_of(weight)])
        plan.biases[node_name(node)] = bias


def _plan_weight(node: ir.Node, weight: ir.Value, plan: QuantizationPlan, spec: WeightSpec) -> None:
    name = name_of(weight)
    axis, block_size = layout(node, spec, plan)
    known = plan.weights.get(name)
    if known is None:
        plan.weights[name] = WeightPlan(name, node_name(node), spec, axis, block_size)
        return
    if known.spec != spec:
        plan.notes.append(f"weight {name!r} is shared: the spec of node {known.node!r} counts, not {node_name(node)!r}")
    elif known.axis != axis and not is_block(spec.dtype):
        known.axis = known.block_size = None
        plan.notes.append(f"weight {name!r} is read along different axes: one scale for the whole tensor")


def layout(node: ir.Node, spec: WeightSpec, plan: QuantizationPlan) -> tuple[int | None, int | None]:
    """Axis of channels or blocks, and the block size."""
    if is_block(spec.dtype):
        return input_axis(node), None
    if not needs_calibration(spec.dtype) or spec.granularity == "per_tensor":
        return None, None
    if spec.granularity == "per_block":
        if node.op_type in ("MatMul", "Gemm"):
            return input_axis(node), spec.block_size
        plan.notes.append(f"{node_name(node)}: {node.op_type} has no blocks along its inputs; one scale per channel")
    return weight_axis(node), None


def weight_axis(node: ir.Node) -> int | None:
    """Axis of the output channels in the node's weight; None where one scale per channel has no kernel."""
    weight = node.inputs[1]
    shape = tuple(weight.shape) if weight is not None and weight.shape is not None else ()
    rank = len(shape)
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        # Depthwise: axis 1 holds the channels of one group only, axis 0 counts the groups.
        groups = int_attribute(node, "group", 1)
        return 0 if groups > 1 and shape[:1] == (groups,) else 1
    if node.op_type == "Gemm":
        return 0 if int_attribute(node, "transB", 0) else 1
    return 1 if rank == 2 else None


def input_axis(node: ir.Node) -> int:
    """Axis of the node's weight that products are summed over."""
    if node.op_type == "Conv":
        return 1
    if node.op_type == "ConvTranspose":
        return 0
    if node.op_type == "Gemm":
        return 1 if int_attribute(node, "transB", 0) else 0
    weight = node.inputs[1]
    rank = len(weight.shape) if weight is not None and weight.shape is not None else 2
    return max(rank - 2, 0)


def float_bias_reason(node: ir.Node, spec: BiasSpec, weight: WeightPlan) -> str | None:
    """Why the bias stays in float; None if it is quantized."""
    array = constant(node.inputs[2])
    if spec.dtype == "float32":
        return "bias dtype is float32"
    if array is None:
        return "the bias is not constant"
    if array.size == 0 or not np.isfinite(array).all():
        return "the bias is empty or holds NaN or Inf"
    if spec.dtype in HALF_DTYPES:
        return None
    if float_attribute(node, "beta", 1.0) != 1.0 or float_attribute(node, "alpha", 1.0) != 1.0:
        return "alpha or beta differs from 1"
    if array.size != output_channels(node) or (array.ndim != 1 and not (array.ndim == 2 and array.shape[0] == 1)):
        return f"the bias has shape {list(array.shape)}, not one value per channel"
    if spec.dtype == "int32" and (not is_integer(weight.spec.dtype) or weight.block_size is not None):
        return "an int32 bias needs an integer weight with one scale per tensor or per channel"
    return None


def is_searched_whole(weight: WeightPlan) -> bool:
    """True if one scale serves the whole weight and is searched by square error."""
    return weight.axis is None and isinstance(weight.spec.calibration, MseCalibration)


def counted(array: np.ndarray, weight: WeightPlan, plan: QuantizationPlan) -> np.ndarray:
    """The weight as the search for its range sees it: silent output channels are 0, unless all of them are.

    Args:
        array: float32, first axis the output channels.
        weight: its entry.
        plan: with what is known of silent channels.
    """
    silent = plan.silent.get(weight.initializer)
    if silent is None or silent.size != array.shape[0] or not silent.any() or silent.all():
        return array
    if not is_searched_whole(weight):
        return array
    kept: np.ndarray = np.where(silent.reshape(-1, *[1] * (array.ndim - 1)), np.float32(0), array)
    return kept
