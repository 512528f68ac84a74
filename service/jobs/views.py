"""Rows of jobs and events as they are shown."""

from __future__ import annotations

from service.contracts.errors import Problem
from service.jobs.schemas import ArtifactLink, EventOut, JobLinks, JobListed, JobOut, Progress, ShownState, Waiting
from service.tables import Artifact, Job, JobEvent


def shown_state(job: Job) -> ShownState:
    """The stored state, or canceling for a running job whose cancel was requested."""
    state: ShownState = job.state  # type: ignore[assignment]  # the column has a CHECK
    return "canceling" if state == "running" and job.cancel_requested_at is not None else state


def _progress(job: Job) -> Progress | None:
    """As the attempt last told; of a job that has succeeded, all."""
    if job.progress is None:
        return None
    told = Progress.model_validate(job.progress)
    return told.model_copy(update={"share": 1.0, "seconds_left": 0.0}) if job.state == "succeeded" else told


def job_out(job: Job, verdict: str | None, artifacts: list[Artifact], waiting: Waiting | None = None) -> JobOut:
    """A job with its verdict and its artifacts."""
    return JobOut(**dict(job_listed(job, verdict, artifacts, waiting)), config=job.config)


def job_listed(job: Job, verdict: str | None, artifacts: list[Artifact], waiting: Waiting | None = None) -> JobListed:
    """The same for lists: the config is not so much as read."""
    path = f"/v1/jobs/{job.id}"
    return JobListed(
        id=job.id,
        kind=job.kind,
        name=job.name,
        labels=job.labels,
        state=shown_state(job),
        stage=job.stage,
        progress=_progress(job),
        waiting=waiting,
        verdict=verdict,
        error=None if job.error is None else Problem.model_validate(job.error),
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        priority=job.priority,
        device=job.device,
        queue=job.queue,
        size_class=job.size_class,
        interruptions=job.interruptions,
        model_id=job.model_id,
        dataset_id=job.dataset_id,
        calibration_dataset_id=job.calibration_dataset_id,
        evaluation_dataset_id=job.evaluation_dataset_id,
        preset=job.preset,
        algorithms=job.algorithms,
        artifacts=[
            ArtifactLink(
                id=artifact.id,
                kind=artifact.kind,
                filename=artifact.filename,
                size_bytes=artifact.size_bytes,
                content=f"/v1/artifacts/{artifact.id}/content",
            )
            for artifact in artifacts
        ],
        request_id=job.request_id,
        created_at=job.created_at,
        queued_at=job.queued_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        updated_at=job.updated_at,
        cancel_requested_at=job.cancel_requested_at,
        deadline_at=job.deadline_at,
        links=JobLinks(
            self=path,
            events=f"{path}/events",
            cancel=f"{path}/cancel",
            report=f"{path}/report",
            artifacts=f"{path}/artifacts",
        ),
    )


def event_out(event: JobEvent) -> EventOut:
    """An event."""
    return EventOut(seq=event.seq, attempt=event.attempt, type=event.type, created_at=event.created_at, data=event.data)
