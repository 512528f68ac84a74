"""Lookups: nodes that read rows of a constant table, as embeddings are."""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.values import DEFAULT_DOMAINS, int_attribute, is_constant, is_float32


def is_lookup(node: ir.Node) -> bool:
    """True for a Gather that takes rows of a constant float32 matrix by indices that are no constant."""
    if node.op_type != "Gather" or node.domain not in DEFAULT_DOMAINS or len(node.inputs) < 2:
        return False
    table, indices = node.inputs[0], node.inputs[1]
    if table is None or not is_constant(table) or not is_float32(table) or is_constant(indices):
        return False
    return table.shape is not None and len(table.shape) == 2 and int_attribute(node, "axis", 0) in (0, -2)


def weight_index(node: ir.Node) -> int:
    """Which input of a node is its weight: the table of a lookup is the first, any other weight the second."""
    return 0 if is_lookup(node) else 1


def weight_of(node: ir.Node) -> ir.Value | None:
    """The weight of a node, constant or not; None if it has no such input."""
    index = weight_index(node)
    return node.inputs[index] if len(node.inputs) > index else None
