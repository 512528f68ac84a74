"""Rules that change what nodes do, before any tensor is planned."""

from __future__ import annotations

from collections.abc import Callable

from service.contracts.reason import declare
from worker.quantizer.graph.values import is_constant, node_name
from worker.quantizer.plan.profile import RuleContext
from worker.quantizer.plan.types import Decision, Role

TWO_ACTIVATIONS = declare(
    "two-activations",
    "both operands of this MatMul are activations",
    hint="Switch the target option matmul_constant_b_only off to quantize it.",
)


def share_grid(*op_types: str) -> Callable[[RuleContext], list[Decision]]:
    """A rule by which nodes of these operators keep the grid of their input.

    What they do not have is no change of the plan, so that nothing is reported.
    """

    def apply(context: RuleContext) -> list[Decision]:
        for node in context.graph:
            entry = context.plan.nodes[node_name(node)]
            if node.op_type in op_types and entry.role is Role.UNARY:
                entry.role = Role.TRANSPARENT
        return []

    return apply


def matmul_constant_b_only(context: RuleContext) -> list[Decision]:
    """A MatMul of two activations stays in float."""
    made = []
    for node in context.graph:
        entry = context.plan.nodes[node_name(node)]
        if node.op_type == "MatMul" and entry.quantized and not is_constant(node.inputs[1]):
            entry.role, entry.reason = None, TWO_ACTIVATIONS()
            why = "the NPU's kernel wants a constant B"
            made.append(Decision("matmul_constant_b_only", entry.name, "left in float", why))
    return made
