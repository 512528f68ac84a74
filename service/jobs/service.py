"""Jobs: checked before anything is stored, then job, event and idempotency key in one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import RootModel
from sqlalchemy.orm import Session

from service.audit.service import note
from service.contracts.errors import QuantmillError
from service.contracts.http_errors import TransientError
from service.contracts.references import SIGN
from service.contracts.report.outline import ReportOutline
from service.deps import AppState
from service.estimates.service import finish_of_next
from service.idempotency.answers import Answer
from service.idempotency.service import NoBody, Work, submit_checked
from service.jobs import events, repository, transitions
from service.jobs.checking import checked_request, warnings_of
from service.jobs.evaluations.checking import checked_evaluation
from service.jobs.evaluations.submission import changed_evaluation, same_evaluation, store_evaluation
from service.jobs.repeats import changed_request, same_request
from service.jobs.repository import JobQuery
from service.jobs.schemas import TERMINAL, JobCreate, JobValidate, JobValidated
from service.jobs.submission import Origin, checked_submission, store_submission, with_finish
from service.jobs.views import JobView, shown_state, views
from service.names.kinds import MODELS
from service.names.service import identify
from service.pagination import Position
from service.principal import Principal
from service.tables import JobEvent, ReportRow


class ReportNotReadyError(TransientError):
    """The job has not ended yet."""

    code = "report-not-ready"
    title = "The report is not there yet"
    status = 409
    retry_after_seconds = 2


class ReportNotFoundError(QuantmillError):
    """The job ended without a report."""

    code = "report-not-found"
    title = "The job has no report"
    status = 404


def create(app: AppState, by: Principal, body: JobCreate, *, key: str | None) -> Answer:
    """Store a job and have it run; with a key known from before, answer as then.

    Args:
        app: of the process.
        by: who asks.
        body: the request.
        key: its Idempotency-Key.

    Raises:
        QuantmillError: something about the request is wrong; nothing was stored.
    """

    def work_of(session: Session) -> Work:
        given = checked_submission(session, app.settings, by.tenant_id, body, Origin())
        told = with_finish(session, by.tenant_id, given)
        return lambda writing: store_submission(app, writing, by, told)

    return submit_checked(app, by, "POST /v1/jobs", key, body, work_of)


def retry(app: AppState, by: Principal, job_id: str, *, key: str | None) -> Answer:
    """Ask for a job that has ended once more, unchanged.

    Raises:
        JobNotFoundError: the tenant has no such job.
        JobNotEndedError: it is still queued or running.
        NotRepeatableError: it was no client's request, or its config is no longer accepted.
        QuantmillError: as for ``create``.
    """

    def work_of(session: Session) -> Work:
        job = repository.get(session, by.tenant_id, job_id)
        if job.kind == "evaluate":
            again = checked_evaluation(
                session, app.settings, by.tenant_id, same_evaluation(job), Origin(retry_of=job_id)
            )
            return lambda writing: store_evaluation(app, writing, by, again)
        body = same_request(job)
        given = checked_submission(session, app.settings, by.tenant_id, body, Origin(retry_of=job_id))
        told = with_finish(session, by.tenant_id, given)
        return lambda writing: store_submission(app, writing, by, told)

    return submit_checked(app, by, f"POST /v1/jobs/{job_id}/retry", key, NoBody(), work_of)


def clone(app: AppState, by: Principal, job_id: str, patch: dict[str, Any], *, key: str | None) -> Answer:
    """Ask for what a job was asked for, with changes.

    Raises:
        JobNotFoundError: the tenant has no such job.
        NotRepeatableError: it was no client's request.
        QuantmillError: as for ``create``.
    """

    def work_of(session: Session) -> Work:
        job = repository.get(session, by.tenant_id, job_id)
        if job.kind == "evaluate":
            asked, origin = changed_evaluation(job, patch), Origin(cloned_from=job_id)
            changed = checked_evaluation(session, app.settings, by.tenant_id, asked, origin)
            return lambda writing: store_evaluation(app, writing, by, changed)
        body = changed_request(job, patch)
        given = checked_submission(session, app.settings, by.tenant_id, body, Origin(cloned_from=job_id))
        told = with_finish(session, by.tenant_id, given)
        return lambda writing: store_submission(app, writing, by, told)

    return submit_checked(app, by, f"POST /v1/jobs/{job_id}/clone", key, RootModel(patch), work_of)


def check(app: AppState, tenant_id: str, body: JobValidate) -> JobValidated:
    """Check a request without storing anything.

    Raises:
        QuantmillError: as for ``create``.
    """
    with app.database.read() as session:
        found = checked_request(session, app.settings, tenant_id, body)
        finish_at = None
        if found.estimate is not None:
            finish_at = finish_of_next(session, tenant_id, found.placement.queue, body.priority, found.estimate)
    return JobValidated(
        config=found.asked.config,
        warnings=[*warnings_of(found.asked), *found.placement.warnings],
        device=found.placement.device,
        queue=found.placement.queue,
        size_class=found.placement.size_class,
        estimate=None if found.estimate is None else found.estimate.told,
        estimated_finish_at=finish_at,
    )


def get(app: AppState, tenant_id: str, job_id: str) -> JobView:
    """The job with what it produced.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with app.database.read() as session:
        return views(app, session, tenant_id, [repository.get(session, tenant_id, job_id)])[0]


def outlines(app: AppState, tenant_id: str, job_ids: Iterable[str]) -> dict[str, ReportOutline]:
    """What lists tell of reports, by job id, for those of the tenant's jobs that have one of this form."""
    with app.database.read() as session:
        found = repository.results(session, tenant_id, job_ids)
    return {
        job_id: ReportOutline.model_validate(result.outline)
        for job_id, result in found.items()
        if result.outline is not None
    }


def list_page(
    app: AppState, tenant_id: str, query: JobQuery, *, after: Position | None, limit: int
) -> tuple[list[JobView], Position | None]:
    """One page of quantize and evaluate jobs, newest first, and the position to go on from."""
    with app.database.read() as session:
        jobs, last = repository.list_page(session, tenant_id, query, after=after, limit=limit)
        return views(app, session, tenant_id, jobs), last


def filtered_model(app: AppState, tenant_id: str, text: str) -> str:
    """The id of the model whose jobs are asked for, by its id or by a reference; an id that is nobody's has no jobs.

    Raises:
        ModelNotFoundError: a reference names nothing.
        ModelNotReadyError, ModelRejectedError: ``NAME@latest``, and no version is ready.
    """
    return identify(app, MODELS, tenant_id, text, query="model_id") if SIGN in text else text


def cancel(app: AppState, by: Principal, job_id: str) -> JobView:
    """Cancel a queued job, ask a running one to stop, leave a finished one alone.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with app.database.write() as session:
        job = transitions.request_cancel(session, by.tenant_id, job_id)
        note(session, by, "job.cancel", job.id)
        return views(app, session, by.tenant_id, [job])[0]


def log_after(app: AppState, tenant_id: str, job_id: str, seq: int, limit: int) -> tuple[str, list[JobEvent]]:
    """The job's state as it is shown, and its events with numbers above ``seq``.

    The state is read first: if it is terminal, no event can follow those that are returned.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with app.database.read() as session:
        state = shown_state(repository.get(session, tenant_id, job_id))
        return state, events.list_after(session, tenant_id, job_id, seq, limit)


def report(app: AppState, tenant_id: str, job_id: str) -> ReportRow:
    """The report of a succeeded job.

    Raises:
        JobNotFoundError: the tenant has no such job.
        ReportNotReadyError: it has not ended.
        ReportNotFoundError: it ended without a report.
    """
    with app.database.read() as session:
        job = repository.get(session, tenant_id, job_id)
        row = repository.report(session, tenant_id, job_id)
    if row is not None:
        return row
    if job.state in TERMINAL:
        raise ReportNotFoundError(
            f"The job {job_id} ended as {job.state} and has no report.",
            hint="GET /v1/jobs/{id} tells why, under error.",
        )
    raise ReportNotReadyError(f"The job {job_id} is {job.state}.", hint="Wait for the job: GET /v1/jobs/{id}?wait=25")
