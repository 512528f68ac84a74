"""How a plan came about, for the reader of the report: it stands beside the plan, which holds no words of that kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from worker.quantizer.plan.types import Decision


@dataclass
class Journal:
    """What planning, filling and algorithms have to tell, in order, each thing once.

    Attributes:
        notes: sentences.
        decisions: what the rules of the target changed.
    """

    notes: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def note(self, *sentences: str) -> None:
        """Write sentences down."""
        self.notes = list(dict.fromkeys([*self.notes, *sentences]))

    def decide(self, decisions: Iterable[Decision]) -> None:
        """Write decisions down."""
        self.decisions = list(dict.fromkeys([*self.decisions, *decisions]))

    def followed_by(self, *sentences: str, decisions: Iterable[Decision] = ()) -> Journal:
        """A journal of its own that goes on with these."""
        longer = Journal(self.notes, self.decisions)
        longer.note(*sentences)
        longer.decide(decisions)
        return longer
