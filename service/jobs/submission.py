"""Creates a job from a validated request."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.contracts.base import VERSION
from service.contracts.errors import InvalidRequestError
from service.contracts.evaluation import EvaluationSpec
from service.deps import AppState
from service.estimates import repository as estimates
from service.estimates.service import Estimated, finish_of_next
from service.hand_overs import repository as hand_overs
from service.hand_overs.asking import NewHandOver, prepared
from service.idempotency.answers import Answer
from service.jobs import events, repository, transitions
from service.jobs.checking import JobInputs, checked_request
from service.jobs.schemas import TERMINAL, JobCreate
from service.jobs.transitions import NewJob
from service.jobs.views import JobView, job_out, views
from service.names import repository as names
from service.names.kinds import DATASETS, MODELS
from service.names.repository import NamedInput
from service.principal import Principal
from service.quotas import repository as usage
from service.quotas import service as quotas
from service.settings import Settings
from service.tables import Job


@dataclass(frozen=True)
class Submission:
    """A request that may be stored, of a quantization or an evaluation."""

    job: NewJob  # its row, with ids for references and the config resolved, as JSON
    evaluation: EvaluationSpec  # what is measured
    named: tuple[NamedInput, ...]  # what has to be there when it is stored
    model: tuple[str, int] | None  # name and version of its model
    estimate: Estimated | None  # what the job will take, if that is known
    finish_at: datetime | None = None  # when it will end, from now on; None where nobody is told
    hand_over: tuple[NewHandOver, ...] = ()  # where its results go
    reuse: bool = False  # another job of the same fingerprint will do
    notes: tuple[str, ...] = ()  # what its log begins with

    def made_of(self, *, retry_of: str | None = None, cloned_from: str | None = None) -> Submission:
        """The same, of a request that repeats a job, or changes its request."""
        return replace(self, job=replace(self.job, retry_of=retry_of, cloned_from=cloned_from))


def checked_submission(
    session: Session,
    settings: Settings,
    tenant_id: str,
    body: JobCreate,
    *,
    hand_over: tuple[NewHandOver, ...] | None = None,
    finish: bool = False,
) -> Submission:
    """Check a request for a quantization, and compute all that storing it takes.

    Args:
        session: reads.
        settings: of the process.
        tenant_id: who asks.
        body: the request.
        hand_over: the targets of the request, where they are judged and sealed already.
        finish: tell when it would end: the queue is looked through for that.

    Raises:
        QuantmillError: something about it is wrong.
    """
    if body.reuse and body.hand_over:
        raise InvalidRequestError(
            "hand_over cannot be combined with reuse: an existing job does not hand over its results again.",
            pointer="/hand_over",
            hint="Send the request without hand_over, then POST /v1/jobs/{id}/hand-over for the returned job.",
        )
    found = checked_request(session, settings, tenant_id, body)
    asked, inputs, estimate = found.asked, found.inputs, found.estimate
    config = asked.config.model_dump(mode="json")
    notes = [f"translated config: {note}" for note in asked.translation_notes]
    if asked.ranges_from is not None:
        notes.append(f"tensor_ranges: the calibrated ranges of {asked.ranges_from} are used")
    finish_at = None
    if finish and estimate is not None:
        finish_at = finish_of_next(session, tenant_id, found.placement.queue, asked.priority, estimate)
    return Submission(
        NewJob(
            tenant_id,
            "quantize",
            queue=found.placement.queue,
            priority=asked.priority,
            size_class=found.placement.size_class,
            device=asked.device,
            model_id=inputs.ids.get("model_id"),
            calibration_dataset_id=inputs.ids.get("calibration_dataset_id"),
            evaluation_dataset_id=inputs.ids.get("evaluation_dataset_id"),
            config=config,
            name=asked.name,
            labels=asked.labels,
            fingerprint=_fingerprint(asked, inputs, config),
            deadline_seconds=settings.job_deadline_seconds,
        ),
        asked.config.evaluation,
        named=(
            *((MODELS if name == "model_id" else DATASETS, f"/{name}", row_id) for name, row_id in inputs.ids.items()),
            *((MODELS, "/config", graph) for graph in asked.config.graph_models),
        ),
        model=None if inputs.model_row is None else (inputs.model_row.name, inputs.model_row.version),
        estimate=estimate,
        finish_at=finish_at,
        hand_over=prepared(settings, body.hand_over, "/hand_over") if hand_over is None else hand_over,
        reuse=asked.reuse,
        notes=tuple(notes),
    )


def _fingerprint(asked: JobCreate, inputs: JobInputs, config: dict[str, Any]) -> str:
    """SHA-256 of all that a result follows from: bytes of model and data, the resolved config, device and engine.

    64 hexadecimal digits; two jobs that have it in common would give the same.
    """
    data = {
        role: None if row is None else (row.sha256, row.preprocessing)
        for role, row in (("calibration", inputs.calibration_row), ("evaluation", inputs.evaluation_row))
    }
    model = inputs.model_row
    followed = {
        "engine": VERSION,
        "device": asked.device,
        "model": None if model is None else sorted((file.path, file.sha256) for file in model.graph_files),
        **data,
        "config": config,
    }
    return hashlib.sha256(json.dumps(followed, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def store_submission(given: Submission, session: Session, app: AppState, by: Principal) -> tuple[Answer, Job | None]:
    """Store what was checked; whether the model is in quarantine since then is asked by who begins the job.

    Returns:
        The answer, and the job that is to be run; None: one was there whose result will do.

    Raises:
        QuotaError: the tenant has as many as it may.
        ModelNotFoundError, DatasetNotFoundError: something was deleted since it was checked.
    """
    names.hold(session, by.tenant_id, *given.named)
    job, is_new = store_job(session, app.settings, by, given)
    if is_new:
        told = None if given.estimate is None else given.estimate.row["told"]
        view = JobView(job, model=given.model, estimate=told, finish_at=given.finish_at)
    else:
        view = views(app, session, by.tenant_id, [job])[0]
    body = job_out(view, reused=not is_new).model_dump(mode="json", by_alias=True)
    location = {"Location": f"/v1/jobs/{job.id}"}
    if not is_new:
        return Answer(200 if job.state in TERMINAL else 202, body, location), None
    return Answer(202, body, {**location, "Retry-After": "2", "ETag": f'"{job.row_version}"'}), job


def store_job(session: Session, settings: Settings, by: Principal, given: Submission) -> tuple[Job, bool]:
    """The job of a request that was checked, and whether it is a new one: else it was there, and its result will do.

    The caller holds what the request names.

    Raises:
        QuotaError: the tenant has as many as it may.
    """
    there = same_result(session, given) if given.reuse else None
    if there is not None:
        return there, False
    quotas.admit_jobs(session, settings, by.tenant_id)
    job = transitions.submit(session, replace(given.job, request_id=by.request_id))
    if given.estimate is not None:
        estimates.add(session, job, given.estimate.row)
    hand_overs.add(session, job, given.hand_over)
    for message in given.notes:
        events.append(session, job.id, 0, "log", {"level": "info", "message": message})
    return job, True


def same_result(session: Session, given: Submission) -> Job | None:
    """The job that was there whose result will do."""
    usage.hold(session, given.job.tenant_id)  # of two that ask at once, the second finds the first's
    return repository.same_result(session, given.job.tenant_id, given.job.fingerprint or "")
