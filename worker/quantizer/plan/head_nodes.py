"""The nodes that end a network."""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.values import is_constant, users
from worker.quantizer.operators.channels import MOVERS
from worker.quantizer.operators.linear import LINEAR

_ELEMENTWISE = ("Add", "Sub", "Mul", "Div")


def find_heads(graph: ir.Graph) -> set[ir.Node]:
    """Nodes that no linear node comes after, and whose result reaches a graph output.

    On its way there it is only moved, joined with others, or combined with constants.
    """
    before_linear: set[ir.Node] = set()
    leading_out: set[ir.Node] = set()
    for node in reversed(list(graph)):
        readers = [reader for value in node.outputs for reader in users(value)]
        if any(reader.op_type in LINEAR or reader in before_linear for reader in readers):
            before_linear.add(node)
        elif any(value.is_graph_output() for value in node.outputs) or any(
            reader in leading_out and _hands_on(reader) for reader in readers
        ):
            leading_out.add(node)
    return leading_out


def _hands_on(node: ir.Node) -> bool:
    """True if the result is the operand, moved, joined with others, or combined with constants."""
    if node.op_type in MOVERS or node.op_type == "Concat":
        return True
    return node.op_type in _ELEMENTWISE and any(is_constant(value) for value in node.inputs)
