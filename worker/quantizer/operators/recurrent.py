"""Recurrent layers: LSTM, GRU and RNN.

Their weights are the inputs W, float32 [directions, gates * hidden, inputs], and R, float32 [directions,
gates * hidden, hidden]: a row belongs to one gate of one hidden unit in one direction; products are summed along it.
"""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.values import DEFAULT_DOMAINS
from worker.quantizer.operators.record import Family
from worker.quantizer.operators.table import named

RECURRENT = named(lambda record: record.family is Family.RECURRENT)
# Which inputs W and R are.
RECURRENT_WEIGHTS = (1, 2)


def is_recurrent(node: ir.Node) -> bool:
    """True for a standard recurrent layer."""
    return node.op_type in RECURRENT and node.domain in DEFAULT_DOMAINS


def recurrent_weights(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """W and R of a recurrent layer, constant or not."""
    return tuple(node.inputs[k] if len(node.inputs) > k else None for k in RECURRENT_WEIGHTS)
