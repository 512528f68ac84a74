"""Rows of jobs and events as they are shown."""

from __future__ import annotations

from typing import Any

from service.contracts.errors import Problem
from service.jobs.schemas import ArtifactLink, EventOut, JobLinks, JobOut, Progress, ShownState
from service.tables import Artifact, Job, JobEvent


def shown_state(job: Job) -> ShownState:
    """The stored state, or canceling for a running job whose cancel was requested."""
    state: ShownState = job.state  # type: ignore[assignment]  # the column has a CHECK
    return "canceling" if state == "running" and job.cancel_requested_at is not None else state


def job_out(job: Job, verdict: str | None, artifacts: list[Artifact]) -> JobOut:
    """A job with its verdict and its artifacts."""
    path = f"/v1/jobs/{job.id}"
    return JobOut(
        id=job.id,
        kind=job.kind,
        name=job.name,
        labels=job.labels,
        state=shown_state(job),
        stage=job.stage,
        progress=None if job.progress is None else Progress.model_validate(job.progress),
        verdict=verdict,
        error=None if job.error is None else Problem.model_validate(job.error),
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        interruptions=job.interruptions,
        model_id=job.model_id,
        dataset_id=job.dataset_id,
        calibration_dataset_id=job.calibration_dataset_id,
        evaluation_dataset_id=job.evaluation_dataset_id,
        config=job.config,
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


def job_in_list(job: Job, verdict: str | None, artifacts: list[Artifact]) -> JobOut:
    """The same for lists: graphs within the config, which may take a megabyte each, are only told of."""
    shown = job_out(job, verdict, artifacts)
    return shown if shown.config is None else shown.model_copy(update={"config": _without_graphs(shown.config)})


def _without_graphs(config: dict[str, Any]) -> dict[str, Any]:
    evaluation = config.get("evaluation", {})
    metrics = [_without_graph(metric) for metric in evaluation.get("metrics", [])]
    algorithms = [
        {**entry, "losses": [_without_graph(loss) for loss in entry["losses"]]} if "losses" in entry else entry
        for entry in config.get("algorithms", [])
    ]
    shown = {**config, "evaluation": {**evaluation, "metrics": metrics}} if metrics else config
    return {**shown, "algorithms": algorithms} if algorithms else shown


def _without_graph(metric: dict[str, Any]) -> dict[str, Any]:
    text = metric.get("graph", {}).get("base64")
    if text is None:
        return metric
    return {**metric, "graph": {**metric["graph"], "base64": f"({len(text)} characters, see the job itself)"}}


def event_out(event: JobEvent) -> EventOut:
    """An event."""
    return EventOut(seq=event.seq, attempt=event.attempt, type=event.type, created_at=event.created_at, data=event.data)
