"""SQL statements for queues and workers, each a single pass over an index of jobs that have not ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Double, and_, case, delete, func, select, text, type_coerce, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.jobs.queues import QUEUES
from service.repository import owned, upsert
from service.tables import Job, Worker
from service.tables.jobs import IS_QUEUED, IS_RUNNING

# Statements about workers.

ANNOUNCE_SECONDS = 10.0
# A worker that was not seen for so long is taken for gone.
ALIVE_SECONDS = 60.0
_FORGOTTEN_SECONDS = 24 * 3600.0


def announce(session: Session, worker_id: str, offers: Mapping[str, int], *, short_slots: int = 0) -> None:
    """Note that a worker is alive and what it takes.

    Only the worker itself writes its rows.

    Args:
        session: of a transaction.
        worker_id: which worker.
        offers: jobs that it runs at a time, by queue; none: it is gone.
        short_slots: of these, those that are kept for short jobs.
    """
    now = db_now()
    for queue, slots in sorted(offers.items()):
        row = {"id": worker_id, "queue": queue, "seen_at": now, "slots": slots, "short_slots": short_slots}
        upsert(session, Worker, row, {"seen_at": now, "slots": slots, "short_slots": short_slots})
    gone = delete(Worker).where(Worker.id == worker_id, Worker.queue.not_in(sorted(offers)))
    session.execute(gone.execution_options(synchronize_session=False))


def forget_gone(session: Session) -> None:
    """Delete the rows of workers that are long gone. It goes through all workers: not at every heartbeat."""
    gone = delete(Worker).where(Worker.seen_at < db_now() - _FORGOTTEN_SECONDS)
    session.execute(gone.execution_options(synchronize_session=False))


def note_deaf(session: Session, worker_id: str, *, deaf: bool) -> None:
    """Note that no messages reach a worker although jobs wait, or that they do again."""
    since = db_now() if deaf else None
    session.execute(
        update(Worker)
        .where(Worker.id == worker_id)
        .values(deaf_since=since)
        .execution_options(synchronize_session=False)
    )


def live_queues(session: Session, queues: Collection[str]) -> set[str]:
    """Which of the ``queues`` some worker takes jobs from."""
    statement = select(Worker.queue).where(Worker.queue.in_(queues), Worker.seen_at > db_now() - ALIVE_SECONDS)
    return set(session.scalars(statement.distinct()))


def alive(session: Session) -> list[Worker]:
    """Workers that were seen within the last minute, a row for each of their queues."""
    statement = select(Worker).where(Worker.seen_at > db_now() - ALIVE_SECONDS).order_by(Worker.id, Worker.queue)
    return list(session.scalars(statement))


@dataclass(frozen=True)
class QueuedFigures:
    """Queued jobs of a queue."""

    queued: int = 0  # all
    due: int = 0  # of these, those that may start now
    oldest_seconds: float | None = None  # for how long the first of them might have started; None: none is due
    startable: int = 0  # of those that are due, the jobs of tenants that may have more of them run
    waited_seconds: float = 0.0  # for how long the first of these might have started; 0 where there is none


@dataclass(frozen=True)
class WorkerFigures:
    """Live workers of a queue, how many of them no message reaches, their slots, and how many of these run a job."""

    workers: int = 0
    deaf: int = 0
    slots: int = 0
    busy: int = 0
    short_slots: int = 0  # of the slots, those that are kept for short jobs


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


def waiting_of(session: Session, tenant_id: str) -> dict[str, QueuedFigures]:
    """By queue, the tenant's jobs that wait in it."""
    now, moment = db_now(), type_coerce(Job.not_before, Double)
    statement = (
        select(Job.queue, func.count(), func.sum(case((moment <= now, 1), else_=0)), now - func.min(moment))
        .where(text(IS_QUEUED), Job.queue.in_(QUEUES), owned(Job, tenant_id))
        .group_by(Job.queue)
    )
    return {
        queue: QueuedFigures(queued, due, max(0.0, seconds) if due else None)
        for queue, queued, due, seconds in session.execute(statement)
    }


def running(session: Session, tenant_id: str | None = None) -> dict[str, int]:
    """By queue, the number of jobs that run; of one tenant, or of all."""
    statement = select(Job.queue, func.count().label("jobs")).where(text(IS_RUNNING)).group_by(Job.queue)
    if tenant_id is not None:
        statement = statement.where(owned(Job, tenant_id))
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
            func.sum(Worker.short_slots),
        )
        .join(load, load.c.worker_id == Worker.id, isouter=True)
        .where(Worker.seen_at > db_now() - ALIVE_SECONDS)
        .group_by(Worker.queue)
    )
    return {queue: WorkerFigures(*figures) for queue, *figures in session.execute(statement)}
