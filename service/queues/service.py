"""Queues, as a dashboard or an autoscaler wants to know them."""

from __future__ import annotations

from service.deps import Desk
from service.jobs.queues import QUEUES
from service.queues import repository
from service.queues.repository import Crew, Waiting
from service.queues.schemas import QueuedOut, QueueOut, SlotsOut


def all_queues(desk: Desk) -> list[QueueOut]:
    """Every queue, also one that nothing waits in and nobody serves."""
    with desk.database.read() as session:
        waiting, running, crews = repository.waiting(session), repository.running(session), repository.crews(session)
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
    )
