"""Transitions by the reconciler: expired leases and deadlines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    Select,
    SQLColumnExpression,
    TextClause,
    and_,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy.orm import Session

from service.db import db_now, one_by_one
from service.jobs.errors import DeadlineExceededError, LeaseExpiredError
from service.jobs.schemas import Waiting
from service.jobs.transitions import attempts, rows
from service.tables import Job
from service.tables.jobs import IS_LIVE, IS_QUEUED, IS_RUNNING, UPLOAD_KINDS, USERS_KINDS

WORKERS_LOST = "workers-lost"
LATE_VALIDATION = Waiting(
    code="validation-overdue",
    message="The upload was not validated in time. The upload is not the cause; validation will be retried.",
    hint="Check that a worker takes jobs from the queue inspect, and check its log: it may be overloaded or hanging.",
)


def expire_leases(session: Session, *, limit: int = 100, ended_by: float | None = None) -> list[Job]:
    """T7 (and T9): take running jobs away from workers that fell silent. Each is queued again, failed or canceled.

    Args:
        session: of a transaction that writes.
        limit: jobs at most.
        ended_by: only where the lease had ended by then, in seconds since 1970 by the database's clock: that may
            have stood still since. None: by now.
    """
    return _each(session, _over_by(ended_by, _all_silent(limit), Job.lease_until), _expire)


def expire_deadlines(session: Session, *, limit: int = 100, ended_by: float | None = None) -> list[Job]:
    """T10 queued or running -> failed, for jobs whose deadline has passed; validation of uploads is queued again.

    Validation that is asked to stop is left to whoever stops it. For ``ended_by`` see ``expire_leases``.
    """
    return _each(session, _over_by(ended_by, _all_overdue(limit), Job.deadline_at), _overdue)


def defer_deadlines(session: Session, since: datetime) -> int:
    """T11 queued -> queued: let the time from ``since`` to now not count. Returns how many jobs have longer.

    For a time in which no service could run them: a restored backup's, before anybody works with its database, or one
    in which the database was away. Where several reconcilers saw that, each of them gives the time.
    """
    absent = db_now() - since.timestamp()
    statement = (
        update(Job)
        .where(rows.in_order(*rows.DEFER.conditions(None), Job.deadline_at.is_not(None), absent > 0.0))
        .values(deadline_at=Job.deadline_at + absent, row_version=Job.row_version + 1, updated_at=db_now())
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return len(session.scalars(statement).all())


def queued_ahead(session: Session) -> bool:
    """True if there are jobs that were queued while the database's clock was ahead of what it says now."""
    return session.scalar(select(Job.id).where(*_ahead()).limit(1)) is not None


def bring_forward(session: Session) -> int:
    """T12 queued -> queued: jobs that were queued by a clock that was ahead count as queued now. Returns how many.

    A pause between attempts stays as long as it was meant to be.
    """
    now = db_now()
    statement = (
        update(Job)
        .where(rows.in_order(*_ahead()))
        .values(
            not_before=Job.not_before - (Job.queued_at - now),
            queued_at=now,
            row_version=Job.row_version + 1,
            updated_at=now,
        )
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return len(session.scalars(statement).all())


# Both are asked all the time, and building a statement takes longer than the database does for the answer.
@cache
def _all_silent(limit: int) -> Select[Job]:
    silent = select(Job).where(text(IS_RUNNING), Job.lease_until < db_now())
    return silent.order_by(Job.lease_until).limit(limit).with_for_update(skip_locked=True)


@cache
def _all_overdue(limit: int) -> Select[Job]:
    stopping = and_(Job.kind.in_(UPLOAD_KINDS), Job.cancel_requested_at.is_not(None))
    overdue = select(Job).where(text(f"({IS_LIVE})"), Job.deadline_at < db_now(), ~stopping)
    return overdue.order_by(Job.deadline_at).limit(limit).with_for_update(skip_locked=True)


def _over_by(moment: float | None, which: Select[Job], column: SQLColumnExpression[Any]) -> Select[Job]:
    """Those of which the time in ``column`` was over by that moment; None: by now, as they are."""
    return which if moment is None else which.where(type_coerce(column, Double) < moment)


def _each(session: Session, which: Select[Job], act: Callable[[Session, Job], Job | None]) -> list[Job]:
    """Those that were moved; what is wrong with one of them undoes nothing that was done to others."""
    jobs = {job.id: job for job in session.scalars(which)}
    moved: list[Job] = []

    def move(job_id: str) -> bool:
        with session.begin_nested():
            done = act(session, jobs[job_id])
        moved.extend(() if done is None else (done,))
        return done is not None

    one_by_one("job", list(jobs), move)
    return moved


def _ahead() -> list[ColumnElement[bool] | TextClause]:
    # The time to start is never before that of queueing; by it there is an index.
    return [text(IS_QUEUED), *rows.BRING_FORWARD.conditions(None), Job.not_before > db_now()]


def _overdue(session: Session, job: Job) -> Job | None:
    if job.kind in UPLOAD_KINDS:
        return _postpone(session, job)
    samples = "Use fewer samples, or raise QUANTMILL_JOB_DEADLINE_SECONDS."
    error = DeadlineExceededError(
        "The job did not end before its deadline.",
        hint=samples if job.kind in USERS_KINDS else "Check the workers' logs, then create it again.",
        stage=job.stage,
    )
    return rows.fail(session, rows.MISS_DEADLINE, job.id, job.attempt, error.problem())


def _postpone(session: Session, job: Job) -> Job | None:
    """Validation takes seconds: that it had no time says nothing of what was uploaded, and must not reject it.

    It goes on, with twice the time each time; what it validates says that the installation keeps it waiting.
    """
    running: dict[str, Any] = {}
    if job.state == "running":
        now = db_now()
        running = {
            "lease_until": None,
            "worker_id": None,
            "dispatched_at": None,
            "not_before": now + attempts.silence_seconds(job.attempt),
            "queued_at": now,
            "interruptions": Job.interruptions + 1,
            "stage": None,
            "progress": None,
        }
    return rows.move(
        session,
        rows.POSTPONE,
        job.id,
        job.attempt,
        {"reason": LATE_VALIDATION.message},
        deadline_at=db_now() + (Job.deadline_at - Job.created_at),
        waiting=LATE_VALIDATION.model_dump(mode="json"),
        **running,
    )


def _expire(session: Session, job: Job) -> Job | None:
    if job.cancel_requested_at is not None:
        return rows.cancel(session, rows.EXPIRE_CANCEL, job)
    silent = f"worker {job.worker_id} stopped responding"
    if not attempts.spent(job):
        delay = attempts.backoff_seconds(job.attempt)
        return rows.put_back(session, rows.EXPIRE, job, delay_seconds=delay, charged=True, reason=silent)
    if job.kind not in USERS_KINDS:
        return _try_again(session, job, silent)
    error = LeaseExpiredError(
        f"Worker {job.worker_id} stopped responding in attempt {job.attempt}, the last one.",
        hint="The job may need more memory than its worker has. Check the worker's log, then submit the job again.",
        stage=job.stage,
        attempt=job.attempt,
    )
    return rows.fail(session, rows.GIVE_UP, job.id, job.attempt, error.problem())


def _try_again(session: Session, job: Job, reason: str) -> Job | None:
    """Validation takes seconds, and its failure would reject what was uploaded: lost workers alone never do that.

    It stays in validation and is tried again, ever more rarely; nothing more is charged for it.
    """
    waiting = Waiting(
        code=WORKERS_LOST,
        message=f"Each worker that took the job stopped responding, most recently {job.worker_id}; the job will "
        "be retried.",
        hint="Check the worker's log: the job may need more memory than the worker has.",
    )
    return rows.put_back(
        session,
        rows.EXPIRE,
        job,
        delay_seconds=attempts.silence_seconds(job.attempt),
        charged=False,
        reason=reason,
        waiting=waiting.model_dump(mode="json"),
    )
