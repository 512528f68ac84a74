"""Every way in which a job's row may change, as data: from which states, into which, by whom, and under which guards.

``rows.move`` and ``rows.touch`` build their one guarded UPDATE from these records, so that what stands here is what
the database is asked. The page docs/jobs.md is made from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sqlalchemy import ColumnElement, or_

from service.db import db_now
from service.tables import Job
from service.tables.jobs import UPLOAD_KINDS

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
    """One way in which a job's row may change.

    Attributes:
        name: as the reference of the state machine counts them.
        action: the function that does it.
        origins: states that it may start from; none: the row is made.
        target: the state afterwards.
        by: who may do it.
        guards: what must hold besides.
        event: name of the event that tells of it; None: it leaves no event of its own.
    """

    name: str
    action: str
    origins: tuple[str, ...]
    target: str
    by: Actor
    guards: tuple[TransitionGuard, ...] = ()
    event: str | None = None

    @lru_cache(maxsize=1024)  # noqa: B019 - the table is never forgotten  # building them takes long
    def conditions(self, attempt: int | None) -> tuple[ColumnElement[bool], ...]:
        """What the row must be like, for a caller who holds ``attempt``."""
        return (Job.state.in_(self.origins), *(guard.condition(attempt) for guard in self.guards))


HELD = TransitionGuard("the attempt is the caller's", lambda attempt: Job.attempt == attempt)
DUE = TransitionGuard("its time to start has come", lambda _: Job.not_before <= db_now())
# Both are moments of one clock: only where it was put back is this true, but for transactions that overlap.
AHEAD = TransitionGuard("it was queued by a clock that was ahead", lambda _: Job.queued_at > db_now() + OVERLAP_SECONDS)
IN_TIME = TransitionGuard(
    "its deadline has not passed", lambda _: or_(Job.deadline_at.is_(None), Job.deadline_at > db_now())
)
OVERDUE = TransitionGuard("its deadline has passed", lambda _: Job.deadline_at < db_now())
SILENT = TransitionGuard("its lease has run out", lambda _: Job.lease_until < db_now())
WANTED = TransitionGuard("no cancel was requested", lambda _: Job.cancel_requested_at.is_(None))
VALIDATION = TransitionGuard("it validates an upload", lambda _: Job.kind.in_(UPLOAD_KINDS))
NO_VALIDATION = TransitionGuard("it validates no upload", lambda _: Job.kind.not_in(UPLOAD_KINDS))
UNWANTED = TransitionGuard("a cancel was requested", lambda _: Job.cancel_requested_at.is_not(None))

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
