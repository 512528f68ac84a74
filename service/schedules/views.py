"""Views of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.contracts.base import read_stored
from service.contracts.regression import ClauseResult, RegressionGate
from service.schedules.schemas import RunLinks, RunOut, ScheduleLinks, ScheduleListed, ScheduleOut
from service.tables import JobSchedule, ScheduleRun
from service.tables.base import record_of


def location(row: JobSchedule) -> str:
    """Where the schedule lives."""
    return f"/v1/schedules/{row.id}"


def schedule_listed(row: JobSchedule) -> ScheduleListed:
    """The schedule for lists: the template is not so much as read."""
    path = location(row)
    return record_of(
        row,
        ScheduleListed,
        gate=read_stored(RegressionGate, row.gate),
        links=ScheduleLinks(self=path, runs=f"{path}/runs"),
    )


def schedule_out(row: JobSchedule, warnings: Sequence[str] = ()) -> ScheduleOut:
    """The schedule as it is shown."""
    return ScheduleOut(**dict(schedule_listed(row)), template=row.template, warnings=list(warnings))


def run_out(row: ScheduleRun) -> RunOut:
    """A run as it is shown."""
    return record_of(
        row,
        RunOut,
        clauses=[read_stored(ClauseResult, clause) for clause in row.clauses or ()],
        links=RunLinks(
            schedule=f"/v1/schedules/{row.schedule_id}",
            job=None if row.job_id is None else f"/v1/jobs/{row.job_id}",
        ),
    )


def event_data(run: ScheduleRun, name: str) -> dict[str, Any]:
    """What endpoints are told of a run."""
    return {
        "id": run.schedule_id,
        "state": run.state,
        "verdict": run.verdict,
        "fallback": run.fallback,
        "name": name,
        "run_id": run.id,
        "due_at": run.due_at.isoformat(),
        "job_id": run.job_id,
        "model_id": run.model_id,
        "reason": run.reason,
        "detail": run.detail,
        "promoted_to": run.promoted_to,
        "clauses": run.clauses or [],
    }
