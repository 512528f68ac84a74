"""The state machine of jobs. Nothing else changes ``Job.state``.

Every transition is one guarded UPDATE: it names the states it comes from, and the attempt that holds the lease where a
worker asks; ``table`` has them all. If a guard does not hold, nothing is changed and the caller is told. The event is
written in the same transaction; the caller commits.
"""

from service.jobs.transitions.attempts import (
    MAX_ATTEMPTS,
    Renewal,
    backoff_seconds,
    claim,
    fail,
    finish_cancel,
    interrupt,
    record_progress,
    renew,
    requeue,
    succeed,
)
from service.jobs.transitions.client import NewJob, rename, request_cancel, submit
from service.jobs.transitions.expiry import (
    LATE_VALIDATION,
    WORKERS_LOST,
    bring_forward,
    defer_deadlines,
    expire_deadlines,
    expire_leases,
    queued_ahead,
)
from service.jobs.transitions.releasing import (
    any_lost,
    leased_ahead,
    mark_released,
    not_sent,
    shorten_leases,
    spare_leases,
    take_back,
    try_to_write,
)

__all__ = [
    "LATE_VALIDATION",
    "MAX_ATTEMPTS",
    "WORKERS_LOST",
    "NewJob",
    "Renewal",
    "any_lost",
    "backoff_seconds",
    "bring_forward",
    "claim",
    "defer_deadlines",
    "expire_deadlines",
    "expire_leases",
    "fail",
    "finish_cancel",
    "interrupt",
    "leased_ahead",
    "mark_released",
    "not_sent",
    "queued_ahead",
    "record_progress",
    "rename",
    "renew",
    "request_cancel",
    "requeue",
    "shorten_leases",
    "spare_leases",
    "submit",
    "succeed",
    "take_back",
    "try_to_write",
]
