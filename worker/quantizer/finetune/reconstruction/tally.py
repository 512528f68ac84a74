"""What has become of the layers of a finetuning, for progress and report."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from service.contracts.reason import declare

NOTHING_BETTER = declare("no-layer-improved", "no layer was changed for the better")


@dataclass
class Tally:
    """Counts as the walk goes on.

    Attributes:
        changed: names of the nodes that were changed.
        errors: mean square error of the outputs before and after, by layer.
        skipped: why a layer was left out.
        refused: layers that were taken back, because the whole network got worse.
        by_gradients: layers that the moments solver has left to the other.
        resumed: layers taken over from an earlier attempt, or job.
    """

    changed: list[str] = field(default_factory=list)
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    by_gradients: list[str] = field(default_factory=list)
    refused: int = 0
    resumed: int = 0
    begin: float = field(default_factory=time.monotonic)

    def words(self, name: str, index: int, total: int) -> str:
        """The layer at work, what the last one came to, and the seconds left as the layers so far let expect."""
        words = name
        if self.errors:
            before, after = list(self.errors.values())[-1]
            words += f", error of the last one {before:.3g} -> {after:.3g}"
        if index:
            left = (time.monotonic() - self.begin) / index * (total - index)
            words += f", about {left:.0f} s left"
        return words

    def summary(self, notes: list[str], what: str) -> str:
        """One sentence for the report; ``what`` is what was counted."""
        total = len(self.errors) + len(self.skipped)
        parts = [f"{len(self.changed)} of {total} {what} changed"]
        gains = [math.log(after / before) for before, after in self.errors.values() if before > 0.0 and after > 0.0]
        if gains:
            parts.append(f"mean reconstruction error times {math.exp(sum(gains) / len(gains)):.3g}")
        if self.refused:
            parts.append(f"{self.refused} taken back, as the error of the whole network rose")
        if self.resumed:
            parts.append(f"{self.resumed} taken over from an earlier attempt or job")
        if self.by_gradients:
            names = ", ".join(self.by_gradients)
            parts.append(f"{names} by gradients, as second moments would take more time than these, or too much memory")
        reasons: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(name)
        parts += [f"{', '.join(names)} left out: {reason}" for reason, names in reasons.items()]
        return "; ".join([*parts, *notes])
