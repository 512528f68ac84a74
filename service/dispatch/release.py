"""Releases jobs, as many as there are free slots for, in the order of their turns; takes back what got lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Double, and_, bindparam, select, text, type_coerce, update
from sqlalchemy.orm import Session

from service.contracts.quota import Quota
from service.db import db_now
from service.dispatch.order import next_due
from service.dispatch.slots import FreeSlots, Started
from service.jobs.queues import QUEUES
from service.jobs.transitions.table import OVERLAP_SECONDS
from service.quotas.service import full_tenants
from service.tables import Job
from service.tables.jobs import IS_QUEUED


@dataclass(frozen=True)
class Released:
    """A job that was released for its next attempt.

    Attributes:
        id: of the job.
        tenant_id: whose it is.
        kind: of job.
        queue: that it goes to.
        size_class: short or long.
        attempt: the number that the attempt will have.
        seconds_left: until the job's deadline; None: it has none.
    """

    id: str
    tenant_id: str
    kind: str
    queue: str
    size_class: str
    attempt: int
    seconds_left: float | None


def release(session: Session, free: FreeSlots, quota: Quota) -> list[Released]:
    """Mark jobs as released until no slot is free or no job is due; the caller commits, and sends them afterwards.

    Args:
        session: of a transaction beside which nobody else releases.
        free: slots.
        quota: of tenants that have no limits of their own.
    """
    found: list[Released] = []
    while queues := free.queues():
        job_id = _next(session, free, queues, full_tenants(session, quota))
        if job_id is None:
            break
        row = session.execute(_RELEASE, {"job_id": job_id}).one_or_none()
        if row is not None:  # None: it was canceled this very moment
            job = Released(*row)
            found.append(job)
            free.start(Started(job.queue, job.tenant_id, job.size_class, 1))
    return found


def _next(session: Session, free: FreeSlots, queues: dict[str, bool], full: frozenset[str]) -> str | None:
    """The next job; queues in which some tenants have to stand back are asked each by itself."""
    crowds = {queue: free.crowds(queue) for queue in queues}
    together = {queue: short for queue, short in queues.items() if not crowds[queue]}
    if together:
        job_id = next_due(session, together, released=free.released, without=full)
        if job_id is not None:
            return job_id
    for queue, crowd in crowds.items():
        if crowd:
            job_id = next_due(session, {queue: queues[queue]}, released=free.released, without=full | crowd)
            if job_id is not None:
                return job_id
    return None


def take_back(session: Session, *, lost_seconds: float) -> int:
    """Let jobs whose messages are lost be released again, as far as anybody knows; returns how many.

    A message that arrives all the same finds its job as one that is not released, and does nothing.
    """
    taken = 0
    for condition in _lost(lost_seconds):
        lost = update(Job).where(condition).values(dispatched_at=None).returning(Job.id)
        taken += len(session.scalars(lost.execution_options(synchronize_session=False)).all())
    return taken


def any_lost(session: Session, *, lost_seconds: float) -> bool:
    """Whether ``take_back`` would find any."""
    looks = (select(Job.id).where(condition).limit(1) for condition in _lost(lost_seconds))
    return any(session.scalar(look) is not None for look in looks)


def not_sent(session: Session, jobs: Sequence[Released]) -> None:
    """Let jobs whose messages could not be sent be released again."""
    for job in sorted(jobs, key=lambda one: one.id):  # in the order in which all hold jobs
        session.execute(_NOT_SENT, {"job_id": job.id, "before": job.attempt - 1})


def _lost(seconds: float) -> tuple[ColumnElement[bool], ...]:
    """Conditions for jobs whose messages are lost, each to be asked by itself: together no index would serve them."""
    now = db_now()
    # named one by one, so that SQLite goes by the index that begins with the queue
    released = (text(IS_QUEUED), Job.queue.in_(QUEUES))
    by_another_clock = Job.dispatched_at > now + OVERLAP_SECONDS  # which was put back meanwhile
    return and_(*released, Job.dispatched_at < now - seconds), and_(*released, by_another_clock)


# Statements that are executed all the time are built once: that takes longer than the database does for the answer.
_RELEASE = (
    update(Job)
    .where(Job.id == bindparam("job_id"), Job.state == "queued", Job.dispatched_at.is_(None))
    .values(dispatched_at=db_now())
    .returning(
        Job.id,
        Job.tenant_id,
        Job.kind,
        Job.queue,
        Job.size_class,
        Job.attempt + 1,
        type_coerce(Job.deadline_at, Double) - db_now(),
    )
    .execution_options(synchronize_session=False)
)
_NOT_SENT = (
    update(Job)
    .where(Job.id == bindparam("job_id"), Job.state == "queued", Job.attempt == bindparam("before"))
    .values(dispatched_at=None)
    .execution_options(synchronize_session=False)
)
