"""Conversion of a whole model to float16: weights, activations and operators."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from service.contracts.config import QuantizationConfig
from service.contracts.reason import declare
from worker.quantizer.emit import PRODUCER, Emitted
from worker.quantizer.graph.facts import NodeFacts
from worker.quantizer.graph.serialized import serialized
from worker.quantizer.graph.values import is_float32, node_name
from worker.quantizer.plan.journal import Journal
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.subgraphs import leave_subgraphs
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role

NO_FLOAT16_KERNEL = declare("no-float16-kernel", "{op_type} has no float16 kernel")
NO_FLOAT32 = declare("computes-no-float32", "it computes no float32")


def plan_float16(graph: ir.Graph, config: QuantizationConfig, facts: NodeFacts, journal: Journal) -> QuantizationPlan:
    """Which nodes compute in float16: all that compute floats, but for excluded ones and operators without a kernel."""
    selection = Selection(config, Matcher(graph, facts.op_types))
    plan = QuantizationPlan()
    for node in graph:
        plan.nodes[node_name(node)] = NodePlan(node_name(node), node.op_type, Role.HALF)
        entry = plan.nodes[node_name(node)]
        if node.op_type in DEFAULT_OP_BLOCK_LIST:
            entry.role, entry.reason = None, NO_FLOAT16_KERNEL(op_type=node.op_type)
        elif not any(is_float32(value) for value in (*node.inputs, *node.outputs)):
            entry.role, entry.reason = None, NO_FLOAT32()
        elif (reason := selection.reason(node)) is not None:
            entry.role, entry.reason = None, reason
    leave_subgraphs(graph, plan)
    return plan


def emit_float16(model: ir.Model, plan: QuantizationPlan) -> Emitted:
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
    return Emitted(result)
