"""How a request that was checked becomes a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from service.deps import Desk
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
    """

    asked: JobCreate
    config: dict[str, Any]
    digest: str
    placement: Placement
    model: tuple[str, int] | None
    origin: Origin


def checked_submission(
    session: Session, settings: Settings, tenant_id: str, body: JobCreate, origin: Origin
) -> Submission:
    """Check a request, and compute all that storing it takes.

    Raises:
        QuantmillError: something about it is wrong.
    """
    found = checked_request(session, settings, tenant_id, body)
    config = found.asked.config.model_dump(mode="json")
    digest = result_digest(found.asked, found.named, config)
    model = None if found.named.model is None else (found.named.model.name, found.named.model.version)
    return Submission(found.asked, config, digest, found.placement, model, origin)


def store_submission(desk: Desk, session: Session, by: Principal, given: Submission) -> tuple[Answer, Job | None]:
    """Store what was checked; whether the model is in quarantine since then is asked by who begins the job.

    Returns:
        The answer, and the job that is to be run; None: one was there whose result will do.
    """
    job, is_new = store_job(session, desk.settings, by, given)
    if not is_new:
        return _reused(views(desk, session, by.tenant_id, [job])[0]), None
    return _accepted(JobView(job, model=given.model)), job


def store_job(session: Session, settings: Settings, by: Principal, given: Submission) -> tuple[Job, bool]:
    """The job of a request that was checked, and whether it is a new one: else it was there, and its result will do.

    Raises:
        QuotaExceededError: the tenant has as many as it may.
        ModelNotFoundError, DatasetNotFoundError: something was deleted since it was checked.
    """
    hold(session, by.tenant_id, given.asked)
    there = result_there(session, by.tenant_id, given)
    if there is not None:
        return there, False
    quotas.admit_jobs(session, settings, by.tenant_id)
    job = _insert(session, settings, by, given)
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


def _accepted(view: JobView) -> Answer:
    job = view.job
    body = job_out(view).model_dump(mode="json", by_alias=True)
    return Answer(202, body, {"Location": f"/v1/jobs/{job.id}", "Retry-After": "2", "ETag": f'"{job.row_version}"'})


def _reused(view: JobView) -> Answer:
    job = view.job
    body = job_out(view, reused=True).model_dump(mode="json", by_alias=True)
    return Answer(200 if job.state in TERMINAL else 202, body, {"Location": f"/v1/jobs/{job.id}"})
