"""The axis that blocks of an activation run along: the one that the reading node sums over."""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.values import node_name
from worker.quantizer.plan.types import QuantizationPlan, Role


def assign_block_axes(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Set ``axis`` of every planned activation; the first linear reader decides, else the channel axis."""
    values = {value.name: value for value in (*graph.inputs, *(made for node in graph for made in node.outputs))}
    for entry in plan.activations.values():
        value = values.get(entry.tensor)
        if value is None:
            continue
        rank = len(value.shape) if value.shape is not None else None
        entry.axis = 1 if rank is None or rank > 2 else -1
        for usage in value.uses():
            planned = plan.nodes.get(node_name(usage.node))
            if planned is not None and planned.role is Role.LINEAR:
                entry.axis = _summed_axis(usage.node.op_type, usage.idx)
                break


def _summed_axis(op_type: str, position: int) -> int:
    if op_type in ("Conv", "ConvTranspose"):
        return 1
    return -2 if op_type == "MatMul" and position == 1 else -1
