"""What schedules look like from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.contracts.regression import ClauseResult, RegressionGate
from service.schedules.schemas import RunLinks, RunOut, ScheduleLinks, ScheduleListed, ScheduleOut
from service.tables import JobSchedule, ScheduleRun


def etag(row: JobSchedule) -> str:
    """Entity tag: changes whenever the schedule does, also by being due."""
    return f'"{row.row_version}"'


def location(row: JobSchedule) -> str:
    """Where the schedule lives."""
    return f"/v1/schedules/{row.id}"


def schedule_listed(row: JobSchedule) -> ScheduleListed:
    """The schedule for lists: the template is not so much as read."""
    path = location(row)
    return ScheduleListed(
        id=row.id,
        name=row.name,
        cron=row.cron,
        timezone=row.timezone,
        overlap=row.overlap,
        misfire=row.misfire,
        misfire_grace_seconds=row.misfire_grace_seconds,
        jitter_seconds=row.jitter_seconds,
        skip_unchanged=row.skip_unchanged,
        gate=RegressionGate.model_validate(row.gate),
        promote_to=row.promote_to,
        paused_at=row.paused_at,
        next_due_at=row.next_due_at,
        fires_at=row.fires_at,
        last_pass_job_id=row.last_pass_job_id,
        created_by=row.created_by,
        row_version=row.row_version,
        created_at=row.created_at,
        updated_at=row.updated_at,
        links=ScheduleLinks(self=path, runs=f"{path}/runs"),
    )


def schedule_out(row: JobSchedule, warnings: Sequence[str] = ()) -> ScheduleOut:
    """The schedule as it is shown."""
    return ScheduleOut(**dict(schedule_listed(row)), template=row.template, warnings=list(warnings))


def run_out(row: ScheduleRun) -> RunOut:
    """A run as it is shown."""
    return RunOut(
        id=row.id,
        schedule_id=row.schedule_id,
        due_at=row.due_at,
        trigger=row.trigger,
        state=row.state,
        reason=row.reason,
        detail=row.detail,
        missed=row.missed,
        job_id=row.job_id,
        model_id=row.model_id,
        verdict=row.verdict,
        fallback=row.fallback,
        problem=row.problem,
        clauses=[ClauseResult.model_validate(clause) for clause in row.clauses or ()],
        promoted_to=row.promoted_to,
        created_at=row.created_at,
        updated_at=row.updated_at,
        finished_at=row.finished_at,
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
