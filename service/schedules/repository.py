"""SQL statements for schedules and runs. Writers of a run lock its schedule (``lock``, ``claim``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete as deletion
from sqlalchemy import exists, func, select, update
from sqlalchemy.orm import Session

from service import repository
from service.contracts.base import is_name
from service.db import db_now
from service.ids import is_id, new_id
from service.pagination import Position
from service.quotas import repository as usage
from service.repository import owned
from service.schedules.schemas import RunNotFoundError, ScheduleNameTakenError, ScheduleNotFoundError
from service.tables import Job, JobSchedule, ReportRow, ScheduleRun
from service.tables.batches import OPEN_STATES
from service.tables.jobs import LIVE_STATES

# A plan that was made so long after now was made by a clock that has been put back since.
_AHEAD_SECONDS = 30.0
_OPTIONS = {"synchronize_session": False, "populate_existing": True}


@dataclass(frozen=True)
class Plan:
    """When a schedule is due next, and when that is dealt with."""

    next_due_at: datetime
    fires_at: datetime

    def values(self) -> dict[str, Any]:
        """Of the row."""
        return {"next_due_at": self.next_due_at, "fires_at": self.fires_at, "planned_at": db_now()}


UNPLANNED: dict[str, Any] = {"next_due_at": None, "fires_at": None, "planned_at": None}


def planned(plan: Plan | None) -> dict[str, Any]:
    """Of the row; None: it is not due any more."""
    return UNPLANNED if plan is None else plan.values()


def create(session: Session, tenant_id: str, schedule_id: str, plan: Plan | None, **values: Any) -> JobSchedule:
    """Insert a schedule."""
    return repository.add(session, JobSchedule, id=schedule_id, tenant_id=tenant_id, **values, **planned(plan))


def get(session: Session, tenant_id: str, schedule_id: str, *, locked: bool = False) -> JobSchedule:
    """The tenant's schedule; ``locked``: kept from changes until the transaction ends.

    Raises:
        ScheduleNotFoundError: the tenant has no such schedule.
    """
    missing = ScheduleNotFoundError(schedule_id)
    return repository.find(session, JobSchedule, tenant_id, schedule_id, missing, lock="update" if locked else None)


def called(session: Session, tenant_id: str, text: str) -> JobSchedule:
    """The tenant's schedule that an id or a name means.

    Raises:
        ScheduleNotFoundError: the tenant has none that is called so.
    """
    if is_id(text, "sch"):
        return get(session, tenant_id, text)
    row = _of_name(session, tenant_id, text) if is_name(text) else None
    if row is None:
        raise ScheduleNotFoundError(text)
    return row


def hold_names(session: Session, tenant_id: str, name: str | None, *, but: str) -> None:
    """Until the transaction ends, nobody else of the tenant takes a name.

    Args:
        session: in a write transaction.
        tenant_id: whose.
        name: that is to be taken; None: none is.
        but: the schedule that is to have it.

    Raises:
        ScheduleNameTakenError: another schedule has it.
    """
    if name is None:
        return
    usage.hold(session, tenant_id)
    row = _of_name(session, tenant_id, name)
    if row is not None and row.id != but:
        raise ScheduleNameTakenError(name, row.id)


def _of_name(session: Session, tenant_id: str, name: str) -> JobSchedule | None:
    return session.scalar(select(JobSchedule).where(owned(JobSchedule, tenant_id), JobSchedule.name == name))


def list_page(
    session: Session, tenant_id: str, *, after: Position | None, limit: int
) -> tuple[list[JobSchedule], Position | None]:
    """One page of the tenant's schedules, newest first, without their templates, which may be large."""
    mine = [owned(JobSchedule, tenant_id)]
    return repository.page(session, JobSchedule, mine, after=after, limit=limit, without=[JobSchedule.template])


def claim(session: Session, seen: JobSchedule, plan: Plan | None) -> JobSchedule | None:
    """Take the due time that was seen from the schedule and give it the next one; None if somebody else was faster.

    Until the transaction ends, nobody else changes the schedule.
    """
    statement = (
        update(JobSchedule)
        .where(
            JobSchedule.id == seen.id, JobSchedule.row_version == seen.row_version, JobSchedule.fires_at.is_not(None)
        )
        .values(**planned(plan), row_version=JobSchedule.row_version + 1, updated_at=db_now())
        .returning(JobSchedule)
    )
    return session.scalar(statement, execution_options=_OPTIONS)


def last_runs(session: Session, tenant_id: str, schedule_ids: Sequence[str]) -> dict[str, ScheduleRun]:
    """The newest run of each schedule that has any, by the id of the schedule."""
    mine = (owned(ScheduleRun, tenant_id), ScheduleRun.schedule_id.in_(schedule_ids))
    newest = select(func.max(ScheduleRun.id)).where(*mine).group_by(ScheduleRun.schedule_id)
    rows = session.scalars(select(ScheduleRun).where(ScheduleRun.id.in_(newest)))
    return {row.schedule_id: row for row in rows}


def remove(session: Session, schedule_id: str) -> None:
    """Delete a schedule that the caller has locked, with its history."""
    session.execute(deletion(ScheduleRun).where(ScheduleRun.schedule_id == schedule_id))
    session.execute(deletion(JobSchedule).where(JobSchedule.id == schedule_id))


def due(session: Session, limit: int) -> list[str]:
    """Ids of schedules that are due, the latest first in their turn."""
    statement = select(JobSchedule.id).where(JobSchedule.fires_at.is_not(None), JobSchedule.fires_at <= db_now())
    return list(session.scalars(statement.order_by(JobSchedule.fires_at, JobSchedule.id).limit(limit)))


def planned_ahead(session: Session, limit: int) -> list[str]:
    """Ids of schedules whose plan was made by a clock that has been put back since."""
    ahead = JobSchedule.planned_at > db_now() + _AHEAD_SECONDS
    statement = select(JobSchedule.id).where(JobSchedule.fires_at.is_not(None), ahead)
    return list(session.scalars(statement.order_by(JobSchedule.id).limit(limit)))


def look_up(session: Session, schedule_id: str) -> JobSchedule | None:
    """A schedule, whosever it is: for reconcilers."""
    return session.get(JobSchedule, schedule_id, populate_existing=True)


def lock(session: Session, schedule_id: str) -> JobSchedule | None:
    """The same, kept from changes until the transaction ends."""
    return session.get(JobSchedule, schedule_id, populate_existing=True, with_for_update=True)


def add_run(session: Session, schedule: JobSchedule, **values: Any) -> ScheduleRun:
    """Insert a run of a schedule that the caller holds."""
    values = {"id": new_id("run"), "tenant_id": schedule.tenant_id, "schedule_id": schedule.id, "missed": 0, **values}
    values["finished_at"] = None if values["state"] in OPEN_STATES else db_now()
    return repository.add(session, ScheduleRun, **values)


def change_run(session: Session, run: ScheduleRun, **values: Any) -> ScheduleRun:
    """Set ``values``, the state among them, on a run whose schedule the caller holds."""
    if values["state"] not in OPEN_STATES:
        values["finished_at"] = db_now()
    return repository.change(session, ScheduleRun, run.id, **values)


def is_dealt_with(session: Session, schedule_id: str, due_at: datetime) -> bool:
    """Whether there is a run of the due time: a clock that was put back comes to it again."""
    there = exists().where(ScheduleRun.schedule_id == schedule_id, ScheduleRun.due_at == due_at)
    return bool(session.scalar(select(there)))


def open_runs(session: Session, schedule_id: str) -> list[ScheduleRun]:
    """Runs of the schedule that wait, or have not been judged, the oldest first."""
    statement = select(ScheduleRun).where(ScheduleRun.schedule_id == schedule_id, ScheduleRun.state.in_(OPEN_STATES))
    return list(session.scalars(statement.order_by(ScheduleRun.id), execution_options={"populate_existing": True}))


def live_jobs(session: Session, tenant_id: str, runs: Sequence[ScheduleRun]) -> list[str]:
    """Ids of those of the runs' jobs that are queued or running."""
    ids = [run.job_id for run in runs if run.job_id is not None]
    statement = select(Job.id).where(owned(Job, tenant_id), Job.id.in_(ids), Job.state.in_(LIVE_STATES))
    return list(session.scalars(statement.order_by(Job.id))) if ids else []


def waiting(session: Session, limit: int) -> list[str]:
    """Ids of schedules with a run that waits and none that is running."""
    others = select(ScheduleRun.schedule_id).where(ScheduleRun.state == "running")
    statement = select(ScheduleRun.schedule_id).where(
        ScheduleRun.state == "waiting", ScheduleRun.schedule_id.not_in(others)
    )
    return list(session.scalars(statement.distinct().order_by(ScheduleRun.schedule_id).limit(limit)))


def ended(session: Session, limit: int) -> list[str]:
    """Ids of runs that are to be judged: their jobs have ended, or are gone."""
    alive = exists().where(Job.id == ScheduleRun.job_id, Job.state.in_(LIVE_STATES))
    statement = select(ScheduleRun.id).where(ScheduleRun.state == "running", ~alive)
    return list(session.scalars(statement.order_by(ScheduleRun.id).limit(limit)))


def job_of(session: Session, run: ScheduleRun) -> Job | None:
    """The job of a run, if it is still there."""
    statement = select(Job).where(owned(Job, run.tenant_id), Job.id == run.job_id)
    return session.scalar(statement, execution_options={"populate_existing": True})


def look_up_run(session: Session, run_id: str) -> ScheduleRun | None:
    """A run, whosever it is: for reconcilers."""
    return session.get(ScheduleRun, run_id, populate_existing=True)


def runs_page(
    session: Session, tenant_id: str, schedule_id: str, *, state: str | None, after: Position | None, limit: int
) -> tuple[list[ScheduleRun], Position | None]:
    """One page of a schedule's runs, newest first."""
    of_schedule = [owned(ScheduleRun, tenant_id), ScheduleRun.schedule_id == schedule_id]
    return repository.page(session, ScheduleRun, of_schedule, after=after, limit=limit, state=state)


def run_of(session: Session, tenant_id: str, schedule_id: str, run_id: str) -> ScheduleRun:
    """One run of a schedule.

    Raises:
        RunNotFoundError: it has no such run.
    """
    return repository.find(
        session, ScheduleRun, tenant_id, run_id, RunNotFoundError(schedule_id, run_id), schedule_id=schedule_id
    )


def last_accepted(session: Session, tenant_id: str, schedule_id: str, model_id: str) -> str | None:
    """The job of the schedule's last accepted run of a model."""
    statement = select(ScheduleRun.job_id).where(
        owned(ScheduleRun, tenant_id),
        ScheduleRun.schedule_id == schedule_id,
        ScheduleRun.state == "passed",
        ScheduleRun.model_id == model_id,
    )
    return session.scalar(statement.order_by(ScheduleRun.id.desc()).limit(1))


def newest_succeeded(session: Session, tenant_id: str, model_id: str, *, but: str, limit: int) -> list[str]:
    """The newest succeeded quantizations of a model, other than that job, and but for those that a gate has refused:
    their own, or that of a schedule.
    """
    refused = select(ScheduleRun.job_id).where(
        owned(ScheduleRun, tenant_id), ScheduleRun.job_id == Job.id, ScheduleRun.state == "failed"
    )
    held = select(ReportRow.job_id).where(ReportRow.job_id == Job.id, ReportRow.verdict.in_(("pass", "none")))
    own = (owned(Job, tenant_id), Job.model_id == model_id, Job.id != but, ~refused.exists(), held.exists())
    statement = select(Job.id).where(*own, Job.kind == "quantize", Job.state == "succeeded")
    return list(session.scalars(statement.order_by(Job.id.desc()).limit(limit)))


def configs(session: Session, tenant_id: str, job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Resolved configs of jobs, by id."""
    statement = select(Job.id, Job.config).where(owned(Job, tenant_id), Job.id.in_(job_ids))
    return {row.id: row.config or {} for row in session.execute(statement)}
