"""Conversion of a whole model to float16: weights, activations and operators."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from service.contracts.config import QuantizationConfig
from worker.quantizer.emit import PRODUCER
from worker.quantizer.graph.values import is_float32, node_name
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.subgraphs import leave_subgraphs
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role
from worker.quantizer.runtime import serialized


def plan_float16(graph: ir.Graph, config: QuantizationConfig, op_types: Mapping[str, str]) -> QuantizationPlan:
    """Which nodes compute in float16: all that compute floats, but for excluded ones and operators without a kernel."""
    selection = Selection(config, Matcher(graph, op_types))
    plan = QuantizationPlan()
    for node in graph:
        plan.nodes[node_name(node)] = NodePlan(node_name(node), node.op_type, Role.HALF)
        entry = plan.nodes[node_name(node)]
        if node.op_type in DEFAULT_OP_BLOCK_LIST:
            entry.role, entry.reason = None, f"{node.op_type} has no float16 kernel"
        elif not any(is_float32(value) for value in (*node.inputs, *node.outputs)):
            entry.role, entry.reason = None, "it computes no float32"
        elif (reason := selection.reason(node)) is not None:
            entry.role, entry.reason = None, reason
    leave_subgraphs(graph, plan)
    return plan


def emit_float16(model: ir.Model, plan: QuantizationPlan) -> ir.Model:
    """The model in float16; inputs and outputs keep their types. Values beyond float16's range saturate."""
    blocked = [name for name, entry in plan.nodes.items() if not entry.quantized]
    converted = convert_float_to_float16(
        ir.to_proto(model),
        keep_io_types=True,
        disable_shape_infer=True,
        op_block_list=DEFAULT_OP_BLOCK_LIST,
        node_block_list=blocked,
    )
    result: ir.Model = ir.from_proto(onnx.ModelProto.FromString(serialized(converted)))
    result.graph.sort()  # the converter puts its casts at the end
    result.producer_name, result.producer_version = PRODUCER, None
    return result
