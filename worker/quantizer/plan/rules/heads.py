"""Heads that lose their meaning in integers stay in float.

A head is what no MatMul, Gemm or convolution comes after, and what reaches a graph output by being moved, joined, or
combined with constants only. Two forms are told by the graph alone:
- scores: exp(x + step) = exp(x) * exp(step), so behind a Sigmoid, Softmax or Exp one rounding step of its input is a
relative error of the score, the same for scores of 0.001 and of 0.9;
- boxes beside scores: a Concat of results within [0, 1] with others of any size puts both on the grid of the larger.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.graph.values import is_constant, node_name, users
from worker.quantizer.operators.channels import MOVERS
from worker.quantizer.operators.linear import LINEAR
from worker.quantizer.operators.record import Family
from worker.quantizer.operators.table import operator
from worker.quantizer.plan.candidates import may_return_float
from worker.quantizer.plan.profile import RuleContext
from worker.quantizer.plan.types import Decision, Role

_KEEP = "Switch the target option float_heads off to quantize it all the same."
MIXED_HEAD = declare("scores-beside-others", "it puts scores within [0, 1] beside results of any size", hint=_KEEP)
MAKES_SCORES = declare(
    "makes-scores", "it makes scores: {op_type} turns a rounding step into a relative error", hint=_KEEP
)


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
    return operator(node.op_type).family is Family.ARITHMETIC and any(is_constant(value) for value in node.inputs)


def float_heads(context: RuleContext) -> list[Decision]:
    """Leave both forms of heads in float."""
    return [*_float_scores(context), *float_mixed_heads(context)]


def float_mixed_heads(context: RuleContext) -> list[Decision]:
    """Leave a Concat of scores with anything else in float, and what only moves its result."""
    made, heads = [], find_heads(context.graph)
    for node in context.graph:
        entry = context.plan.nodes[node_name(node)]
        if node.op_type == "Concat" and node in heads and entry.quantized:
            bounded = [operator(_origin(value).op_type).within_one for value in _made(node)]
            if any(bounded) and not all(bounded):
                entry.role, entry.reason = None, MIXED_HEAD()
                why = "on one grid the scores would vanish"
                made.append(Decision("float_heads", entry.name, "left in float", why))
    return made


def _float_scores(context: RuleContext) -> Iterator[Decision]:
    """Convolutions have no integer kernel that returns float, so they compute in float; others return it anyway."""
    heads = find_heads(context.graph)
    for node in context.graph:
        if not operator(node.op_type).exponential or node not in heads or node.inputs[0] is None:
            continue
        producer = node.inputs[0].producer()
        origin = _origin(node.inputs[0]) if producer is not None else None
        entry = context.plan.nodes.get(node_name(origin)) if origin is not None else None
        if origin is None or entry is None or entry.role is not Role.LINEAR or may_return_float(origin):
            continue
        entry.role, entry.reason = None, MAKES_SCORES(op_type=node.op_type)
        yield Decision("float_heads", entry.name, "left in float", f"{node.op_type} makes scores of its result")


def _made(node: ir.Node) -> list[ir.Value]:
    """Operands that a node makes."""
    return [value for value in node.inputs if value is not None and value.producer() is not None]


def _origin(value: ir.Value) -> ir.Node:
    """The node that computes ``value``, before it was moved."""
    producer = value.producer()
    if producer is None:
        raise ValueError("a value without a producer has no origin")
    while producer.op_type in MOVERS and producer.inputs[0] is not None:
        before = producer.inputs[0].producer()
        if before is None:
            break
        producer = before
    return producer
