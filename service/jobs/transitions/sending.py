"""Which queued jobs need a message to the workers. The job's row is the outbox."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlalchemy import Select, bindparam, func, select, text, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.tables import Job
from service.tables.jobs import IS_QUEUED

REDISPATCH_SECONDS = 30.0


@dataclass(frozen=True)
class Due:
    """A queued job whose message has to be sent (again)."""

    job_id: str
    queue: str


@dataclass(frozen=True)
class Backlog:
    """Due jobs of one queue: those whose message was never sent, those whose was, and how many of these long ago."""

    queue: str
    fresh: int
    sent: int
    late: int


def backlogs(session: Session, *, redispatch_seconds: float = REDISPATCH_SECONDS) -> list[Backlog]:
    """Every queue with jobs that may start, in order of its name."""
    return [Backlog(*row) for row in session.execute(_backlogs(redispatch_seconds))]


def unsent(session: Session, queue: str, limit: int) -> list[Due]:
    """Jobs of the queue that may start and whose message was never sent, oldest first; at most ``limit``."""
    return [Due(*row) for row in session.execute(_due(queue, limit, None))]


def overdue(session: Session, queue: str, limit: int, *, redispatch_seconds: float = REDISPATCH_SECONDS) -> list[Due]:
    """Jobs of the queue that may start and whose message was sent so long ago that it may be lost, oldest first."""
    return [Due(*row) for row in session.execute(_due(queue, limit, redispatch_seconds))]


def mark_dispatched(session: Session, job_id: str) -> None:
    """Note that the message of a queued job was sent."""
    session.execute(_SENT, {"job_id": job_id})


# Statements that are executed all the time are built once: that takes longer than the database does for the answer.
_SENT = (
    update(Job)
    .where(Job.id == bindparam("job_id"), Job.state == "queued")
    .values(dispatched_at=db_now())
    .execution_options(synchronize_session=False)
)


@cache
def _backlogs(redispatch_seconds: float) -> Select[str, int, int, int]:
    # PostgreSQL would ask its clock anew for each of very many rows, which takes longer than to count them.
    now = select(db_now()).scalar_subquery()
    fresh, late = Job.dispatched_at.is_(None), Job.dispatched_at < now - redispatch_seconds
    counts = (func.count().filter(fresh), func.count(Job.dispatched_at), func.count().filter(late))
    due = select(Job.queue, *counts).where(text(IS_QUEUED), Job.not_before <= now)
    return due.group_by(Job.queue).order_by(Job.queue)


@cache
def _due(queue: str, limit: int, late_seconds: float | None) -> Select[str, str]:
    """Jobs whose message was sent so long ago, or, without a number, never.

    They come in the order of the index of messages, so that no more is read than is returned.

    The order says nothing of whose turn it is: a message only wakes a worker. Rows are not locked, since the lock would
    be gone before the message is sent; two reconcilers may send it twice.
    """
    sent = Job.dispatched_at.is_(None) if late_seconds is None else Job.dispatched_at < db_now() - late_seconds
    return (
        select(Job.id, Job.queue)
        # The sum keeps SQLite from taking the index by this time, of which it would have to sort all that is due.
        .where(text(IS_QUEUED), Job.queue == queue, Job.not_before + 0 <= db_now(), sent)
        .order_by(Job.dispatched_at, Job.not_before, Job.id)
        .limit(limit)
    )
