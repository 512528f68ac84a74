"""Who works, as people want to see it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from service.deps import AppState
from service.workers import repository


@dataclass(frozen=True)
class AliveWorker:
    """A worker that was seen within the last minute; ``deaf_since``: from when on no message has reached it."""

    id: str
    queues: tuple[str, ...]
    slots: int
    seen_at: datetime
    deaf_since: datetime | None


def all_alive(app: AppState) -> list[AliveWorker]:
    """Every worker that is alive, with all of its queues."""
    with app.database.read() as session:
        rows = repository.alive(session)
    queues: dict[str, list[str]] = {}
    for row in rows:
        queues.setdefault(row.id, []).append(row.queue)
    newest = {row.id: row for row in sorted(rows, key=lambda row: row.seen_at)}
    return [
        AliveWorker(one, tuple(names), newest[one].slots, newest[one].seen_at, newest[one].deaf_since)
        for one, names in queues.items()
    ]
