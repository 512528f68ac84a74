"""The axis that blocks of an activation run along: the one that the reading node sums over."""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.values import node_name
from worker.quantizer.operators.linear import summed_axis
from worker.quantizer.plan.types import QuantizationPlan, Role


def block_axis(value: ir.Value, plan: QuantizationPlan) -> int:
    """The axis for the tensor ``value``; its first linear reader decides, else it is that of the channels."""
    for usage in value.uses():
        planned = plan.nodes.get(node_name(usage.node))
        if planned is not None and planned.role is Role.LINEAR and usage.idx < 2:
            return summed_axis(usage.node, usage.idx)
    return 1 if value.shape is None or len(value.shape) > 2 else -1
