"""A collector: one kind of data that grows, and the rule for deleting it; files as collectors see them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Rows or files that one transaction deals with: it must not keep others waiting.
BATCH = 100
# Folders of jobs that the database does not know: of another installation on the same disk, for all anybody can tell,
# until nothing was put into them for so long.
STRANGE_SECONDS = 7 * 86_400.0


@dataclass(frozen=True)
class Tally:
    """How many rows or files, and the bytes of files."""

    items: int = 0
    size_bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.items + other.items, self.size_bytes + other.size_bytes)


@dataclass(frozen=True)
class Collector:
    """One kind of thing, and how it is collected."""

    name: str  # one word or two; also the name of its loop
    removes: str  # what goes, for people
    rule: str  # when it goes, for people
    period_seconds: float  # between two rounds of the reconciler
    count: Callable[[], Tally]  # how much would go now; changes nothing
    # removes at most so many, in short transactions; None: others see to it, this only tells
    collect: Callable[[int], Tally] | None


def in_batches(limit: int, size: int, collect: Callable[[int], Tally]) -> Tally:
    """Let ``collect`` remove things, ``size`` at a time, until ``limit`` or until there are no more.

    Args:
        limit: things at most.
        size: of a batch.
        collect: removes at most so many.
    """
    done = Tally()
    while done.items < limit:
        wanted = min(size, limit - done.items)
        removed = collect(wanted)
        done += removed
        if removed.items < wanted:
            break
    return done


def tally_of(paths: Iterable[Path]) -> Tally:
    """What files or folders take."""
    return sum((Tally(1, size_bytes_of(path)) for path in paths), Tally())


def children(folder: Path) -> Iterator[Path]:
    """What lies in a folder; nothing if it is not there."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from (Path(entry.path) for entry in entries)


def age_seconds_of(path: Path) -> float:
    """Seconds since the last change; 0 for what is gone meanwhile."""
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def size_bytes_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links are not followed, what is gone meanwhile has none."""
    if path.is_dir() and not path.is_symlink():
        return sum(size_bytes_of(child) for child in children(path))
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
