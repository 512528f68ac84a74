"""Jobs: validated before anything is stored; job, event and idempotency key are stored in one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from pydantic import RootModel
from sqlalchemy.orm import Session

from service.audit.service import note
from service.contracts.base import read_stored
from service.contracts.command_errors import TransientError
from service.contracts.errors import QuantmillError
from service.contracts.evaluation_report import ReportOutline
from service.deps import AppState
from service.estimates.service import finish_of_next
from service.hand_overs.asking import NewHandOver
from service.idempotency.answers import Answer
from service.idempotency.requests import KeyedRequest, NoBody
from service.idempotency.service import submit_once
from service.jobs import events, repository, transitions
from service.jobs.checking import checked_request, warnings_of
from service.jobs.evaluations import checked_evaluation
from service.jobs.repeats import changed_request, same_request
from service.jobs.repository import JobQuery
from service.jobs.schemas import TERMINAL, EvaluationCreate, JobCreate, JobValidate, JobValidated
from service.jobs.submission import Submission, checked_submission, store_submission
from service.jobs.views import JobView, views
from service.pagination import Position
from service.principal import Principal
from service.tables import JobEvent, ReportRow


class ReportNotReadyError(TransientError, code="report-not-ready", title="Report not ready", status=409):
    """The job has not ended, so it has no report yet."""

    retry_after_seconds = 2


class ReportNotFoundError(QuantmillError, code="report-not-found", title="Report not found", status=404):
    """The job ended without a report."""


def create(
    app: AppState, by: Principal, body: JobCreate, hand_over: tuple[NewHandOver, ...] | None = None, *, key: str | None
) -> Answer:
    """Store a job and have it run; with a key known from before, answer as then.

    Args:
        app: of the process.
        by: who asks.
        body: the request.
        hand_over: its targets, where they are judged and sealed already.
        key: its Idempotency-Key.

    Raises:
        QuantmillError: something about the request is wrong; nothing was stored.
    """
    check = partial(
        checked_submission,
        settings=app.settings,
        tenant_id=by.tenant_id,
        body=body,
        hand_over=hand_over,
        finish=True,
    )
    request = KeyedRequest.of("POST /v1/jobs", key, body)
    return submit_once(app, by, request, check, partial(store_submission, app=app, by=by))


def create_evaluation(app: AppState, by: Principal, body: EvaluationCreate, *, key: str | None) -> Answer:
    """Store an evaluation and have it run, as ``create`` does."""
    check = partial(checked_evaluation, settings=app.settings, tenant_id=by.tenant_id, body=body)
    request = KeyedRequest.of("POST /v1/evaluations", key, body)
    return submit_once(app, by, request, check, partial(store_submission, app=app, by=by))


def retry(app: AppState, by: Principal, job_id: str, *, key: str | None) -> Answer:
    """Ask for a job that has ended once more, unchanged.

    Raises:
        JobNotFoundError: the tenant has no such job.
        JobNotEndedError: it is still queued or running.
        NotRepeatableError: it was no client's request, or its config is no longer accepted.
        QuantmillError: as for ``create``.
    """
    request = KeyedRequest.of(f"POST /v1/jobs/{job_id}/retry", key, NoBody())
    check = partial(_again, app=app, by=by, job_id=job_id)
    return submit_once(app, by, request, check, partial(store_submission, app=app, by=by))


def clone(app: AppState, by: Principal, job_id: str, patch: dict[str, Any], *, key: str | None) -> Answer:
    """Ask for what a job was asked for, with changes.

    Raises:
        JobNotFoundError: the tenant has no such job.
        NotRepeatableError: it was no client's request.
        QuantmillError: as for ``create``.
    """
    request = KeyedRequest.of(f"POST /v1/jobs/{job_id}/clone", key, RootModel(patch))
    check = partial(_again, app=app, by=by, job_id=job_id, patch=patch)
    return submit_once(app, by, request, check, partial(store_submission, app=app, by=by))


def _again(
    session: Session, app: AppState, by: Principal, job_id: str, patch: dict[str, Any] | None = None
) -> Submission:
    """The request of a job once more: with changes it is cloned, without it is retried."""
    job = repository.get(session, by.tenant_id, job_id)
    if job.kind == "evaluate":
        asked = same_request(job, EvaluationCreate) if patch is None else changed_request(job, patch, EvaluationCreate)
        given = checked_evaluation(session, app.settings, by.tenant_id, asked)
    else:
        body = same_request(job, JobCreate) if patch is None else changed_request(job, patch, JobCreate)
        given = checked_submission(session, app.settings, by.tenant_id, body, finish=True)
    return given.made_of(retry_of=job_id) if patch is None else given.made_of(cloned_from=job_id)


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
        job_id: read_stored(ReportOutline, result.outline)
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
        state = repository.get(session, tenant_id, job_id).shown_state
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
            f"Job {job_id} ended as {job.state} and has no report.",
            hint=f"See its error with GET /v1/jobs/{job_id}.",
        )
    raise ReportNotReadyError(
        f"Job {job_id} is {job.state}.", hint=f"Wait until it has ended with GET /v1/jobs/{job_id}?wait=25."
    )
