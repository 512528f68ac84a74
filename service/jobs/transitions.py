"""The state machine of jobs. Nothing else changes ``Job.state``.

Every transition is one guarded UPDATE: it names the state it comes from, and the attempt that holds the lease where a
worker asks. If the guard does not hold, nothing is changed and the caller is told. The event is written in the same
transaction; the caller commits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, insert, or_, select, update
from sqlalchemy.orm import Session

from service.contracts.errors import CanceledError, Problem, QuantmillError
from service.contracts.runner import ProgressLine
from service.db import db_now
from service.ids import is_id, new_id
from service.jobs import events, settlement
from service.jobs.errors import (
    AttemptsExhaustedError,
    DeadlineExceededError,
    InterruptionsExhaustedError,
    JobNotFoundError,
    LeaseExpiredError,
)
from service.jobs.outcome import Outcome, QuantizeOutcome
from service.jobs.queues import queue_of
from service.tables import Job
from service.tables.jobs import LIVE_STATES

MAX_ATTEMPTS = 3
MAX_INTERRUPTIONS = 5
REDISPATCH_SECONDS = 30.0
_BACKOFF_CAP_SECONDS = 60.0
_REASON_CHARS = 2000


@dataclass(frozen=True)
class Renewal:
    """Answer to a renewal. If not ``alive`` the attempt is no longer the owner: stop and write nothing more."""

    alive: bool
    cancel_requested: bool


@dataclass(frozen=True)
class Due:
    """A queued job whose message has to be sent (again)."""

    job_id: str
    queue: str


def submit(
    session: Session,
    *,
    tenant_id: str,
    kind: str,
    queue: str | None = None,
    model_id: str | None = None,
    dataset_id: str | None = None,
    calibration_dataset_id: str | None = None,
    evaluation_dataset_id: str | None = None,
    config: dict[str, Any] | None = None,
    name: str | None = None,
    labels: dict[str, str] | None = None,
    priority: int = 0,
    max_attempts: int = MAX_ATTEMPTS,
    deadline_seconds: float | None = None,
    request_id: str | None = None,
) -> Job:
    """T1: insert a queued job with its first event."""
    now = db_now()
    statement = (
        insert(Job)
        .values(
            id=new_id("job"),
            tenant_id=tenant_id,
            kind=kind,
            name=name,
            labels=labels or {},
            state="queued",
            queue=queue or queue_of(kind),
            priority=priority,
            model_id=model_id,
            dataset_id=dataset_id,
            calibration_dataset_id=calibration_dataset_id,
            evaluation_dataset_id=evaluation_dataset_id,
            config=config,
            attempt=0,
            max_attempts=max_attempts,
            interruptions=0,
            not_before=now,
            deadline_at=None if deadline_seconds is None else now + deadline_seconds,
            row_version=1,
            last_seq=1,
            request_id=request_id,
            created_at=now,
            queued_at=now,
            updated_at=now,
        )
        .returning(Job)
    )
    job = session.scalars(statement).one()
    events.record(session, job.id, 1, 0, "state", {"name": "job.queued", "state": "queued"})
    return job


def claim(session: Session, job_id: str, *, worker_id: str, lease_seconds: float) -> Job | None:
    """T2 queued -> running: take the job under a new attempt number. None if it is not (or not yet) to be had."""
    now = db_now()
    return _move(
        session,
        job_id,
        [
            Job.state == "queued",
            Job.not_before <= now,
            Job.cancel_requested_at.is_(None),
            or_(Job.deadline_at.is_(None), Job.deadline_at > now),
        ],
        "job.claimed",
        {"worker_id": worker_id},
        state="running",
        attempt=Job.attempt + 1,
        worker_id=worker_id,
        lease_until=now + lease_seconds,
        started_at=func.coalesce(Job.started_at, now),
        stage=None,
        progress=None,
    )


def renew(session: Session, job_id: str, attempt: int, *, lease_seconds: float) -> Renewal:
    """T3 running -> running: prolong the lease, which must not have run out; learn of a requested cancel."""
    row = session.execute(
        update(Job)
        .where(*_held(job_id, attempt), Job.lease_until > db_now())
        .values(lease_until=db_now() + lease_seconds)
        .returning(Job.cancel_requested_at)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    return Renewal(alive=row is not None, cancel_requested=row is not None and row[0] is not None)


def record_progress(session: Session, job_id: str, attempt: int, line: ProgressLine) -> bool:
    """Note how far the attempt has come, on the job and in its log. False if the attempt is no longer the owner."""
    progress = line.model_dump(mode="json", exclude={"line", "stage"})
    job = _update(
        session, [*_held(job_id, attempt), Job.lease_until > db_now()], stage=line.stage[:255], progress=progress
    )
    if job is None:
        return False
    events.record(session, job_id, job.last_seq, attempt, "progress", {"stage": line.stage, **progress})
    return True


def succeed(session: Session, job_id: str, attempt: int, *, result: Outcome) -> bool:
    """T4 running -> succeeded, with everything the job produced. False if fenced off or cancel was requested.

    A quantize job gets its report and artifact rows; an inspect job makes its model or dataset ready.

    Raises:
        TypeError: the result is not one for this kind of job.
    """
    extra = {"verdict": result.report.verdict} if isinstance(result, QuantizeOutcome) else {}
    job = _move(
        session,
        job_id,
        [*_held(job_id, attempt)[1:], Job.cancel_requested_at.is_(None)],
        "job.succeeded",
        extra,
        state="succeeded",
        lease_until=None,
        finished_at=db_now(),
    )
    if job is None:
        return False
    settlement.accept(session, job, result)
    return True


def fail(session: Session, job_id: str, attempt: int, *, problem: Problem) -> bool:
    """T5 running -> failed with the reason. False if the attempt is no longer the owner."""
    return _fail(session, job_id, _held(job_id, attempt)[1:], problem) is not None


def requeue(session: Session, job_id: str, attempt: int, *, delay_seconds: float, charged: bool, reason: str) -> bool:
    """T6 running -> queued, to be tried again after the delay.

    An attempt that was not ``charged`` (its worker had to shut down) leaves the attempt budget alone and counts as an
    interruption. If a cancel was requested the job ends as canceled instead; if the budget is used up, as failed.

    Returns:
        True if the job's row was changed in any of these ways; False if the attempt is no longer the owner.
    """
    job = _locked(session, job_id)
    if job is None or job.state != "running" or job.attempt != attempt:
        return False
    reason = reason[:_REASON_CHARS]
    if job.cancel_requested_at is not None:
        return finish_cancel(session, job_id, attempt)
    spent = _budget_error(job, charged=charged, reason=reason)
    if spent is not None:
        return fail(session, job_id, attempt, problem=spent.problem())
    return _requeue(session, job, "job.requeued", delay_seconds=delay_seconds, charged=charged, reason=reason)


def request_cancel(session: Session, tenant_id: str, job_id: str) -> Job:
    """T8 queued -> canceled at once; a running job is asked to stop; a finished one is left as it is.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    job = _locked(session, job_id) if is_id(job_id, "job") else None
    if job is None or job.tenant_id != tenant_id:
        raise JobNotFoundError(job_id)
    if job.state == "queued":
        return _cancel(session, job, [Job.state == "queued"]) or job
    if job.state == "running" and job.cancel_requested_at is None:
        asked = _update(session, _held(job_id, job.attempt), cancel_requested_at=db_now())
        if asked is not None:
            data = {"name": "job.cancel_requested", "state": "canceling"}
            events.record(session, job_id, asked.last_seq, asked.attempt, "state", data)
            return asked
    return job


def finish_cancel(session: Session, job_id: str, attempt: int) -> bool:
    """T9 running -> canceled, once the attempt has stopped. False if fenced off or no cancel was requested."""
    job = _locked(session, job_id)
    if job is None:
        return False
    conditions = [*_held(job_id, attempt)[1:], Job.cancel_requested_at.is_not(None)]
    return _cancel(session, job, conditions) is not None


def expire_leases(session: Session, *, limit: int = 100) -> list[Job]:
    """T7 (and T9): take running jobs away from workers that fell silent. Each is queued again, failed or canceled."""
    statement = (
        select(Job)
        .where(Job.state == "running", Job.lease_until < db_now())
        .order_by(Job.lease_until)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [moved for job in session.scalars(statement).all() if (moved := _expire(session, job)) is not None]


def expire_deadlines(session: Session, *, limit: int = 100) -> list[Job]:
    """T10 queued or running -> failed, for jobs whose deadline has passed."""
    statement = (
        select(Job)
        .where(Job.state.in_(LIVE_STATES), Job.deadline_at < db_now())
        .order_by(Job.deadline_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    failed = []
    for job in session.scalars(statement).all():
        error = DeadlineExceededError(
            "The job did not end before its deadline.",
            hint="Use fewer samples, or raise QUANTMILL_JOB_DEADLINE_SECONDS.",
            stage=job.stage,
        )
        conditions = [Job.state == job.state, Job.attempt == job.attempt, Job.deadline_at < db_now()]
        moved = _fail(session, job.id, conditions, error.problem())
        failed += [moved] if moved is not None else []
    return failed


def due_for_dispatch(session: Session, limit: int, *, redispatch_seconds: float = REDISPATCH_SECONDS) -> list[Due]:
    """Queued jobs that may start and whose message was never sent, or so long ago that it counts as lost."""
    now = db_now()
    statement = (
        select(Job.id, Job.queue)
        .where(
            Job.state == "queued",
            Job.not_before <= now,
            or_(Job.dispatched_at.is_(None), Job.dispatched_at < now - redispatch_seconds),
        )
        .order_by(Job.priority.desc(), Job.not_before, Job.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [Due(job_id, queue) for job_id, queue in session.execute(statement)]


def mark_dispatched(session: Session, job_id: str) -> None:
    """Note that the message of a queued job was sent."""
    session.execute(
        update(Job)
        .where(Job.id == job_id, Job.state == "queued")
        .values(dispatched_at=db_now())
        .execution_options(synchronize_session=False)
    )


def backoff_seconds(attempt: int) -> float:
    """Delay before the next attempt: 2, 4, 8 ... seconds, at most a minute, with 20 % jitter."""
    return min(_BACKOFF_CAP_SECONDS, 2.0**attempt) * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


def _expire(session: Session, job: Job) -> Job | None:
    conditions = [Job.state == "running", Job.attempt == job.attempt, Job.lease_until < db_now()]
    if job.cancel_requested_at is not None:
        return _cancel(session, job, conditions)
    spent = _budget_error(job, charged=True, reason="the worker fell silent")
    if spent is not None:
        error = LeaseExpiredError(
            f"The worker {job.worker_id} fell silent on attempt {job.attempt}, and no attempt is left.",
            hint="The job may need more memory than its worker has; look into the worker's log, then submit it again.",
            stage=job.stage,
            attempt=job.attempt,
        )
        return _fail(session, job.id, conditions, error.problem())
    moved = _requeue(
        session,
        job,
        "job.lease_expired",
        delay_seconds=backoff_seconds(job.attempt),
        charged=True,
        reason=f"the worker {job.worker_id} fell silent",
    )
    return job if moved else None


def _requeue(session: Session, job: Job, event: str, *, delay_seconds: float, charged: bool, reason: str) -> bool:
    now = db_now()
    moved = _move(
        session,
        job.id,
        _held(job.id, job.attempt)[1:],
        event,
        {"reason": reason, "charged": charged, "delay_seconds": round(delay_seconds, 3)},
        state="queued",
        lease_until=None,
        worker_id=None,
        dispatched_at=None,
        not_before=now + delay_seconds,
        queued_at=now,
        interruptions=Job.interruptions if charged else Job.interruptions + 1,
        stage=None,
        progress=None,
    )
    return moved is not None


def _budget_error(job: Job, *, charged: bool, reason: str) -> QuantmillError | None:
    """Why the job may not be tried again, if so."""
    if not charged:
        if job.interruptions + 1 < MAX_INTERRUPTIONS:
            return None
        return InterruptionsExhaustedError(
            f"The job was interrupted {job.interruptions + 1} times, last because: {reason}",
            hint="Submit it again when the workers are not being restarted.",
        )
    if job.attempt - job.interruptions < job.max_attempts:
        return None
    return AttemptsExhaustedError(
        f"The job failed on each of its {job.max_attempts} attempts, last because: {reason}",
        hint="The worker's log tells more; if the model makes the runtime crash, leave out the node that does it.",
        stage=job.stage,
        attempt=job.attempt,
    )


def _fail(session: Session, job_id: str, conditions: list[ColumnElement[bool]], problem: Problem) -> Job | None:
    document = problem.model_dump(mode="json")
    job = _move(
        session,
        job_id,
        conditions,
        "job.failed",
        {"error": document},
        state="failed",
        lease_until=None,
        error=document,
        finished_at=db_now(),
    )
    if job is not None:
        settlement.reject(session, job, problem)
    return job


def _cancel(session: Session, job: Job, conditions: list[ColumnElement[bool]]) -> Job | None:
    now = db_now()
    moved = _move(
        session,
        job.id,
        conditions,
        "job.canceled",
        {},
        state="canceled",
        lease_until=None,
        cancel_requested_at=now if job.cancel_requested_at is None else Job.cancel_requested_at,
        finished_at=now,
    )
    if moved is not None:
        settlement.reject(
            session, moved, CanceledError("The validation was canceled.", hint="Create it again.").problem()
        )
    return moved


def _held(job_id: str, attempt: int) -> list[ColumnElement[bool]]:
    """Guard: this attempt owns the running job."""
    return [Job.id == job_id, Job.state == "running", Job.attempt == attempt]


def _locked(session: Session, job_id: str) -> Job | None:
    statement = select(Job).where(Job.id == job_id).with_for_update()
    return session.scalars(statement, execution_options={"populate_existing": True}).one_or_none()


def _move(
    session: Session,
    job_id: str,
    conditions: list[ColumnElement[bool]],
    event: str,
    data: dict[str, Any],
    **values: Any,
) -> Job | None:
    """One guarded UPDATE that changes the state, and its event."""
    job = _update(session, [Job.id == job_id, *conditions], **values)
    if job is not None:
        events.record(session, job.id, job.last_seq, job.attempt, "state", {"name": event, "state": job.state, **data})
    return job


def _update(session: Session, conditions: list[ColumnElement[bool]], **values: Any) -> Job | None:
    statement = (
        update(Job)
        .where(*conditions)
        .values(**values, last_seq=Job.last_seq + 1, row_version=Job.row_version + 1, updated_at=db_now())
        .returning(Job)
    )
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).one_or_none()
