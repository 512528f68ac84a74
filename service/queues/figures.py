"""Figures of queues, of all tenants and of one."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.contracts.quota import Quota
from service.jobs.queues import QUEUES
from service.queues import repository
from service.queues.repository import QueuedFigures, WorkerFigures
from service.queues.schemas import OwnJobsOut, QueuedOut, QueueOut, SlotsOut
from service.quotas.service import running_limits


def figures(session: Session, quota: Quota) -> list[QueueOut]:
    """Every queue, also one that nothing waits in and nobody serves.

    Args:
        session: reads.
        quota: of tenants that have no limits of their own.
    """
    full = running_limits(session, quota).full()
    waiting, running = repository.waiting(session, full=full), repository.running(session)
    served = repository.worker_figures(session)
    return [
        _queue(name, waiting.get(name, QueuedFigures()), running.get(name, 0), served.get(name, WorkerFigures()))
        for name in QUEUES
    ]


def with_own(session: Session, queues: Sequence[QueueOut], tenant_id: str) -> list[QueueOut]:
    """The queues, with what the tenant has in each."""
    waiting, running = repository.waiting_of(session, tenant_id), repository.running(session, tenant_id)
    return [
        queue.model_copy(update={"own": _own(waiting.get(queue.name, QueuedFigures()), running.get(queue.name, 0))})
        for queue in queues
    ]


def _queue(name: str, waiting: QueuedFigures, running: int, workers: WorkerFigures) -> QueueOut:
    return QueueOut(
        name=name,
        queued=QueuedOut(due=waiting.due, delayed=waiting.queued - waiting.due),
        running=running,
        oldest_due_age_seconds=_rounded(waiting.oldest_seconds),
        workers=workers.workers,
        deaf_workers=workers.deaf,
        slots=SlotsOut(
            total=workers.slots, busy=workers.busy, free=workers.slots - workers.busy, short=workers.short_slots
        ),
        wanted_slots=waiting.startable + running,
        waited_seconds=round(waiting.waited_seconds, 3),
    )


def _own(waiting: QueuedFigures, running: int) -> OwnJobsOut:
    return OwnJobsOut(
        queued=QueuedOut(due=waiting.due, delayed=waiting.queued - waiting.due),
        running=running,
        oldest_due_age_seconds=_rounded(waiting.oldest_seconds),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
