"""Queues, as a dashboard or an autoscaler wants to know them."""

from __future__ import annotations

from service.deps import AppState
from service.jobs.queues import QUEUES
from service.queues import repository
from service.queues.repository import Crew, Waiting
from service.queues.schemas import QueuedOut, QueueOut, SlotsOut
from service.quotas.service import running_limits


def all_queues(app: AppState) -> list[QueueOut]:
    """Every queue, also one that nothing waits in and nobody serves."""
    with app.database.read() as session:
        full = running_limits(session, app.settings.quota).full()
        waiting, running = repository.waiting(session, full=full), repository.running(session)
        crews = repository.crews(session)
    return [
        _queue(name, waiting.get(name, Waiting()), running.get(name, 0), crews.get(name, Crew())) for name in QUEUES
    ]


def _queue(name: str, waiting: Waiting, running: int, crew: Crew) -> QueueOut:
    return QueueOut(
        name=name,
        queued=QueuedOut(due=waiting.due, delayed=waiting.queued - waiting.due),
        running=running,
        oldest_due_age_seconds=None if waiting.oldest_seconds is None else round(waiting.oldest_seconds, 3),
        workers=crew.workers,
        deaf_workers=crew.deaf,
        slots=SlotsOut(total=crew.slots, busy=crew.busy, free=crew.slots - crew.busy),
        wanted_slots=waiting.startable + running,
        waited_seconds=round(waiting.waited_seconds, 3),
    )
