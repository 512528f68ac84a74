"""Transitions by workers: claim, renew, end of an attempt; charging of attempts and pauses between them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from sqlalchemy import func, update
from sqlalchemy.orm import Session

from service.contracts.errors import Problem, QuantmillError
from service.contracts.runner import ProgressLine
from service.db import db_now
from service.jobs import events, settlement
from service.jobs.errors import AttemptsExhaustedError
from service.jobs.outcome import EvaluateOutcome, Outcome, QuantizeOutcome
from service.jobs.schemas import Waiting
from service.jobs.transitions import rows
from service.tables import Job

# What an attempt costs, and how long a job waits before the next one.
#
# An attempt is charged unless its end was no fault of the job. Interruptions are not capped: a worker may be restarted
# every night, and the deadline ends what never comes to an end. One that came before the attempt had told of any
# progress is followed by a pause, so that a host whose workers end as soon as they have started does not spin.
#
# Where it is the installation that cannot go on, and an operator who has to act, the time that a job loses by that does
# not count against its deadline.

MAX_ATTEMPTS = 3
_BACKOFF_CAP_SECONDS = 60.0
# Validation that was lost with its worker again and again: the worker may have died of it, so it is tried more rarely.
_SILENCE_CAP_SECONDS = 600.0
# What is wrong with the installation as a whole. An error of a worker's own may come from the job: its deadline stands.
_INSTALLATION = ("storage-full", "storage-away", "database-away", "runner-not-started")
# 2 to the power of this is above every cap.
_MOST_DOUBLINGS = 10


def backoff_seconds(attempt: int, *, cap_seconds: float = _BACKOFF_CAP_SECONDS) -> float:
    """Delay before the next attempt: 2, 4, 8 ... seconds, at most the cap, with 20 % jitter."""
    growing = 2.0 ** min(attempt, _MOST_DOUBLINGS)
    return min(cap_seconds, growing) * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


def silence_seconds(attempt: int) -> float:
    """Delay before validation whose workers fell silent is tried once more."""
    return backoff_seconds(attempt, cap_seconds=_SILENCE_CAP_SECONDS)


def spent(job: Job) -> bool:
    """True if the running attempt, once it is charged, is the last that the job may have."""
    return job.attempt - job.interruptions >= job.max_attempts


def exhausted(job: Job, reason: str) -> QuantmillError:
    """What a job fails with when its last attempt was used up by passing trouble."""
    return AttemptsExhaustedError(
        f"All {job.max_attempts} attempts of the job failed; the last error: {reason}",
        hint="See the worker's log for details; if the model crashes the runtime, exclude the node that causes it.",
        stage=job.stage,
        attempt=job.attempt,
    )


_REASON_CHARS = 2000


@dataclass(frozen=True)
class Renewal:
    """Answer to a renewal. If not ``alive`` the attempt is no longer the owner: stop and write nothing more."""

    alive: bool
    cancel_requested: bool


def claim(session: Session, job_id: str, *, worker_id: str, lease_seconds: float) -> Job | None:
    """T2 queued -> running: take the job under a new attempt number. None if it is not (or not yet) to be had."""
    now = db_now()
    return rows.move(
        session,
        rows.CLAIM,
        job_id,
        None,
        {"worker_id": worker_id},
        attempt=Job.attempt + 1,
        worker_id=worker_id,
        lease_until=now + lease_seconds,
        started_at=func.coalesce(Job.started_at, now),
        stage=None,
        progress=None,
    )


def renew(session: Session, job_id: str, attempt: int, *, lease_seconds: float) -> Renewal:
    """T3 running -> running: prolong the lease, or take it back if nobody else has; learn of a requested cancel.

    A lease may run out only because the database was away. As long as no reconciler has ended the attempt it is the
    only one there is, and what it has computed is worth as much as before.
    """
    row = session.execute(
        update(Job)
        .where(Job.id == job_id, *rows.RENEW.conditions(attempt))
        .values(lease_until=db_now() + lease_seconds)
        .returning(Job.cancel_requested_at)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    return Renewal(alive=row is not None, cancel_requested=row is not None and row[0] is not None)


def record_progress(session: Session, job_id: str, attempt: int, line: ProgressLine) -> bool:
    """T3: note how far the attempt has come, on the job and in its log. False if it is no longer the owner."""
    progress = line.model_dump(mode="json", exclude={"line", "stage"})
    place = rows.note(session, rows.PROGRESS, job_id, attempt, stage=line.stage[:255], progress=progress)
    if place is None:
        return False
    events.record(session, place, "progress", {"stage": line.stage, **progress})
    return True


def succeed(session: Session, job_id: str, attempt: int, *, result: Outcome) -> bool:
    """T4 running -> succeeded, with everything the job produced. False if fenced off or cancel was requested.

    A quantize or evaluate job gets its report and artifact rows; an inspect job makes its model or dataset ready.

    Raises:
        TypeError: the result is not one for this kind of job.
    """
    told: dict[str, str] = {}
    if isinstance(result, QuantizeOutcome | EvaluateOutcome):
        told["verdict"] = result.report.verdict
    if isinstance(result, QuantizeOutcome) and result.report.returned is not None:
        told["fallback"] = result.report.returned
    ended = {"lease_until": None, "finished_at": db_now()}
    job = rows.move(session, rows.SUCCEED, job_id, attempt, told, **ended)
    if job is None:
        return False
    settlement.accept(session, job, result)
    return True


def fail(session: Session, job_id: str, attempt: int, *, problem: Problem) -> bool:
    """T5 running -> failed with the reason. False if the attempt is no longer the owner."""
    return rows.fail(session, rows.FAIL, job_id, attempt, problem) is not None


def requeue(session: Session, job_id: str, attempt: int, *, delay_seconds: float, charged: bool, reason: str) -> bool:
    """T6 running -> queued, to be tried again after the delay.

    An attempt that was not ``charged`` (its worker had to shut down) leaves the attempt budget alone and counts as an
    interruption, of which there may be any number; see ``budget`` for the pause that it may be followed by. If a cancel
    was requested the job ends as canceled instead; if the budget is used up, as failed.

    Returns:
        True if the job's row was changed in any of these ways; False if the attempt is no longer the owner.
    """
    job = _owned(session, job_id, attempt)
    if job is None:
        return False
    reason = reason[:_REASON_CHARS]
    if job.cancel_requested_at is not None:
        return finish_cancel(session, job_id, attempt)
    if charged and spent(job):
        return fail(session, job_id, attempt, problem=exhausted(job, reason).problem())
    # without delay once an attempt that is being interrupted has come anywhere
    interruption_seconds = 0.0 if job.stage is not None else backoff_seconds(job.interruptions + 1)
    delay = delay_seconds if charged else max(delay_seconds, interruption_seconds)
    return rows.put_back(session, rows.REQUEUE, job, delay_seconds=delay, charged=charged, reason=reason) is not None


def interrupt(session: Session, job_id: str, attempt: int, *, delay_seconds: float, waiting: Waiting) -> bool:
    """T6 running -> queued through a fault of the installation, such as a full disk: not charged, however often.

    A requested cancel ends the job instead. What it waits for is told with the job until it is claimed again. Its
    deadline is put off by the attempt and the delay, if it is the installation that keeps it waiting; see ``budget``.

    Returns:
        True if the job's row was changed; False if the attempt is no longer the owner.
    """
    job = _owned(session, job_id, attempt)
    if job is None:
        return False
    if job.cancel_requested_at is not None:
        return finish_cancel(session, job_id, attempt)
    moved = rows.put_back(
        session,
        rows.INTERRUPT,
        job,
        delay_seconds=delay_seconds,
        charged=False,
        reason=waiting.message,
        waiting=waiting.model_dump(mode="json"),
        deferred=waiting.code in _INSTALLATION,
    )
    return moved is not None


def finish_cancel(session: Session, job_id: str, attempt: int) -> bool:
    """T9 running -> canceled, once the attempt has stopped. False if fenced off or no cancel was requested."""
    job = _owned(session, job_id, attempt)
    return job is not None and rows.cancel(session, rows.FINISH_CANCEL, job) is not None


def _owned(session: Session, job_id: str, attempt: int) -> Job | None:
    """The running job, locked, if the attempt still owns it."""
    job = rows.locked(session, job_id)
    return job if job is not None and job.state == "running" and job.attempt == attempt else None
