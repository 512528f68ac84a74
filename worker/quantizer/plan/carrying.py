"""Where the Q/DQ pair of a node stands."""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.values import node_name, users
from worker.quantizer.plan.types import QuantizationPlan, Role


def carrier(node: ir.Node, plan: QuantizationPlan) -> ir.Value:
    """The value behind which the node's Q/DQ pair stands: its output, or that of what is fused with it."""
    value = node.outputs[0]
    while (fused := _fused_reader(value, plan)) is not None:
        value = fused.outputs[0]
    return value


def _fused_reader(value: ir.Value, plan: QuantizationPlan) -> ir.Node | None:
    for reader in users(value):
        entry = plan.nodes.get(node_name(reader))
        if entry is not None and entry.role is Role.FUSED:
            return reader
    return None
