"""Figures of queues and their workers, for dashboards and autoscalers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from service.deps import AppState
from service.queues import repository as workers
from service.queues.figures import figures, with_own
from service.queues.schemas import QueueOut, SlotsOut


def all_queues(app: AppState) -> list[QueueOut]:
    """Every queue, also one that nothing waits in and nobody serves."""
    with app.database.read() as session:
        return figures(session, app.settings.quota)


def queues_of(app: AppState, tenant_id: str) -> list[QueueOut]:
    """The same, with what the tenant has in each."""
    with app.database.read() as session:
        return with_own(session, figures(session, app.settings.quota), tenant_id)


@dataclass(frozen=True)
class AliveWorker:
    """A worker that was seen within the last minute; ``deaf_since``: from when on no message has reached it."""

    id: str
    queues: tuple[str, ...]
    slots: int
    seen_at: datetime
    deaf_since: datetime | None


def in_all(workers: Sequence[AliveWorker], queues: Sequence[QueueOut]) -> SlotsOut:
    """Slots of all workers that are alive, each counted once however many queues it takes from."""
    total = sum(one.slots for one in workers)
    busy = min(total, sum(one.running for one in queues))
    return SlotsOut(total=total, busy=busy, free=total - busy)


def all_alive(app: AppState) -> list[AliveWorker]:
    """Every worker that is alive, with all of its queues."""
    with app.database.read() as session:
        rows = workers.alive(session)
    queues: dict[str, list[str]] = {}
    for row in rows:
        queues.setdefault(row.id, []).append(row.queue)
    newest = {row.id: row for row in sorted(rows, key=lambda row: row.seen_at)}
    return [
        AliveWorker(one, tuple(names), newest[one].slots, newest[one].seen_at, newest[one].deaf_since)
        for one, names in queues.items()
    ]
