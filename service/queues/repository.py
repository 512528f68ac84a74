"""Figures of the queues: each by one pass over an index that holds only jobs which have not ended."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Double, and_, case, func, select, text, type_coerce
from sqlalchemy.orm import Session

from service.db import db_now
from service.jobs.queues import QUEUES
from service.tables import Job, Worker
from service.tables.jobs import IS_QUEUED, IS_RUNNING
from service.workers.repository import ALIVE_SECONDS


@dataclass(frozen=True)
class QueuedFigures:
    """Queued jobs of a queue.

    Attributes:
        queued: all.
        due: of these, those that may start now.
        oldest_seconds: for how long the first of them might have started; None: none is due.
        startable: of those that are due, the jobs of tenants that may have more of them run.
        waited_seconds: for how long the first of these might have started; 0 where there is none.
    """

    queued: int = 0
    due: int = 0
    oldest_seconds: float | None = None
    startable: int = 0
    waited_seconds: float = 0.0


@dataclass(frozen=True)
class WorkerFigures:
    """Live workers of a queue, how many of them no message reaches, their slots, and how many of these run a job."""

    workers: int = 0
    deaf: int = 0
    slots: int = 0
    busy: int = 0


def waiting(session: Session, *, full: Collection[str] = ()) -> dict[str, QueuedFigures]:
    """By queue, the jobs that wait in it; ``full``: tenants of whom no more may run."""
    now, moment = db_now(), type_coerce(Job.not_before, Double)
    due, startable = moment <= now, and_(moment <= now, Job.tenant_id.not_in(full)) if full else moment <= now
    statement = (
        select(
            Job.queue,
            func.count(),
            func.sum(case((due, 1), else_=0)),
            now - func.min(moment),
            func.sum(case((startable, 1), else_=0)),
            now - func.min(case((startable, moment))),
        )
        # named one by one, so that SQLite goes by the index that begins with the queue
        .where(text(IS_QUEUED), Job.queue.in_(QUEUES))
        .group_by(Job.queue)
    )
    return {
        queue: QueuedFigures(queued, due, max(0.0, seconds) if due else None, startable, max(0.0, waited or 0.0))
        for queue, queued, due, seconds, startable, waited in session.execute(statement)
    }


def running(session: Session) -> dict[str, int]:
    """By queue, the number of jobs that run."""
    statement = select(Job.queue, func.count().label("jobs")).where(text(IS_RUNNING)).group_by(Job.queue)
    return {row.queue: row.jobs for row in session.execute(statement)}


def worker_figures(session: Session) -> dict[str, WorkerFigures]:
    """By queue, who takes its jobs."""
    load = select(Job.worker_id, func.count().label("jobs")).where(text(IS_RUNNING)).group_by(Job.worker_id).subquery()
    busy = func.coalesce(load.c.jobs, 0)
    statement = (
        select(
            Worker.queue,
            func.count(),
            func.count(Worker.deaf_since),
            func.sum(Worker.slots),
            # a job that was taken away from a worker may still be ending there
            func.sum(case((busy > Worker.slots, Worker.slots), else_=busy)),
        )
        .join(load, load.c.worker_id == Worker.id, isouter=True)
        .where(Worker.seen_at > db_now() - ALIVE_SECONDS)
        .group_by(Worker.queue)
    )
    return {queue: WorkerFigures(*figures) for queue, *figures in session.execute(statement)}
