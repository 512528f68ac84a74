"""Where nodes that are not linear keep their weights: tables of embeddings, and recurrent layers.

A lookup reads rows of a constant table, as embeddings are. A recurrent layer (LSTM, GRU, RNN) has the inputs W, float32
[directions, gates * hidden, inputs], and R, float32 [directions, gates * hidden, hidden]: a row belongs to one gate of
one hidden unit in one direction; products are summed along it.
"""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.values import DEFAULT_DOMAINS, int_attribute, is_constant, is_float32
from worker.quantizer.ops.record import Family
from worker.quantizer.ops.table import named

RECURRENT = named(lambda record: record.family is Family.RECURRENT)
# Which inputs W and R are.
RECURRENT_WEIGHTS = (1, 2)


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


def is_recurrent(node: ir.Node) -> bool:
    """True for a standard recurrent layer."""
    return node.op_type in RECURRENT and node.domain in DEFAULT_DOMAINS


def recurrent_weights(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """W and R of a recurrent layer, constant or not."""
    return tuple(node.inputs[k] if len(node.inputs) > k else None for k in RECURRENT_WEIGHTS)
