"""All transitions of a job's row, as data, and the guarded UPDATE of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import ColumnElement, TextClause, Update, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from service.contracts.errors import CanceledError, Problem
from service.db import db_now
from service.jobs import announcing, events, settlement
from service.tables import Job, JobEvent
from service.tables.jobs import UPLOAD_KINDS

# Every way in which a job's row may change, as data: from which states, into which, by whom, and under which guards.
#
# ``rows.move`` and ``rows.touch`` build their one guarded UPDATE from these records, so that what stands here is what
# the database is asked. The page docs/jobs.md is made from them.

# By which transactions that overlap may differ in what time it is.
OVERLAP_SECONDS = 5.0
Actor = Literal["client", "worker", "reconciler", "operator", "operator, reconciler"]


@dataclass(frozen=True)
class TransitionGuard:
    """A condition on the job's row, as words and as SQL; the SQL is given the attempt that the caller holds."""

    words: str
    condition: Callable[[int | None], ColumnElement[bool]]


@dataclass(frozen=True)
class Transition:
    """One way in which a job's row may change."""

    name: str  # as the reference of the state machine counts them
    action: str  # the function that does it
    origins: tuple[str, ...]  # states that it may start from; none: the row is made
    target: str  # the state afterwards
    by: Actor  # who may do it
    guards: tuple[TransitionGuard, ...] = ()  # what must hold besides
    event: str | None = None  # name of the event that tells of it; None: it leaves no event of its own

    @lru_cache(maxsize=1024)  # noqa: B019 - the table is never forgotten  # building them takes long
    def conditions(self, attempt: int | None) -> tuple[ColumnElement[bool], ...]:
        """What the row must be like, for a caller who holds ``attempt``."""
        return (Job.state.in_(self.origins), *(guard.condition(attempt) for guard in self.guards))


HELD = TransitionGuard("the caller holds the current attempt", lambda attempt: Job.attempt == attempt)
DUE = TransitionGuard("its start time has been reached", lambda _: Job.not_before <= db_now())
# Both are moments of one clock: only where it was put back is this true, but for transactions that overlap.
AHEAD = TransitionGuard(
    "its queue time is in the future (clock set back)", lambda _: Job.queued_at > db_now() + OVERLAP_SECONDS
)
IN_TIME = TransitionGuard(
    "its deadline has not passed", lambda _: or_(Job.deadline_at.is_(None), Job.deadline_at > db_now())
)
OVERDUE = TransitionGuard("its deadline has passed", lambda _: Job.deadline_at < db_now())
SILENT = TransitionGuard("its lease has expired", lambda _: Job.lease_until < db_now())
WANTED = TransitionGuard("cancellation was not requested", lambda _: Job.cancel_requested_at.is_(None))
VALIDATION = TransitionGuard("it validates an upload", lambda _: Job.kind.in_(UPLOAD_KINDS))
NO_VALIDATION = TransitionGuard("it does not validate an upload", lambda _: Job.kind.not_in(UPLOAD_KINDS))
UNWANTED = TransitionGuard("cancellation was requested", lambda _: Job.cancel_requested_at.is_not(None))
_RUNNING = ("running",)
_QUEUED = ("queued",)
_LIVE = ("queued", "running")
SUBMIT = Transition("T1", "submit", (), "queued", "client", event="job.queued")
CLAIM = Transition("T2", "claim", _QUEUED, "running", "worker", (DUE, WANTED, IN_TIME), "job.claimed")
RENEW = Transition("T3", "renew", _RUNNING, "running", "worker", (HELD,))
PROGRESS = Transition("T3", "record_progress", _RUNNING, "running", "worker", (HELD,))
SUCCEED = Transition("T4", "succeed", _RUNNING, "succeeded", "worker", (HELD, WANTED), "job.succeeded")
FAIL = Transition("T5", "fail", _RUNNING, "failed", "worker", (HELD,), "job.failed")
REQUEUE = Transition("T6", "requeue", _RUNNING, "queued", "worker", (HELD, WANTED), "job.requeued")
INTERRUPT = Transition("T6", "interrupt", _RUNNING, "queued", "worker", (HELD, WANTED), "job.interrupted")
EXPIRE = Transition(
    "T7", "expire_leases", _RUNNING, "queued", "reconciler", (HELD, SILENT, WANTED), "job.lease_expired"
)
GIVE_UP = Transition("T7", "expire_leases", _RUNNING, "failed", "reconciler", (HELD, SILENT, WANTED), "job.failed")
CANCEL = Transition("T8", "request_cancel", _QUEUED, "canceled", "client", (), "job.canceled")
ASK_TO_STOP = Transition("T8", "request_cancel", _RUNNING, "running", "client", (HELD, WANTED), "job.cancel_requested")
FINISH_CANCEL = Transition("T9", "finish_cancel", _RUNNING, "canceled", "worker", (HELD, UNWANTED), "job.canceled")
EXPIRE_CANCEL = Transition(
    "T9", "expire_leases", _RUNNING, "canceled", "reconciler", (HELD, SILENT, UNWANTED), "job.canceled"
)
MISS_DEADLINE = Transition(
    "T10", "expire_deadlines", _LIVE, "failed", "reconciler", (HELD, OVERDUE, NO_VALIDATION), "job.failed"
)
POSTPONE = Transition(
    "T10", "expire_deadlines", _LIVE, "queued", "reconciler", (HELD, OVERDUE, VALIDATION, WANTED), "job.postponed"
)
DEFER = Transition("T11", "defer_deadlines", _QUEUED, "queued", "operator, reconciler")
BRING_FORWARD = Transition("T12", "bring_forward", _QUEUED, "queued", "reconciler", (AHEAD,))
SPARE = Transition("T13", "spare_leases", _RUNNING, "running", "reconciler")
SHORTEN = Transition("T14", "shorten_leases", _RUNNING, "running", "reconciler")
TRANSITIONS = (
    SUBMIT, CLAIM, RENEW, PROGRESS, SUCCEED, FAIL, REQUEUE, INTERRUPT, EXPIRE, GIVE_UP, CANCEL, ASK_TO_STOP,
    FINISH_CANCEL, EXPIRE_CANCEL, MISS_DEADLINE, POSTPONE, DEFER, BRING_FORWARD, SPARE, SHORTEN,
)  # fmt: skip
# Built once: that takes longer than the database does for the answer.
_DRAWN = {"last_seq": Job.last_seq + 1, "row_version": Job.row_version + 1, "updated_at": db_now()}
_LOCKED = select(Job).where(Job.id == bindparam("job_id")).with_for_update().execution_options(populate_existing=True)


def locked(session: Session, job_id: str) -> Job | None:
    """The job's row as it is now, kept from others until the transaction ends."""
    return session.scalars(_LOCKED, {"job_id": job_id}).one_or_none()


def in_order(*conditions: ColumnElement[bool] | TextClause) -> ColumnElement[bool]:
    """Condition for a change of many jobs: those that meet these, held in the order of their ids, as by everybody who
    changes several: no two wait for each other.
    """
    return Job.id.in_(select(Job.id).where(*conditions).order_by(Job.id).with_for_update(key_share=True))


def move(
    session: Session, transition: Transition, job_id: str, held: int | None, data: dict[str, Any], **values: Any
) -> Job | None:
    """Do ``transition`` if its guards hold, with its event; what the job waited for is forgotten, or told anew.

    Args:
        session: of the transaction; the caller commits.
        transition: of the table.
        job_id: which job.
        held: the attempt that the caller holds or has seen; None where no guard asks for it.
        data: of the event.
        values: columns to set besides the state.

    Returns:
        The job as it is afterwards; None if a guard did not hold and nothing was changed.
    """
    changes = {"waiting": None, **values, "state": transition.target}
    job = touch(session, transition, job_id, held, **changes)
    if job is not None:
        told = {"name": transition.event, "state": job.state, **data}
        heard = events.record_state(session, job, told)
        settlement.tell_waiting(session, job)
        if heard:
            announcing.tell_job(session, job, verdict=data.get("verdict"), fallback=data.get("fallback"))
    return job


def touch(session: Session, transition: Transition, job_id: str, held: int | None, **values: Any) -> Job | None:
    """Set ``values`` if the guards of ``transition`` hold, and draw the number of the event that the caller records."""
    statement = _guarded(transition, job_id, held, values).returning(Job)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).one_or_none()


def note(session: Session, transition: Transition, job_id: str, held: int, **values: Any) -> events.EventKey | None:
    """As ``touch``, for what is done very often: the event's place comes back, not the row with all of its config."""
    statement = _guarded(transition, job_id, held, values).returning(Job.tenant_id, Job.id, Job.last_seq, Job.attempt)
    drawn = session.execute(statement, execution_options={"synchronize_session": False}).one_or_none()
    return None if drawn is None else events.EventKey(*drawn)


def fail(session: Session, transition: Transition, job_id: str, attempt: int, problem: Problem) -> Job | None:
    """End the job with a problem, by any transition that leads there."""
    document = problem.model_dump(mode="json")
    ended = {"lease_until": None, "error": document, "finished_at": db_now()}
    job = move(session, transition, job_id, attempt, {"error": document}, **ended)
    if job is not None:
        settlement.reject(session, job, problem)
    return job


def cancel(session: Session, transition: Transition, job: Job) -> Job | None:
    """End the job as canceled, by any transition that leads there."""
    now = db_now()
    asked_at = func.coalesce(Job.cancel_requested_at, now)
    ended = {"lease_until": None, "cancel_requested_at": asked_at, "finished_at": now}
    moved = move(session, transition, job.id, job.attempt, {}, **ended)
    if moved is not None:
        canceled = CanceledError("The validation was canceled.", hint="Create the object again.")
        settlement.reject(session, moved, canceled.problem())
    return moved


def put_back(
    session: Session,
    transition: Transition,
    job: Job,
    *,
    delay_seconds: float,
    charged: bool,
    reason: str,
    waiting: dict[str, Any] | None = None,
    deferred: bool = False,
) -> Job | None:
    """Queue the running job again, by any transition that does so; ``deferred``: its deadline is put off as long."""
    now = db_now()
    later = {}
    if deferred and job.deadline_at is not None:
        later = {"deadline_at": Job.deadline_at + (now + delay_seconds - _began_at(session, job))}
    return move(
        session,
        transition,
        job.id,
        job.attempt,
        {"reason": reason, "charged": charged, "delay_seconds": round(delay_seconds, 3)},
        lease_until=None,
        worker_id=None,
        dispatched_at=None,
        not_before=now + delay_seconds,
        queued_at=now,
        interruptions=Job.interruptions if charged else Job.interruptions + 1,
        waiting=waiting,
        stage=None,
        progress=None,
        **later,
    )


def _began_at(session: Session, job: Job) -> float:
    """When the attempt was claimed, in seconds since 1970: the moment of its first event, or now if that was ahead."""
    first = select(JobEvent.created_at, db_now()).where(JobEvent.job_id == job.id, JobEvent.attempt == job.attempt)
    claimed_at, now = session.execute(first.order_by(JobEvent.seq).limit(1)).one()
    return min(claimed_at.timestamp(), float(now))


def _guarded(transition: Transition, job_id: str, held: int | None, values: dict[str, Any]) -> Update:
    conditions: list[ColumnElement[bool]] = [Job.id == job_id, *transition.conditions(held)]
    return update(Job).where(*conditions).values(**values, **_DRAWN)
