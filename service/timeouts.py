"""Database timeouts of a process."""

from __future__ import annotations

from dataclasses import dataclass

LOCK_SECONDS = 30.0


@dataclass(frozen=True)
class DatabaseTimeouts:
    """Bounds of waiting, in seconds, and of what waits at a time."""

    lock_seconds: float = LOCK_SECONDS  # how long a statement waits for another transaction before it fails
    answer_seconds: float | None = None  # how long PostgreSQL may take for one statement; None: as long as it likes
    connect_seconds: float = 3.0  # how long a new connection may take; libpq makes two of less
    pool_seconds: float = 10.0  # how long a thread waits for a connection while others have them all
    writers: int = 40  # write transactions at a time; the connections beyond are kept for reading
    connections: int = 40  # to the database at a time, kept and beyond
    pause_seconds: float = 0.0  # after a server did not answer at all, further work is refused at once for so long


# Workers and reconcilers have time, and work that must not be given up for a moment's trouble.
LONG = DatabaseTimeouts(answer_seconds=60.0)
