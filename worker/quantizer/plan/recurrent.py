"""Weights of recurrent layers: stored quantized on every target that runs the layer, which itself computes in float.

No runtime has a kernel for a recurrence on calibrated integers: what it feeds back would be rounded at every step.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from service.contracts.specs import WeightSpec, is_block, is_float8, needs_calibration
from worker.quantizer.graph.values import constant, is_float32, name_of, node_name
from worker.quantizer.numerics.blocks import BLOCK_FORMATS
from worker.quantizer.numerics.granularity import PER_TENSOR, Granularity, PerAxis, PerBlock
from worker.quantizer.ops.weights import is_recurrent, recurrent_weights
from worker.quantizer.plan.log import PlanLog
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.plan.weights import OPERANDS_NOT_FLOAT32, enter_weight, unusable_weight

RECURRENCE_IN_FLOAT = declare(
    "recurrence-in-float",
    "its weights are stored quantized, its recurrence computes in float: {target} has no static integer kernel for "
    "{op_type}",
    hint="Mode dynamic runs LSTM on integers.",
)
_ROW_AXIS, _INPUT_AXIS = 1, 2


def plan_recurrent(
    graph: ir.Graph,
    plan: QuantizationPlan,
    selection: Selection,
    plan_log: PlanLog,
    *,
    why_float: Callable[[ir.Node], Reason | None] = lambda node: None,
) -> None:
    """Enter W and R of the main graph's recurrent layers, and say why others stay in float.

    Args:
        graph: prepared main graph.
        plan: with an entry for every node; changed in place.
        selection: the user's word.
        plan_log: takes notes.
        why_float: why the recurrence of a node computes in float although its weights are quantized; None: it does
            not, or the mode concerns weights alone.
    """
    for node in graph:
        if not is_recurrent(node):
            continue
        entry = plan.nodes[node_name(node)]
        entry.reason = selection.reason(node) or _reason(node)
        if entry.reason is None:
            entry.role, entry.activation_reason = Role.STORED, why_float(node)
            enter_recurrent(node, plan, selection, plan_log)


def enter_recurrent(node: ir.Node, plan: QuantizationPlan, selection: Selection, plan_log: PlanLog) -> None:
    """Enter the constant W and R of a recurrent layer into the plan."""
    spec = selection.weight(node)
    for value in recurrent_weights(node):
        if value is not None:
            enter_weight(name_of(value), node, spec, recurrent_granularity(value, spec), plan, plan_log)


def recurrence_in_float(target: str) -> Callable[[ir.Node], Reason]:
    """Says of recurrent layers why they compute in float on a target."""
    return lambda node: RECURRENCE_IN_FLOAT(target=target, op_type=node.op_type)


def recurrent_granularity(weight: ir.Value, spec: WeightSpec) -> Granularity:
    """Which elements of W or R share a scale; a row is what a channel is to a layer.

    For two directions a row is written as one block along the last axis, because an axis of DequantizeLinear would
    give both directions the scales of the other. Floats of 8 bits, which carry exponents of their own, do with that.
    """
    if is_block(spec.dtype):
        return BLOCK_FORMATS[spec.dtype].granularity(_INPUT_AXIS)
    if not needs_calibration(spec.dtype) or spec.granularity == "per_tensor":
        return PER_TENSOR
    if spec.granularity == "per_block":
        return PerBlock(_INPUT_AXIS, spec.block_size)
    array = constant(weight)
    if array is None or array.shape[0] == 1 or is_float8(spec.dtype):
        return PerAxis(_ROW_AXIS)
    return PerBlock(_INPUT_AXIS, array.shape[_INPUT_AXIS])


def _reason(node: ir.Node) -> Reason | None:
    if not is_float32(node.inputs[0]):
        return OPERANDS_NOT_FLOAT32()
    return next(filter(None, map(unusable_weight, recurrent_weights(node))), None)
