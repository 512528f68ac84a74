"""Marks queued jobs as released to the workers, and takes the mark back. Their state stays as it is."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Double, and_, bindparam, select, text, type_coerce, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.jobs.queues import QUEUES
from service.jobs.transitions.table import OVERLAP_SECONDS
from service.tables import Job
from service.tables.jobs import IS_QUEUED

# Id, tenant, kind, queue, size class, number of the attempt, seconds until the deadline.
Marked = tuple[str, str, str, str, str, int, float | None]


def mark_released(session: Session, job_id: str) -> Marked | None:
    """Mark a job; None if it was released or canceled this very moment, or somebody holds its row.

    Jobs are marked in the order of their turns, and others hold them in the order of their ids: nobody waits here.
    """
    row = session.execute(_RELEASE, {"job_id": job_id}).one_or_none()
    return None if row is None else tuple(row)


def take_back(session: Session, *, lost_seconds: float) -> int:
    """Let jobs whose messages are lost be released again, as far as anybody knows; returns how many.

    A message that arrives all the same finds its job as one that is not released, and does nothing.
    """
    taken = 0
    for condition in _lost(lost_seconds):
        free = select(Job.id).where(condition).with_for_update(skip_locked=True)
        lost = update(Job).where(Job.id.in_(free)).values(dispatched_at=None).returning(Job.id)
        taken += len(session.scalars(lost.execution_options(synchronize_session=False)).all())
    return taken


def any_lost(session: Session, *, lost_seconds: float) -> bool:
    """Whether ``take_back`` would find any."""
    looks = (select(Job.id).where(condition).limit(1) for condition in _lost(lost_seconds))
    return any(session.scalar(look) is not None for look in looks)


def not_sent(session: Session, jobs: Collection[tuple[str, int]]) -> None:
    """Let jobs whose messages could not be sent be released again: their ids, and the attempts they were sent for."""
    for job_id, attempt in sorted(jobs):  # in the order in which all hold jobs
        session.execute(_NOT_SENT, {"job_id": job_id, "before": attempt - 1})


def _lost(seconds: float) -> tuple[ColumnElement[bool], ...]:
    """Conditions for jobs whose messages are lost, each to be asked by itself: together no index would serve them."""
    now = db_now()
    # named one by one, so that SQLite goes by the index that begins with the queue
    released = (text(IS_QUEUED), Job.queue.in_(QUEUES))
    by_another_clock = Job.dispatched_at > now + OVERLAP_SECONDS  # which was put back meanwhile
    return and_(*released, Job.dispatched_at < now - seconds), and_(*released, by_another_clock)


# Statements that are executed all the time are built once: that takes longer than the database does for the answer.
_FREE = (
    select(Job.id)
    .where(Job.id == bindparam("job_id"), Job.state == "queued", Job.dispatched_at.is_(None))
    .with_for_update(skip_locked=True)
)
_RELEASE = (
    update(Job)
    .where(Job.id.in_(_FREE))
    .values(dispatched_at=db_now())
    .returning(
        Job.id, Job.tenant_id, Job.kind, Job.queue, Job.size_class, Job.attempt + 1,
        type_coerce(Job.deadline_at, Double) - db_now(),
    )
    .execution_options(synchronize_session=False)
)  # fmt: skip
_NOT_SENT = (
    update(Job)
    .where(Job.id == bindparam("job_id"), Job.state == "queued", Job.attempt == bindparam("before"))
    .values(dispatched_at=None)
    .execution_options(synchronize_session=False)
)
