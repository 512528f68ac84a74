"""Heads that lose their meaning in integers stay in float."""

from __future__ import annotations

from worker.quantizer.plan.profile import RuleContext
from worker.quantizer.plan.types import Decision


def float_heads(context: RuleContext) -> list[Decision]:
    """To be decided."""
    return []
