"""Statements of the worker and the reconciler that belong to no single noun."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.tables import Job
from service.tables.jobs import LIVE_STATES


def running_attempts(session: Session) -> set[tuple[str, int]]:
    """(job id, attempt) of every running job."""
    return {
        (job_id, attempt)
        for job_id, attempt in session.execute(select(Job.id, Job.attempt).where(Job.state == "running"))
    }


def tenant_of(session: Session, job_id: str) -> str | None:
    """Whose job it is; None for one that is not there."""
    return session.scalar(select(Job.tenant_id).where(Job.id == job_id))


def live_jobs(session: Session, job_ids: Collection[str]) -> set[str]:
    """Which of the ``job_ids`` are jobs that have not ended."""
    return set(session.scalars(select(Job.id).where(Job.id.in_(list(job_ids)), Job.state.in_(LIVE_STATES))))


def known_jobs(session: Session, job_ids: Collection[str]) -> set[str]:
    """Which of the ``job_ids`` are jobs of this installation, in whatever state."""
    return set(session.scalars(select(Job.id).where(Job.id.in_(list(job_ids)))))
