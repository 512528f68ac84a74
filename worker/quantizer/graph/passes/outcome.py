"""What a preparation pass gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from service.contracts.preparation import PreparationSpec

# Reasons named one by one; a report must not grow with the model.
_NAMED_AT_MOST = 50


@dataclass(frozen=True)
class Outcome:
    """The prepared model and what was done.

    Attributes:
        model: the model that was given, or another in its place.
        applied: False if nothing was changed.
        detail: what was done, or why nothing was.
        op_types: operators by the names of new nodes, as users know them.
    """

    model: ir.Model
    applied: bool
    detail: str
    op_types: Mapping[str, str] = field(default_factory=dict)


PreparationPass = Callable[[ir.Model, PreparationSpec], Outcome]


def with_left(detail: str, left: Mapping[str, str]) -> str:
    """``detail``, followed by the nodes that stay as they were, each with the reason."""
    named = sorted(left.items())
    for name, reason in named[:_NAMED_AT_MOST]:
        detail += f"; {name} stays: {reason}"
    if len(named) > _NAMED_AT_MOST:
        detail += f"; {len(named) - _NAMED_AT_MOST} more stay"
    return detail
