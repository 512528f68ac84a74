"""Marks queued jobs as released and removes the mark; lease maintenance by the reconciler."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Double, TextClause, and_, bindparam, select, text, type_coerce, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.jobs.queues import QUEUES
from service.jobs.transitions import rows
from service.jobs.transitions.rows import OVERLAP_SECONDS, Transition
from service.tables import Job
from service.tables.jobs import IS_QUEUED, IS_RUNNING
from service.tracing import Carrier

# Id, tenant, kind, queue, size class, number of the attempt, seconds until the deadline, trace context.
Marked = tuple[str, str, str, str, str, int, float | None, Carrier | None]


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
        type_coerce(Job.deadline_at, Double) - db_now(), Job.trace_context,
    )
    .execution_options(synchronize_session=False)
)  # fmt: skip
_NOT_SENT = (
    update(Job)
    .where(Job.id == bindparam("job_id"), Job.state == "queued", Job.attempt == bindparam("before"))
    .values(dispatched_at=None)
    .execution_options(synchronize_session=False)
)


# What the reconciler does to leases of jobs that go on running: they end neither too early nor too late. All of these
# look through the jobs that run: an index by the end of leases would have to be written at each renewal.

_Condition = ColumnElement[bool] | TextClause


def spare_leases(session: Session, *, lease_seconds: float) -> int:
    """T13 running -> running: let no lease end before ``lease_seconds`` from now. Returns how many are longer.

    After a time in which nobody could renew them. What is written there holds for every reconciler, and for one that
    is started again.
    """
    until = db_now() + lease_seconds
    return _set(session, rows.SPARE, until, [text(IS_RUNNING), Job.lease_until < until])


def try_to_write(session: Session, *, lease_seconds: float) -> None:
    """T13, too: one lease of which half has passed without a word becomes a millisecond longer.

    A database that has no room, or takes no writes, lets nobody renew them. This tells of it before they end. A job
    that somebody holds is passed over: whoever hangs with it must not keep other leases from ending.
    """
    silent = select(Job.id).where(text(IS_RUNNING), Job.lease_until < db_now() + lease_seconds / 2)
    job_id = session.scalar(silent.limit(1).with_for_update(skip_locked=True))
    if job_id is not None:
        _set(session, rows.SPARE, Job.lease_until + 0.001, [Job.id == job_id])


def leased_ahead(session: Session, *, lease_seconds: float) -> bool:
    """True if there are leases longer than ``lease_seconds``: the database's clock was put back since they were given.

    Whoever holds a job with longer leases, by other settings, renews them in time.
    """
    ahead = select(Job.id).where(*_ahead(lease_seconds))
    return session.scalar(ahead.limit(1)) is not None


def shorten_leases(session: Session, *, lease_seconds: float) -> int:
    """T14 running -> running: leases that a clock gave that was ahead last as long as one given now."""
    return _set(session, rows.SHORTEN, db_now() + lease_seconds, _ahead(lease_seconds))


def _ahead(lease_seconds: float) -> list[_Condition]:
    return [text(IS_RUNNING), Job.lease_until > db_now() + lease_seconds + rows.OVERLAP_SECONDS]


def _set(session: Session, transition: Transition, until: ColumnElement[Any], which: list[_Condition]) -> int:
    statement = (
        update(Job)
        .where(rows.in_order(*transition.conditions(None), *which))
        .values(lease_until=until)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return len(session.scalars(statement).all())
