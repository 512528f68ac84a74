"""Limits per channel: a Min or Max with a constant that has a value of its own for every channel.

Equalization makes them of a Clip whose channels it scales. What they limit is far out of range before them, so that
nothing may be rounded there: the Q/DQ pair stands behind the limit. Where the runtime can, the limit is then kept on
integers: rounding to one grid never changes the order of two values, so q(min(x, h)) = min(q(x), q(h)) for every x.
"""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.values import DEFAULT_DOMAINS, is_constant, is_float32, node_name, users
from worker.quantizer.ops.record import Family
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.types import QuantizationPlan, Role


def limited_operand(node: ir.Node) -> int | None:
    """Index of the operand that ``node`` limits channel by channel; None if it is no such limit."""
    if (
        operator(node.op_type).family is not Family.EXTREMUM
        or node.domain not in DEFAULT_DOMAINS
        or len(node.inputs) != 2
    ):
        return None
    fixed = [k for k, value in enumerate(node.inputs) if is_constant(value)]
    if len(fixed) != 1:
        return None
    limit = node.inputs[fixed[0]]
    shape = limit.shape if limit is not None else None
    if shape is None or sum(dim != 1 for dim in shape) != 1 or not is_float32(limit):
        return None
    return 1 - fixed[0]


def belongs_before(node: ir.Node, plan: QuantizationPlan) -> bool:
    """True if ``node`` is a limit that alone reads its input and goes with the node that makes it.

    That is a fused activation function; or a linear node, where the target has no Min of its own.
    """
    index = limited_operand(node)
    value = node.inputs[index] if index is not None else None
    producer = value.producer() if value is not None else None
    if value is None or producer is None or len(users(value)) > 1 or value.is_graph_output():
        return False
    before = plan.nodes.get(node_name(producer))
    if before is None:
        return False
    alone = plan.nodes[node_name(node)].role is None
    return before.role is Role.FUSED or (alone and before.role is Role.LINEAR)
