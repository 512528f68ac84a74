"""Statements about jobs and what they produced. Changes of state are made by ``service.jobs.transitions`` alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, insert, select
from sqlalchemy.orm import Session

from service.contracts.report import Report
from service.db import db_now
from service.ids import is_id
from service.jobs.errors import JobNotFoundError
from service.pagination import Position
from service.repository import newest_first
from service.tables import Artifact, Job, ReportRow
from service.tenancy import owned


@dataclass(frozen=True)
class JobQuery:
    """Filters of a list of jobs; ``state`` as it is shown."""

    state: str | None = None
    model_id: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Standing:
    """What an attempt looks for in its job's row again and again: whether it still has the job, and may go on."""

    state: str
    attempt: int
    cancel_requested: bool


def standing(session: Session, job_id: str) -> Standing | None:
    """How the job stands, without its config, which may have megabytes; None: there is no such job."""
    columns = (Job.state, Job.attempt, Job.cancel_requested_at.is_not(None))
    found = session.execute(select(*columns).where(Job.id == job_id)).one_or_none()
    return None if found is None else Standing(*found)


def get(session: Session, tenant_id: str, job_id: str, *, pointer: str | None = None) -> Job:
    """The tenant's job.

    Raises:
        JobNotFoundError: the tenant has no such job; carries ``pointer``.
    """
    statement = select(Job).where(Job.id == job_id, owned(Job, tenant_id))
    job = session.scalar(statement) if is_id(job_id, "job") else None
    if job is None:
        raise JobNotFoundError(job_id, pointer=pointer)
    return job


def list_page(
    session: Session, tenant_id: str, query: JobQuery, *, after: Position | None, limit: int
) -> tuple[list[Job], Position | None]:
    """One page of the tenant's quantize jobs without their configs, newest first; see ``newest_first``."""
    conditions: list[ColumnElement[bool]] = [owned(Job, tenant_id), Job.kind == "quantize"]
    if query.state == "canceling":
        conditions += [Job.state == "running", Job.cancel_requested_at.is_not(None)]
    elif query.state == "running":
        conditions += [Job.state == "running", Job.cancel_requested_at.is_(None)]
    elif query.state is not None:
        conditions.append(Job.state == query.state)
    if query.model_id is not None:
        conditions.append(Job.model_id == query.model_id)
    if query.created_after is not None:
        conditions.append(Job.created_at > query.created_after)
    if query.created_before is not None:
        conditions.append(Job.created_at < query.created_before)
    conditions += [Job.labels[key].as_string() == value for key, value in query.labels.items()]
    return newest_first(session, Job, conditions, after, limit, without=(Job.config,))


def add_report(session: Session, job: Job, report: Report) -> None:
    """Insert the report of the job's current attempt; there can be only one."""
    session.execute(
        insert(ReportRow).values(
            job_id=job.id,
            attempt=job.attempt,
            verdict=report.verdict,
            body=report.to_json_dict(),
            created_at=db_now(),
        )
    )


def report(session: Session, job_id: str) -> ReportRow | None:
    """The job's report with its body."""
    return session.get(ReportRow, job_id)


def verdicts(session: Session, job_ids: Iterable[str]) -> dict[str, str]:
    """Verdict by job id, for those that have a report."""
    statement = select(ReportRow.job_id, ReportRow.verdict).where(ReportRow.job_id.in_(list(job_ids)))
    return {row.job_id: row.verdict for row in session.execute(statement)}


def artifacts(session: Session, job_ids: Iterable[str]) -> dict[str, list[Artifact]]:
    """Artifacts by job id, for those that have any, in order of kind."""
    statement = select(Artifact).where(Artifact.job_id.in_(list(job_ids))).order_by(Artifact.kind)
    found: dict[str, list[Artifact]] = {}
    for artifact in session.scalars(statement):
        found.setdefault(artifact.job_id, []).append(artifact)
    return found
