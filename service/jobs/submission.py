"""How a request that was checked becomes a job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.contracts.errors import InvalidRequestError
from service.deps import AppState
from service.estimates import repository as estimates
from service.estimates.service import Estimated, finish_of_next
from service.hand_overs import repository as hand_overs
from service.hand_overs.asking import NewHandOver, prepared
from service.idempotency.answers import Answer
from service.jobs import events, repository, transitions
from service.jobs.checking import checked_request
from service.jobs.placement import Placement
from service.jobs.references import hold
from service.jobs.reuse import result_digest
from service.jobs.schemas import TERMINAL, JobCreate
from service.jobs.views import JobView, job_out, views
from service.principal import Principal
from service.quotas import repository as usage
from service.quotas import service as quotas
from service.settings import Settings
from service.tables import Job


@dataclass(frozen=True)
class Origin:
    """What a request was made of.

    Attributes:
        retry_of: the job that it repeats.
        cloned_from: the job whose request it changes.
    """

    retry_of: str | None = None
    cloned_from: str | None = None


@dataclass(frozen=True)
class Submission:
    """A request that may be stored.

    Attributes:
        asked: with ids for references.
        config: resolved, as JSON.
        digest: of all that the result follows from.
        placement: where the job goes.
        model: name and version.
        origin: what the request was made of.
        estimate: what the job will take, if that is known.
        finish_at: when it will end, from now on; None where nobody is told, see ``with_finish``.
        hand_over: where its results go.
    """

    asked: JobCreate
    config: dict[str, Any]
    digest: str
    placement: Placement
    model: tuple[str, int] | None
    origin: Origin
    estimate: Estimated | None
    hand_over: tuple[NewHandOver, ...] = ()
    finish_at: datetime | None = None


def checked_submission(
    session: Session, settings: Settings, tenant_id: str, body: JobCreate, origin: Origin
) -> Submission:
    """Check a request, and compute all that storing it takes.

    Raises:
        QuantmillError: something about it is wrong.
    """
    if body.reuse and body.hand_over:
        raise InvalidRequestError(
            "A job that was there before hands over nothing anew.",
            pointer="/hand_over",
            hint="Ask without hand_over, then POST /v1/jobs/{id}/hand-over for the job of the answer.",
        )
    found = checked_request(session, settings, tenant_id, body)
    config = found.asked.config.model_dump(mode="json")
    digest = result_digest(found.asked, found.named, config)
    model = None if found.named.model is None else (found.named.model.name, found.named.model.version)
    return Submission(
        found.asked,
        config,
        digest,
        found.placement,
        model,
        origin,
        found.estimate,
        prepared(settings, body.hand_over, "/hand_over"),
    )


def with_finish(session: Session, tenant_id: str, given: Submission) -> Submission:
    """The submission with the moment of its end, for an answer that tells it: the queue is looked through for that."""
    if given.estimate is None:
        return given
    queue, priority = given.placement.queue, given.asked.priority
    return replace(given, finish_at=finish_of_next(session, tenant_id, queue, priority, given.estimate))


def store_submission(app: AppState, session: Session, by: Principal, given: Submission) -> tuple[Answer, Job | None]:
    """Store what was checked; whether the model is in quarantine since then is asked by who begins the job.

    Returns:
        The answer, and the job that is to be run; None: one was there whose result will do.

    Raises:
        QuotaExceededError: the tenant has as many as it may.
        ModelNotFoundError, DatasetNotFoundError: something was deleted since it was checked.
    """
    hold(session, by.tenant_id, [given.asked])
    job, is_new = store_job(session, app.settings, by, given)
    if not is_new:
        return _reused(views(app, session, by.tenant_id, [job])[0]), None
    told = None if given.estimate is None else given.estimate.row["told"]
    return accepted(JobView(job, model=given.model, estimate=told, finish_at=given.finish_at)), job


def store_job(session: Session, settings: Settings, by: Principal, given: Submission) -> tuple[Job, bool]:
    """The job of a request that was checked, and whether it is a new one: else it was there, and its result will do.

    The caller holds what the request names, see ``references``.

    Raises:
        QuotaExceededError: the tenant has as many as it may.
    """
    there = result_there(session, by.tenant_id, given)
    if there is not None:
        return there, False
    quotas.admit_jobs(session, settings, by.tenant_id)
    job = _insert(session, settings, by, given)
    if given.estimate is not None:
        estimates.add(session, job, given.estimate.row)
    hand_overs.add(session, job, given.hand_over)
    for message in _notes(given.asked):
        events.append(session, job.id, 0, "log", {"level": "info", "message": message})
    return job, True


def result_there(session: Session, tenant_id: str, given: Submission) -> Job | None:
    """The job whose result will do, if the request says that one may."""
    if not given.asked.reuse:
        return None
    usage.hold(session, tenant_id)  # of two that ask at once, the second finds the first's
    return repository.same_result(session, tenant_id, given.digest)


def _insert(session: Session, settings: Settings, by: Principal, given: Submission) -> Job:
    asked = given.asked
    return transitions.submit(
        session,
        tenant_id=by.tenant_id,
        kind="quantize",
        queue=given.placement.queue,
        priority=asked.priority,
        size_class=given.placement.size_class,
        device=asked.device,
        model_id=asked.model_id,
        calibration_dataset_id=asked.calibration_dataset_id,
        evaluation_dataset_id=asked.evaluation_dataset_id,
        config=given.config,
        name=asked.name,
        labels=asked.labels,
        retry_of=given.origin.retry_of,
        cloned_from=given.origin.cloned_from,
        fingerprint=given.digest,
        deadline_seconds=settings.job_deadline_seconds,
        request_id=by.request_id,
    )


def _notes(asked: JobCreate) -> list[str]:
    """What the log of the job begins with."""
    told = [f"translated config: {note}" for note in asked.translation_notes]
    if asked.ranges_from is not None:
        told.append(f"tensor_ranges: the calibrated ranges of {asked.ranges_from} are taken over")
    return told


def accepted(view: JobView) -> Answer:
    """What is said of a job that was stored."""
    job = view.job
    body = job_out(view).model_dump(mode="json", by_alias=True)
    return Answer(202, body, {"Location": f"/v1/jobs/{job.id}", "Retry-After": "2", "ETag": f'"{job.row_version}"'})


def _reused(view: JobView) -> Answer:
    job = view.job
    body = job_out(view, reused=True).model_dump(mode="json", by_alias=True)
    return Answer(200 if job.state in TERMINAL else 202, body, {"Location": f"/v1/jobs/{job.id}"})
