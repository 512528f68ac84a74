"""One kind of thing that grows without end, and the rule by which it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from worker.upkeep.folders import size_bytes_of

# Rows or files that one transaction deals with: it must not keep others waiting.
BATCH = 100


@dataclass(frozen=True)
class Tally:
    """How many rows or files, and the bytes of files."""

    items: int = 0
    size_bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.items + other.items, self.size_bytes + other.size_bytes)


@dataclass(frozen=True)
class Collector:
    """One kind of thing, and how it is collected.

    Attributes:
        name: one word or two; also the name of its loop.
        removes: what goes, for people.
        rule: when it goes, for people.
        period_seconds: between two rounds of the reconciler.
        count: how much would go now; changes nothing.
        collect: removes at most so many, in short transactions; None: others see to it, this only tells.
    """

    name: str
    removes: str
    rule: str
    period_seconds: float
    count: Callable[[], Tally]
    collect: Callable[[int], Tally] | None


def tally_of(paths: Iterable[Path]) -> Tally:
    """What files or folders take."""
    return sum((Tally(1, size_bytes_of(path)) for path in paths), Tally())


def in_batches(limit: int, batch: Callable[[int], int]) -> Tally:
    """Let ``batch`` remove rows, some at a time, until ``limit`` or until there are no more.

    Args:
        limit: rows at most.
        batch: removes at most so many in one transaction; returns how many.
    """
    done = 0
    while done < limit:
        wanted = min(BATCH, limit - done)
        removed = batch(wanted)
        done += removed
        if removed < wanted:
            break
    return Tally(done)
