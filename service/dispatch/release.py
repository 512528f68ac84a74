"""Releases jobs in fair order, as many as there are free slots."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.contracts.quota import Quota
from service.dispatch.repository import next_due
from service.dispatch.slots import FreeSlots, Started
from service.jobs import transitions
from service.quotas.service import running_limits
from service.tracing import Carrier


@dataclass(frozen=True)
class Released:
    """A job that was released for its next attempt."""

    id: str  # of the job
    tenant_id: str  # whose it is
    kind: str  # of job
    queue: str  # that it goes to
    size_class: str  # short or long
    attempt: int  # the number that the attempt will have
    seconds_left: float | None  # until the job's deadline; None: it has none
    trace_context: Carrier | None = None  # of its submission


def release(session: Session, free: FreeSlots, quota: Quota) -> list[Released]:
    """Mark jobs as released until no slot is free or no job is due; the caller commits, and sends them afterwards.

    Args:
        session: of a transaction beside which nobody else releases.
        free: slots.
        quota: of tenants that have no limits of their own.
    """
    found: list[Released] = []
    limits = running_limits(session, quota)
    while queues := free.queues():
        job_id = _next(session, free, queues, limits.full())
        if job_id is None:
            break
        row = transitions.mark_released(session, job_id)
        if row is None:
            break  # somebody holds it just now: the next round looks again
        job = Released(*row)
        found.append(job)
        free.start(Started(job.queue, job.tenant_id, job.size_class, 1))
        limits.started[job.tenant_id] += 1
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
