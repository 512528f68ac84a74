"""What only feeds powers, roots, logarithms and divisions stays in float.

A normalization written out as Sub, Pow, ReduceMean, Add, Sqrt, Div has terms of very different size: on the grid of the
variance the epsilon that guards the division is 0. Its operators have no integer kernel, and so the nodes between them
would be rounded for nothing.
"""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.graph.values import is_constant, node_name, users
from worker.quantizer.operators.record import Family
from worker.quantizer.operators.table import operator
from worker.quantizer.plan.profile import RuleContext
from worker.quantizer.plan.types import Decision, Role

FEEDS_SENSITIVE = declare(
    "feeds-sensitive-operator",
    "it only feeds {op_type}, which needs more digits than integers have",
    hint="Use BatchNormalization in place of a normalization written out.",
)


def _needs_digits(node: ir.Node) -> bool:
    """A division by a constant is a multiplication."""
    known = operator(node.op_type)
    by_constant = known.family is Family.ARITHMETIC and is_constant(node.inputs[1])
    return known.needs_digits and not by_constant


def float_chains(context: RuleContext) -> list[Decision]:
    """Leave nodes in float all of whose readers are such operators, or are themselves left in float for that."""
    plan, made = context.plan, []
    chained: dict[str, str] = {}
    for node in reversed(list(context.graph)):
        entry = plan.nodes[node_name(node)]
        if _needs_digits(node) and not entry.quantized:
            chained[entry.name] = node.op_type
            continue
        readers = [reader for value in node.outputs for reader in users(value)]
        is_output = any(value.is_graph_output() for value in node.outputs)
        if entry.role in (None, Role.LINEAR) or not readers or is_output:
            continue
        causes = [chained.get(node_name(reader)) for reader in readers]
        if None in causes:
            continue
        chained[entry.name] = causes[0] or ""
        entry.role, entry.reason = None, FEEDS_SENSITIVE(op_type=causes[0])
        why = "terms of a normalization vanish on one grid"
        made.append(Decision("float_chains", entry.name, "left in float", why))
    return made[::-1]
