"""SQL statements for estimates and for the measurements of earlier jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Double, delete, insert, select, text, type_coerce
from sqlalchemy.orm import Session

from service.db import db_now
from service.repository import owned
from service.tables import Job, JobEstimate, JobTiming
from service.tables.jobs import IS_QUEUED, IS_RUNNING


class WaitingJob(NamedTuple):
    """A queued job; ``seconds``: that it will take, if that is known."""

    id: str
    tenant_id: str
    priority: int
    seconds: float | None


class Running(NamedTuple):
    """A job that runs; ``spent_seconds``: since its first start."""

    id: str
    seconds: float | None
    spent_seconds: float | None


def add(session: Session, job: Job, row: dict[str, Any]) -> None:
    """Store what a job is expected to take."""
    session.execute(insert(JobEstimate).values(tenant_id=job.tenant_id, job_id=job.id, **row))


def of_jobs(session: Session, tenant_id: str, job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What is told of jobs, by id."""
    statement = select(JobEstimate.job_id, JobEstimate.told)
    found = session.execute(statement.where(owned(JobEstimate, tenant_id), JobEstimate.job_id.in_(job_ids)))
    return {row.job_id: row.told for row in found}


def observe(session: Session, job: Job, *, stages: dict[str, float], memory_bytes: int, size_bytes: int) -> None:
    """A job that was estimated has succeeded: remember what it took."""
    row = session.get(JobEstimate, job.id)
    if row is None:
        return
    values = {
        "id": job.id,
        "tenant_id": job.tenant_id,
        "model_sha256": row.model_sha256,
        "recipe": row.recipe,
        "prior": row.prior,
        "stages": stages,
        "memory_bytes": memory_bytes,
        "size_bytes": size_bytes,
        "created_at": db_now(),
    }
    session.execute(insert(JobTiming).values(values))


def timings_of(session: Session, tenant_id: str, model_sha256: str, most: int) -> Sequence[JobTiming]:
    """What the newest jobs of a tenant with a model took."""
    statement = select(JobTiming).where(owned(JobTiming, tenant_id), JobTiming.model_sha256 == model_sha256)
    return session.scalars(statement.order_by(JobTiming.id.desc()).limit(most)).all()


def forget_timings(session: Session, keep: int) -> int:
    """Delete all timings but the newest; returns how many."""
    first = session.scalar(select(JobTiming.id).order_by(JobTiming.id.desc()).offset(keep).limit(1))
    if first is None:
        return 0
    gone = session.scalars(delete(JobTiming).where(JobTiming.id <= first).returning(JobTiming.id))
    return len(gone.all())


def queued(session: Session, queue: str, most: int) -> list[WaitingJob]:
    """The jobs of a queue that wait, in no order."""
    statement = (
        select(Job.id, Job.tenant_id, Job.priority, JobEstimate.seconds)
        .outerjoin(JobEstimate, JobEstimate.job_id == Job.id)
        .where(text(IS_QUEUED), Job.queue == queue)
        .limit(most)
    )
    return [WaitingJob(*row) for row in session.execute(statement)]


def running(session: Session, queue: str) -> list[Running]:
    """The jobs of a queue that run."""
    spent = db_now() - type_coerce(Job.started_at, Double)
    statement = (
        select(Job.id, JobEstimate.seconds, spent)
        .outerjoin(JobEstimate, JobEstimate.job_id == Job.id)
        .where(text(IS_RUNNING), Job.queue == queue)
    )
    return [Running(*row) for row in session.execute(statement)]
