"""HTTP routes of jobs."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field

from service.bodies import ThreadedBodyRoute
from service.contracts.base import MOST_LABELS, MOST_REFERENCE_CHARS, SIGN
from service.contracts.errors import AlreadyQuantizedError, DatasetMismatchError, InvalidConfigError
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report import REPORT_SCHEMA_VERSION, Report, Verdict, upgraded
from service.datasets.schemas import DatasetNotFoundError, DatasetNotReadyError, DatasetRejectedError
from service.deps import AppDep, PrincipalDep
from service.egress.errors import AddressNotAllowedError, UrlNotAllowedError
from service.hand_overs.asking import NewHandOver, prepared, refuse_inside
from service.hand_overs.schemas import HandOverUnavailableError
from service.http import (
    PLAIN_TEXT,
    EventPageDep,
    Moment,
    PageDep,
    Responses,
    Wait,
    etag_matches,
    keyed_filters,
    keyed_parameter,
    only_parameters,
    poll,
    problems,
    unless_changed,
)
from service.idempotency.answers import IdempotencyHeader
from service.jobs import records, service
from service.jobs.errors import (
    JobInUseError,
    JobNotEndedError,
    NoGpuWorkerError,
    NotRepeatableError,
    RangesNotUsableError,
)
from service.jobs.repository import JobQuery
from service.jobs.schemas import (
    TERMINAL,
    EvaluationCreate,
    EventPage,
    JobCreate,
    JobListed,
    JobOut,
    JobPatch,
    JobValidate,
    JobValidated,
    ShownState,
    UsersKind,
)
from service.jobs.service import ReportNotFoundError, ReportNotReadyError
from service.jobs.streaming import CountedStream, StreamToken, TokenParameter, event_stream, token_of
from service.jobs.views import JobView, event_out, job_listed, job_out
from service.models.schemas import ModelNotFoundError, ModelNotReadyError, ModelRejectedError
from service.names.kinds import MODELS
from service.names.service import identify
from service.pagination import Page
from service.quarantine.schemas import ModelQuarantinedError
from service.reports.reading import is_evaluation
from service.tables import Job

router = APIRouter(route_class=ThreadedBodyRoute, tags=["jobs"])

_LABEL = "label"
_SEQ_MAX = 2**31 - 1
# Of an event stream the schema is that of one event.
_STREAMED = {
    "type": "object",
    "description": "One event; ``data`` is JSON: the job's id and state for ``end``, otherwise an event as in a page.",
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["state", "progress", "log", "metric", "end"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
_EVENT_RESPONSES: Responses = {
    200: {
        "model": EventPage,
        "description": "The event log: one page as JSON, or an event stream with all events, including new ones.",
        "content": {"text/event-stream": {"schema": _STREAMED}},
    }
}
_NOT_CHANGED: Responses = {304: {"description": "Not modified"}}
# Of a request that names a model and data, whatever is to be done with them.
_INPUT_REFUSALS = (
    DatasetMismatchError,
    DatasetNotFoundError,
    DatasetNotReadyError,
    DatasetRejectedError,
    InvalidConfigError,
    ModelNotFoundError,
    ModelNotReadyError,
    ModelQuarantinedError,
    ModelRejectedError,
)
_JOB_REFUSALS = (
    *_INPUT_REFUSALS,
    AlreadyQuantizedError,
    NoGpuWorkerError,
    RangesNotUsableError,
)
_HAND_OVER_REFUSALS = (AddressNotAllowedError, HandOverUnavailableError, UrlNotAllowedError)
_REUSED: Responses = {
    200: {
        "model": JobOut,
        "description": "With reuse: an existing job with the same result has succeeded and is returned.",
    }
}


@router.post(
    "/v1/jobs",
    status_code=202,
    response_model=JobOut,
    responses=_REUSED | problems(*_JOB_REFUSALS, *_HAND_OVER_REFUSALS),
)
async def create_job(
    body: JobCreate,
    app: AppDep,
    principal: PrincipalDep,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Submit a quantization job. 202: the job is stored and will run, even if this process ends."""
    hand_over: tuple[NewHandOver, ...] = ()
    if body.hand_over:
        hand_over = await app.lookups.run(lambda: prepared(app.settings, body.hand_over, "/hand_over", names=True))
    return await app.writes.run(lambda: service.create(app, principal, body, hand_over, key=idempotency_key).response())


@router.post("/v1/jobs:validate", responses=problems(*_JOB_REFUSALS, *_HAND_OVER_REFUSALS))
async def validate_job(body: JobValidate, app: AppDep, principal: PrincipalDep) -> JobValidated:
    """Validate a request and return the resolved config. Nothing is stored."""
    if body.hand_over:
        await app.lookups.run(lambda: refuse_inside(app.settings, body.hand_over, "/hand_over"))
    return await app.checks.run(lambda: service.check(app, principal.tenant_id, body))


class JobListParameters(BaseModel):
    """Filters for the list of jobs, in addition to labels."""

    kind: UsersKind | None = Field(
        default=None, description="Only jobs of this kind; default: quantize and evaluate jobs."
    )
    state: ShownState | None = None
    model_id: Annotated[str, Field(max_length=MOST_REFERENCE_CHARS, pattern=PLAIN_TEXT)] | None = None
    name: Annotated[str, Field(max_length=200, pattern=PLAIN_TEXT)] | None = Field(
        default=None, description="Only jobs with exactly this given name."
    )
    search: Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN_TEXT)] | None = Field(
        default=None,
        description="Only jobs with this text in their name, or in model and preset of a default name; "
        "not case-sensitive.",
    )
    preset: Annotated[str, Field(max_length=64, pattern=PLAIN_TEXT)] | None = None
    verdict: Verdict | None = Field(default=None, description="Only jobs with this verdict in their report.")
    created_after: Moment | None = None
    created_before: Moment | None = None


@router.get(
    "/v1/jobs",
    dependencies=[Depends(only_parameters(*JobListParameters.model_fields, "limit", "cursor", keyed=_LABEL))],
    openapi_extra=keyed_parameter(_LABEL, MOST_LABELS),
)
async def list_jobs(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    page: PageDep,
    filters: Annotated[JobListParameters, Query()],
) -> Page[JobListed]:
    """List quantize and evaluate jobs, newest first, without configs. Repeat ``label=KEY=VALUE`` to filter by
    labels.
    """
    tenant_id, model_id = principal.tenant_id, filters.model_id
    if model_id is not None and SIGN in model_id:
        model_id = await app.reads.run(partial(identify, app, MODELS, tenant_id, model_id, query="model_id"))
    labels = keyed_filters(request, _LABEL, most=MOST_LABELS)
    query = JobQuery(**{**dict(filters), "model_id": model_id}, labels=labels)
    return await page.answer(
        f"jobs|{tenant_id}|{query}",
        lambda after, limit: service.list_page(app, tenant_id, query, after=after, limit=limit),
        job_listed,
    )


@router.get("/v1/jobs/{job_id}", response_model=JobOut, responses=_NOT_CHANGED)
async def get_job(
    job_id: str,
    app: AppDep,
    principal: PrincipalDep,
    response: Response,
    wait: Wait = 0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response | JobOut:
    """Get a job. With ?wait= the response is sent when the job has ended or, with If-None-Match, when it has
    changed.
    """

    def settled(seen: JobView) -> bool:
        if if_none_match is not None:
            return not etag_matches(if_none_match, _etag(seen)) or seen.job.state in TERMINAL
        return seen.job.state in TERMINAL

    view = await poll(
        app,
        Job,
        job_id,
        lambda: service.get(app, principal.tenant_id, job_id),
        version=lambda seen: (seen.job.row_version, seen.job.last_seq),
        done=settled,
        wait_seconds=wait,
    )
    retry_seconds = None if view.ended else 2
    return unless_changed(response, if_none_match, _etag(view), retry_seconds=retry_seconds) or job_out(view)


@router.post(
    "/v1/jobs/{job_id}/cancel",
    response_model=JobOut,
    responses={202: {"model": JobOut, "description": "The job is running; cancellation was requested."}},
)
async def cancel_job(job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Cancel a job. 200: it is canceled or had already ended; 202: it is running and will stop soon. Safe to repeat."""
    view = await app.writes.run(lambda: service.cancel(app, principal, job_id))
    status = 202 if view.job.state == "running" else 200
    return JSONResponse(
        job_out(view).model_dump(mode="json", by_alias=True), status_code=status, headers={"ETag": _etag(view)}
    )


@router.post(
    "/v1/jobs/{job_id}/retry",
    status_code=202,
    response_model=JobOut,
    responses=problems(*_JOB_REFUSALS, JobNotEndedError, NotRepeatableError),
)
async def retry_job(
    job_id: str, app: AppDep, principal: PrincipalDep, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Retry a job that has ended: create a new job from its request, with the config as it was resolved then."""
    return await app.writes.run(lambda: service.retry(app, principal, job_id, key=idempotency_key).response())


@router.post(
    "/v1/jobs/{job_id}/clone",
    status_code=202,
    response_model=JobOut,
    responses=_REUSED | problems(*_JOB_REFUSALS, NotRepeatableError),
)
async def clone_job(
    job_id: str,
    body: dict[str, Any],
    app: AppDep,
    principal: PrincipalDep,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Create a new job from a job's request with changes: the body is a JSON merge patch (RFC 7396) of the request.

    If the patch names another preset, the config starts from that preset and contains only the patch's changes.
    """
    return await app.writes.run(lambda: service.clone(app, principal, job_id, body, key=idempotency_key).response())


@router.patch("/v1/jobs/{job_id}")
async def rename_job(job_id: str, body: JobPatch, app: AppDep, principal: PrincipalDep, response: Response) -> JobOut:
    """Update the name or the labels of a job in any state. Omitted fields are unchanged; null removes a value."""
    view = await app.writes.run(lambda: records.rename(app, principal, job_id, body))
    response.headers["ETag"] = _etag(view)
    return job_out(view)


@router.delete("/v1/jobs/{job_id}", status_code=204, responses=problems(JobNotEndedError, JobInUseError))
async def delete_job(job_id: str, app: AppDep, principal: PrincipalDep) -> None:
    """Delete a job that has ended, with its log, report and artifacts."""
    await app.writes.run(lambda: records.remove(app, principal, job_id))


@router.get(
    "/v1/jobs/{job_id}/logs",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_logs(
    job_id: str,
    app: AppDep,
    principal: PrincipalDep,
    after: Annotated[
        int, Query(ge=0, le=_SEQ_MAX, description="Only log entries with a number greater than this.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of log entries per page.")] = 1000,
) -> Response:
    """Get the job's log entries as text, one per line: time in UTC, attempt, level, message."""
    entries, more = await app.reads.run(
        lambda: records.log_page(app, principal.tenant_id, job_id, after=after, limit=limit)
    )
    headers = {"Cache-Control": "no-cache"}
    if more:
        headers["Link"] = f'</v1/jobs/{job_id}/logs?after={entries[-1].seq}&limit={limit}>; rel="next"'
    return PlainTextResponse(records.log_text(entries), headers=headers)


@router.get("/v1/jobs/{job_id}/events", response_model=None, responses=_EVENT_RESPONSES)
async def get_events(
    job_id: str,
    app: AppDep,
    principal: PrincipalDep,
    as_page: EventPageDep,
    after: Annotated[
        int | None, Query(ge=0, le=_SEQ_MAX, description="Only events with a number greater than this.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of events per JSON page.")] = 200,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=_SEQ_MAX, description="Same as ?after=; sent by browsers when they reconnect.")
    ] = None,
    token: TokenParameter = None,
) -> Response | EventPage:
    """Stream a job's events until the job ends or, with ``format=json``, get one page of them.

    The stream contains ``event: state|progress|log|metric`` with the event number as ``id:`` and ends with ``event:
    end``.
    """
    start = last_event_id if last_event_id is not None else after or 0
    if as_page:
        state, events = await app.reads.run(
            lambda: service.log_after(app, principal.tenant_id, job_id, start, limit + 1)
        )
        page = [event_out(event) for event in events[:limit]]
        next_after = page[-1].seq if page else start
        return EventPage(items=page, next_after=next_after, has_more=len(events) > limit, state=state)
    await app.reads.run(lambda: service.log_after(app, principal.tenant_id, job_id, start, 1))  # 404 comes first
    return CountedStream(
        app.meter_of(principal.tenant_id).stream(),
        event_stream(app, principal.tenant_id, job_id, start),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.post("/v1/jobs/{job_id}/events/token", status_code=201)
async def create_stream_token(job_id: str, app: AppDep, principal: PrincipalDep, response: Response) -> StreamToken:
    """Create a token for the job's event stream, for pages: EventSource cannot send a key. Valid for five minutes."""
    await app.reads.run(lambda: service.get(app, principal.tenant_id, job_id))  # 404 comes first
    return token_of(app, principal, f"/v1/jobs/{job_id}", response)


@router.get(
    "/v1/jobs/{job_id}/report",
    response_model=Report | EvaluationReport,
    responses=_NOT_CHANGED | problems(ReportNotReadyError, ReportNotFoundError),
)
async def get_report(
    job_id: str, app: AppDep, principal: PrincipalDep, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """Get the accuracy report of a succeeded job; for an evaluate job, its results with ``kind``: evaluation."""
    row = await app.reads.run(lambda: service.report(app, principal.tenant_id, job_id))
    headers = {
        "ETag": f'"{row.job_id}.{row.attempt}.{REPORT_SCHEMA_VERSION}"',
        "Cache-Control": "private, no-cache",
    }
    if etag_matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return await app.heavy.run(
        lambda: JSONResponse(row.body if is_evaluation(row) else upgraded(row.body), headers=headers)
    )


@router.post("/v1/evaluations", status_code=202, response_model=JobOut, responses=problems(*_INPUT_REFUSALS))
async def create_evaluation(
    body: EvaluationCreate,
    app: AppDep,
    principal: PrincipalDep,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Submit an evaluation: measure a model, quantized or not, and optionally compare it with a reference model.

    The response is a job of kind ``evaluate``; all operations on jobs under ``/v1/jobs/ID`` apply to it.
    """
    return await app.writes.run(lambda: service.create_evaluation(app, principal, body, key=idempotency_key).response())


def _etag(view: JobView) -> str:
    """Of the row, and of what is told beside it."""
    beside = [] if view.waiting is None else [view.waiting.code]
    beside += [] if view.run is None else [f"{view.run.id}-{view.run.row_version}"]
    return f'"{".".join([str(view.job.row_version), *beside])}"'
