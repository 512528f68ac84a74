"""What a preparation pass gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from service.contracts.report import PreparationStep

NOTHING_TO_CHANGE = declare("nothing-to-change", "the model holds nothing that the pass is about")
NODES_STAY = declare("nodes-stay", "each node that the pass is about stays as it was, for a reason of its own")

# Reasons named one by one; a report must not grow with the model.
_NAMED_AT_MOST = 50


@dataclass(frozen=True)
class PassOutcome:
    """The prepared model and what was done.

    Attributes:
        model: the model that was given, or another in its place.
        said: what was done, or the reason why nothing was.
        op_types: operators by the names of new nodes, as users know them.
        left: nodes that stay as they were, though the pass is about them.
    """

    model: ir.Model
    said: str | Reason
    op_types: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, Reason] = field(default_factory=dict)

    @classmethod
    def counted(
        cls,
        model: ir.Model,
        count: int,
        what: str,
        *,
        op_types: Mapping[str, str] | None = None,
        left: Mapping[str, Reason] | None = None,
    ) -> PassOutcome:
        """So many changes; ``what`` follows the number: "Split nodes became Slice nodes"."""
        said = f"{count} {what}"
        nothing = NODES_STAY if left else NOTHING_TO_CHANGE
        return cls(model, said if count else nothing.saying(said), op_types or {}, left or {})

    @property
    def applied(self) -> bool:
        """False if nothing was changed."""
        return not isinstance(self.said, Reason)

    def step(self, name: str) -> PreparationStep:
        """What the report says of the pass of this name."""
        named = sorted(self.left.items())[:_NAMED_AT_MOST]
        parts = [str(self.said), *(f"{node} stays: {reason}" for node, reason in named)]
        if len(self.left) > _NAMED_AT_MOST:
            parts.append(f"{len(self.left) - _NAMED_AT_MOST} more stay")
        return PreparationStep(
            name=name,
            applied=self.applied,
            detail="; ".join(parts),
            reason_code=self.said.code if isinstance(self.said, Reason) else None,
            left={node: reason.code for node, reason in named},
        )


PreparationPass = Callable[[ir.Model], PassOutcome]
