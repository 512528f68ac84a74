"""Figures of queues and their workers, for dashboards and autoscalers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from service.deps import AppState
from service.jobs.queues import QUEUES
from service.queues import repository
from service.queues import repository as workers
from service.queues.repository import QueuedFigures, WorkerFigures
from service.queues.schemas import QueuedOut, QueueOut, SlotsOut
from service.quotas.service import running_limits


def all_queues(app: AppState) -> list[QueueOut]:
    """Every queue, also one that nothing waits in and nobody serves."""
    with app.database.read() as session:
        full = running_limits(session, app.settings.quota).full()
        waiting, running = repository.waiting(session, full=full), repository.running(session)
        served = repository.worker_figures(session)
    return [
        _queue(name, waiting.get(name, QueuedFigures()), running.get(name, 0), served.get(name, WorkerFigures()))
        for name in QUEUES
    ]


def _queue(name: str, waiting: QueuedFigures, running: int, workers: WorkerFigures) -> QueueOut:
    return QueueOut(
        name=name,
        queued=QueuedOut(due=waiting.due, delayed=waiting.queued - waiting.due),
        running=running,
        oldest_due_age_seconds=None if waiting.oldest_seconds is None else round(waiting.oldest_seconds, 3),
        workers=workers.workers,
        deaf_workers=workers.deaf,
        slots=SlotsOut(total=workers.slots, busy=workers.busy, free=workers.slots - workers.busy),
        wanted_slots=waiting.startable + running,
        waited_seconds=round(waiting.waited_seconds, 3),
    )


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
