"""SQL statements of the worker and the reconciler that belong to no single resource."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Double, func, select, text, type_coerce
from sqlalchemy.orm import Session

from service.db import db_now
from service.repository import upsert
from service.tables import Job, LeaseRound
from service.tables.jobs import IS_QUEUED, IS_RUNNING, LIVE_STATES


def running_attempts(session: Session) -> set[tuple[str, int]]:
    """(job id, attempt) of every running job."""
    return {
        (job_id, attempt)
        for job_id, attempt in session.execute(select(Job.id, Job.attempt).where(Job.state == "running"))
    }


def tenant_if_released(session: Session, job_id: str, attempt: int) -> str | None:
    """Whose job it is, if it was released for this attempt; None for any other."""
    released = (Job.state == "queued", Job.attempt == attempt - 1, Job.dispatched_at.is_not(None))
    return session.scalar(select(Job.tenant_id).where(Job.id == job_id, *released))


def tenant_of_attempt(session: Session, job_id: str, attempt: int) -> str | None:
    """Whose job it is, if this attempt runs, or is the next one; None for any other."""
    runs = (Job.state == "running") & (Job.attempt == attempt)
    waits = (Job.state == "queued") & (Job.attempt == attempt - 1)
    return session.scalar(select(Job.tenant_id).where(Job.id == job_id, runs | waits))


def any_released(session: Session, queues: Collection[str], *, seconds_ago: float) -> bool:
    """Whether a job of these queues was released so long ago and is not claimed."""
    lying = (text(IS_QUEUED), Job.queue.in_(queues), Job.dispatched_at < db_now() - seconds_ago)
    return session.scalar(select(Job.id).where(*lying).limit(1)) is not None


def jobs_of_worker(session: Session, worker_id: str, tenant_id: str) -> int:
    """How many of the tenant's jobs run in a worker."""
    mine = (text(IS_RUNNING), Job.worker_id == worker_id, Job.tenant_id == tenant_id)
    return session.scalar(select(func.count()).select_from(Job).where(*mine)) or 0


def live_jobs(session: Session, job_ids: Collection[str]) -> set[str]:
    """Which of the ``job_ids`` are jobs that have not ended."""
    return set(session.scalars(select(Job.id).where(Job.id.in_(list(job_ids)), Job.state.in_(LIVE_STATES))))


def known_jobs(session: Session, job_ids: Collection[str]) -> set[str]:
    """Which of the ``job_ids`` are jobs of this installation, in whatever state."""
    return set(session.scalars(select(Job.id).where(Job.id.in_(list(job_ids)))))


class Round(NamedTuple):
    """The last round of any reconciler over the leases; moments in seconds since 1970, see ``LeaseRound``."""

    served_at: float
    spared_at: float | None


def last_round(session: Session) -> Round | None:
    """What reconcilers know of each other; None before the first of them."""
    columns = (type_coerce(column, Double) for column in (LeaseRound.served_at, LeaseRound.spared_at))
    found = session.execute(select(*columns)).one_or_none()
    return None if found is None else Round(*found)


def note_round(session: Session, made: Round) -> None:
    """Let every reconciler know of a round, also one that is started later."""
    upsert(session, LeaseRound, {"name": "leases", **made._asdict()}, made._asdict())
