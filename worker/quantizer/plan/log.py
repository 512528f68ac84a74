"""How a plan came about, for the reader of the report: it stands beside the plan, which holds no words of that kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from worker.quantizer.plan.types import Decision

_Told = TypeVar("_Told", str, Decision)


@dataclass
class PlanLog:
    """What planning, filling and algorithms have to tell, in order, each thing once.

    Attributes:
        notes: sentences.
        decisions: what the rules of the target changed.
    """

    notes: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.notes, self.decisions = list(dict.fromkeys(self.notes)), list(dict.fromkeys(self.decisions))
        self._told: set[str | Decision] = {*self.notes, *self.decisions}  # a large network has thousands

    def note(self, *sentences: str) -> None:
        """Write sentences down."""
        self.notes += self._new(sentences)

    def decide(self, decisions: Iterable[Decision]) -> None:
        """Write decisions down."""
        self.decisions += self._new(decisions)

    def _new(self, told: Iterable[_Told]) -> list[_Told]:
        found = [one for one in dict.fromkeys(told) if one not in self._told]
        self._told.update(found)
        return found

    def followed_by(self, *sentences: str, decisions: Iterable[Decision] = ()) -> PlanLog:
        """A plan_log of its own that goes on with these."""
        longer = PlanLog(self.notes, self.decisions)
        longer.note(*sentences)
        longer.decide(decisions)
        return longer
