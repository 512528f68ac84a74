"""SQL statements for jobs and their results. Only ``service.jobs.transitions`` changes states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    String,
    and_,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
)
from sqlalchemy.orm import Session

from service.contracts.base import read_stored
from service.contracts.evaluation_report import EvaluationReport, ReportOutline
from service.contracts.regression import OfJob, RegressionGate
from service.contracts.report import Report
from service.db import db_now
from service.jobs.errors import JobNotFoundError
from service.pagination import Position
from service.quotas.repository import keep_submitted
from service.repository import find, owned, page
from service.tables import (
    Artifact,
    Attestation,
    Base,
    HandOver,
    Job,
    JobEstimate,
    JobEvent,
    JobSchedule,
    Model,
    ReportRow,
    ScheduleRun,
)
from service.tables.jobs import IS_USERS, LIVE_STATES

# What belongs to a job and goes with it. Whatever else refers to a job keeps it.
PARTS = (JobEvent, Artifact, Attestation, HandOver, JobEstimate, ReportRow)


@dataclass(frozen=True)
class JobQuery:
    """Filters of a list of jobs; ``state`` as it is shown, ``search`` a part of the name in any case."""

    kind: str | None = None
    state: str | None = None
    model_id: str | None = None
    name: str | None = None
    search: str | None = None
    preset: str | None = None
    verdict: str | None = None
    outcome: str | None = None  # as lists show it: collapsed, critical, or else the verdict
    created_after: datetime | None = None
    created_before: datetime | None = None
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AttemptStatus:
    """What an attempt looks for in its job's row again and again: whether it still has the job, and may go on."""

    state: str
    attempt: int
    cancel_requested: bool


def attempt_status(session: Session, job_id: str) -> AttemptStatus | None:
    """How the job stands, without its config, which may have megabytes; None: there is no such job."""
    columns = (Job.state, Job.attempt, Job.cancel_requested_at.is_not(None))
    found = session.execute(select(*columns).where(Job.id == job_id)).one_or_none()
    return None if found is None else AttemptStatus(*found)


def get(session: Session, tenant_id: str, job_id: str, *, pointer: str | None = None) -> Job:
    """The tenant's job.

    Raises:
        JobNotFoundError: the tenant has no such job; carries ``pointer``.
    """
    return find(session, Job, tenant_id, job_id, JobNotFoundError(job_id, pointer=pointer))


def list_page(
    session: Session, tenant_id: str, query: JobQuery, *, after: Position | None, limit: int
) -> tuple[list[Job], Position | None]:
    """One page of the tenant's quantize and evaluate jobs without their configs, newest first."""
    # the condition of the partial index, word for word
    conditions: list[ColumnElement[bool]] = [owned(Job, tenant_id), text(f"({IS_USERS})")]  # type: ignore[list-item]
    if query.state == "canceling":
        conditions += [Job.state == "running", Job.cancel_requested_at.is_not(None)]
    elif query.state == "running":
        conditions += [Job.state == "running", Job.cancel_requested_at.is_(None)]
    elif query.state is not None:
        conditions.append(Job.state == query.state)
    if query.search is not None:
        conditions.append(_name_contains(query.search, tenant_id))
    if query.verdict is not None:
        conditions.append(_with_report(tenant_id, ReportRow.verdict == query.verdict))
    if query.outcome is not None:
        # a process of the version before, which serves on while this one is rolled out, writes no outcome
        unnamed = and_(ReportRow.outcome.is_(None), ReportRow.verdict == query.outcome)
        conditions.append(_with_report(tenant_id, or_(ReportRow.outcome == query.outcome, unnamed)))
    if query.created_after is not None:
        conditions.append(Job.created_at > query.created_after)
    if query.created_before is not None:
        conditions.append(Job.created_at < query.created_before)
    conditions += [Job.labels[key].as_string() == value for key, value in query.labels.items()]
    equal = {"kind": query.kind, "model_id": query.model_id, "name": query.name, "preset": query.preset}
    return page(session, Job, conditions, after=after, limit=limit, without=(Job.config,), **equal)


def _shown_as(verdict: str, outline: ReportOutline) -> str:
    """By which word lists show a report; the order is that of ``service.reports.verdict.outcome``."""
    if outline.collapsed:
        return "collapsed"
    return "critical" if outline.critical_findings and verdict != "fail" else verdict


def _with_report(tenant_id: str, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return Job.id.in_(select(ReportRow.job_id).where(owned(ReportRow, tenant_id), condition))


def _name_contains(search: str, tenant_id: str) -> ColumnElement[bool]:
    """Whether a job's name, or the begin of its default name (model and preset), contains ``search`` in any case."""
    verb = case((Job.kind == "evaluate", "Evaluate "), else_="")
    preset = func.coalesce(", " + Job.preset, "")
    told = verb + Model.name + "@" + cast(Model.version, String) + preset
    of_model = select(Model.id).where(
        owned(Model, tenant_id), Model.id == Job.model_id, told.icontains(search, autoescape=True)
    )
    return or_(Job.name.icontains(search, autoescape=True), and_(Job.name.is_(None), of_model.exists()))


def add_report(session: Session, job: Job, report: Report | EvaluationReport) -> None:
    """Insert the report of the job's current attempt; there can be only one. An evaluation made nothing to attest."""
    is_evaluation = isinstance(report, EvaluationReport)
    outline = ReportOutline.of(report)
    session.execute(
        insert(ReportRow).values(
            tenant_id=job.tenant_id,
            job_id=job.id,
            attempt=job.attempt,
            verdict=report.verdict,
            fallback=None if isinstance(report, EvaluationReport) else report.returned,
            body=report.to_json_dict(),
            outcome=_shown_as(report.verdict, outline),
            outline=outline.model_dump(mode="json", by_alias=True),
            created_at=db_now(),
            attested_at=db_now() if is_evaluation else None,
        )
    )


def report(session: Session, tenant_id: str, job_id: str) -> ReportRow | None:
    """The report of the tenant's job with its body."""
    return session.scalar(select(ReportRow).where(ReportRow.job_id == job_id, owned(ReportRow, tenant_id)))


@dataclass(frozen=True)
class ReportDigest:
    """What lists tell of a job's report; ``outline`` is None for one that older code has written."""

    verdict: str
    fallback: str | None
    outline: dict[str, Any] | None


def results(session: Session, tenant_id: str, job_ids: Iterable[str]) -> dict[str, ReportDigest]:
    """What was found, by job id, for those of the tenant's jobs that have a report."""
    statement = select(ReportRow.job_id, ReportRow.verdict, ReportRow.fallback, ReportRow.outline)
    statement = statement.where(ReportRow.job_id.in_(list(job_ids)), owned(ReportRow, tenant_id))
    return {row.job_id: ReportDigest(row.verdict, row.fallback, row.outline) for row in session.execute(statement)}


def models_of(session: Session, tenant_id: str, jobs: Iterable[Job]) -> dict[str, tuple[str, int]]:
    """Name and version by model id, of the models that the jobs were given."""
    ids = {job.model_id for job in jobs if job.model_id is not None}
    statement = select(Model.id, Model.name, Model.version).where(Model.id.in_(ids), owned(Model, tenant_id))
    return {model_id: (name, version) for model_id, name, version in session.execute(statement)} if ids else {}


def artifacts(session: Session, tenant_id: str, job_ids: Iterable[str]) -> dict[str, list[Artifact]]:
    """Artifacts by job id, for those of the tenant's jobs that have any, in order of kind."""
    statement = select(Artifact).where(Artifact.job_id.in_(list(job_ids)), owned(Artifact, tenant_id))
    found: dict[str, list[Artifact]] = {}
    for artifact in session.scalars(statement.order_by(Artifact.kind)):
        found.setdefault(artifact.job_id, []).append(artifact)
    return found


def schedule_runs(session: Session, tenant_id: str, jobs: Iterable[Job]) -> dict[str, ScheduleRun]:
    """The last run of a schedule by job id, of the jobs that schedules have submitted."""
    ids = [job.id for job in jobs if job.kind == "quantize"]
    statement = select(ScheduleRun).where(ScheduleRun.job_id.in_(ids), owned(ScheduleRun, tenant_id))
    found = session.scalars(statement.order_by(ScheduleRun.id)) if ids else ()
    return {run.job_id: run for run in found if run.job_id is not None}


def hold(session: Session, tenant_id: str, job_id: str) -> Job:
    """The tenant's job as it is now; nobody else changes it until the commit. Others' rows are not even waited for.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    return find(session, Job, tenant_id, job_id, JobNotFoundError(job_id), lock="update")


def same_result(session: Session, tenant_id: str, fingerprint: str) -> Job | None:
    """The tenant's job with this fingerprint that has succeeded or may yet; succeeded and newer ones come first."""
    statement = select(Job).where(
        owned(Job, tenant_id), Job.fingerprint == fingerprint, Job.state.in_(("succeeded", *LIVE_STATES)),
        Job.cancel_requested_at.is_(None),
    )  # fmt: skip
    first = statement.order_by(Job.state != "succeeded", Job.created_at.desc(), Job.id.desc()).limit(1)
    return session.scalar(first)


def baseline_of(session: Session, tenant_id: str, job_id: str) -> str | None:
    """Id of a schedule whose runs are judged by this job: the last that it accepted, or one that its gate names."""
    named = cast(JobSchedule.gate, String).contains(job_id, autoescape=True)
    statement = select(JobSchedule.id).where(
        owned(JobSchedule, tenant_id), or_(JobSchedule.last_pass_job_id == job_id, named)
    )
    return session.scalar(statement.order_by(JobSchedule.id).limit(1))


def named_by_gates(session: Session) -> list[str]:
    """Ids of the jobs that gates of schedules name."""
    gates = session.scalars(select(JobSchedule.gate).where(cast(JobSchedule.gate, String).contains("job_id")))
    baselines = (one for gate in gates for one in read_stored(RegressionGate, gate).baselines)
    return sorted({one.job_id for one in baselines if isinstance(one, OfJob)})


def is_referred_to(session: Session, job_id: str) -> bool:
    """True if a row that is no part of the job refers to it."""
    return bool(session.scalar(select(or_(*references())).select_from(Job).where(Job.id == job_id)))


def references() -> list[ColumnElement[bool]]:
    """For each column of a table that refers to jobs and is none of their parts: some row there names this job.

    Read off the foreign keys, so that a table that is added later keeps its jobs.
    """
    own = {part.__table__ for part in PARTS}
    found: list[ColumnElement[bool]] = []
    for table in Base.metadata.sorted_tables:
        if table in own:
            continue
        for key in table.foreign_keys:
            if key.column.table is Job.__table__ and key.column.name == "id":
                other = table.alias()
                found.append(exists().where(and_(other.c[key.parent.name] == Job.id)))
    return found


def remove(session: Session, job_ids: Sequence[str]) -> None:
    """Forget jobs that have ended and nothing refers to, with their events, reports and artifacts.

    The files of their artifacts are collected once no other row names them.
    """
    keep_submitted(session, job_ids)
    for part in PARTS:
        session.execute(delete(part).where(part.job_id.in_(job_ids)))
    session.execute(delete(Job).where(Job.id.in_(job_ids)))
