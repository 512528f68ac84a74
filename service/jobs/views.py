"""Views of jobs and events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.contracts.base import read_stored
from service.contracts.errors import Problem
from service.contracts.evaluation_report import ReportOutline
from service.deps import AppState
from service.estimates import repository as estimates
from service.estimates.service import finishes_of, shown
from service.jobs import repository
from service.jobs.naming import default_name
from service.jobs.repository import ReportDigest
from service.jobs.schemas import (
    TERMINAL,
    ArtifactLink,
    EventOut,
    JobLinks,
    JobListed,
    JobOut,
    Progress,
    ScheduledBy,
    Waiting,
)
from service.jobs.waiting import waiting_for
from service.tables import Artifact, Job, JobEvent, ScheduleRun
from service.tables.base import record_of
from service.tables.jobs import USERS_KINDS


def _progress(job: Job) -> Progress:
    """As the attempt last told; of a job that has succeeded, all."""
    told = read_stored(Progress, job.progress)
    return told.model_copy(update={"share": 1.0, "seconds_left": 0.0}) if job.state == "succeeded" else told


@dataclass(frozen=True)
class JobView:
    """A job with what is told beside its row."""

    job: Job  # the row
    result: ReportDigest | None = None  # of its report, if it has one
    artifacts: Sequence[Artifact] = ()  # what it produced
    waiting: Waiting | None = None  # why it does not start
    model: tuple[str, int] | None = None  # name and version of its model
    run: ScheduleRun | None = None  # of the schedule that has submitted it
    estimate: dict[str, Any] | None = None  # what it was expected to take, as it is stored
    finish_at: datetime | None = None  # when it will end

    @property
    def ended(self) -> bool:
        """It is neither queued nor running."""
        return self.job.state in TERMINAL

    @property
    def name(self) -> str:
        """As it was given, or the default one."""
        job = self.job
        if job.name is not None:
            return job.name
        model = f"{self.model[0]}@{self.model[1]}" if self.model else job.model_id or job.dataset_id or job.id
        return default_name(job.kind, model, preset=job.preset, algorithms=job.algorithms)


def job_out(view: JobView, *, reused: bool = False) -> JobOut:
    """A job with all that is told of it."""
    job = view.job
    return JobOut(**dict(job_listed(view)), config=job.config, reused_from=job.id if reused else None)


def job_listed(view: JobView) -> JobListed:
    """The same for lists: the config is not so much as read."""
    job, result = view.job, view.result
    path = f"/v1/jobs/{job.id}"
    name, version = view.model or (None, None)
    seconds = None
    if job.started_at is not None and job.finished_at is not None:
        seconds = max(0.0, (job.finished_at - job.started_at).total_seconds())
    return record_of(
        job,
        JobListed,
        name=view.name,
        state=job.shown_state,
        progress=None if job.progress is None else _progress(job),
        waiting=view.waiting,
        verdict=None if result is None else result.verdict,
        fallback=None if result is None else result.fallback,
        error=None if job.error is None else read_stored(Problem, job.error),
        model_name=name,
        model_version=version,
        figures=None if result is None or result.outline is None else read_stored(ReportOutline, result.outline),
        seconds=seconds,
        estimate=shown(view.estimate),
        estimated_finish_at=view.finish_at,
        scheduled=None if view.run is None else record_of(view.run, ScheduledBy, run_id=view.run.id),
        artifacts=[
            record_of(artifact, ArtifactLink, content=f"/v1/artifacts/{artifact.id}/content")
            for artifact in view.artifacts
        ],
        links=JobLinks(
            self=path,
            events=f"{path}/events",
            cancel=f"{path}/cancel",
            report=f"{path}/report",
            logs=f"{path}/logs",
            artifacts=f"{path}/artifacts",
            hand_over=f"{path}/hand-over",
        ),
    )


def default_name_of(job: JobListed) -> str:
    """The name that the job has where it was given none."""
    model = f"{job.model_name}@{job.model_version}"
    return default_name(job.kind, model, preset=job.preset, algorithms=job.algorithms)


def given_name(job: JobListed) -> str | None:
    """The name that the job was given; None: it has its default name."""
    return None if job.name == default_name_of(job) else job.name


def event_out(event: JobEvent) -> EventOut:
    """An event."""
    return record_of(event, EventOut)


def views(app: AppState, session: Session, tenant_id: str, jobs: list[Job]) -> list[JobView]:
    """The tenant's jobs with all that is told beside their rows."""
    # What a job produced is committed with its success, so the job has to be read first.
    done = [job.id for job in jobs if job.state == "succeeded"]
    results = repository.results(session, tenant_id, done) if done else {}
    artifacts = repository.artifacts(session, tenant_id, done) if done else {}
    waiting = waiting_for(session, jobs, watched_seconds=time.monotonic() - app.opened_at)
    named = repository.models_of(session, tenant_id, jobs)
    scheduled = repository.schedule_runs(session, tenant_id, jobs)
    expected = estimates.of_jobs(session, tenant_id, [job.id for job in jobs if job.kind in USERS_KINDS])
    finishes = finishes_of(session, jobs, expected)
    return [
        JobView(
            job,
            results.get(job.id),
            artifacts.get(job.id, ()),
            waiting.get(job.id),
            None if job.model_id is None else named.get(job.model_id),
            scheduled.get(job.id),
            expected.get(job.id),
            finishes.get(job.id),
        )
        for job in jobs
    ]
