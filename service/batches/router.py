"""HTTP routes of batches."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import JSONResponse

from service.batches import following, service
from service.batches.schemas import (
    MOST_POSITION_CHARS,
    POSITION,
    BatchCreate,
    BatchEventPage,
    BatchListed,
    BatchNotEndedError,
    BatchOut,
    BatchRefusedError,
    NothingToRetryError,
)
from service.batches.views import BatchView, batch_out
from service.bodies import ThreadedBodyRoute
from service.deps import AppDep, PrincipalDep
from service.http import (
    DEFAULT_LIMIT,
    EventPageDep,
    Limit,
    PageDep,
    Responses,
    Wait,
    etag_matches,
    only_parameters,
    poll,
    problems,
    unless_changed,
)
from service.idempotency.answers import IdempotencyHeader
from service.jobs.streaming import CountedStream, StreamToken, TokenParameter, token_of
from service.pagination import Page
from service.tables import Batch

router = APIRouter(route_class=ThreadedBodyRoute, prefix="/v1/batches", tags=["batches"])

_NO_CONTROL = r"^[^\x00-\x1f\x7f]*$"
# Of an event stream the schema is that of one event.
_STREAMED = {
    "type": "object",
    "description": "One event; ``data`` is JSON: the batch's id and state for ``end``, otherwise an event as in a "
    "page.",
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["state", "progress", "log", "metric", "end"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
_EVENT_RESPONSES: Responses = {
    200: {
        "model": BatchEventPage,
        "description": "The combined event log of its jobs: one page as JSON, or an event stream with all events, "
        "including new ones.",
        "content": {"text/event-stream": {"schema": _STREAMED}},
    }
}


@router.post("", status_code=202, response_model=BatchOut, responses=problems(BatchRefusedError))
async def create_batch(
    body: BatchCreate, app: AppDep, principal: PrincipalDep, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Submit a grid or a list of jobs as one batch: all or none. Errors of all members are returned together."""
    return await app.writes.run(lambda: service.create(app, principal, body, key=idempotency_key).response())


@router.get("", dependencies=[Depends(only_parameters("name", "limit", "cursor"))])
async def list_batches(
    app: AppDep,
    principal: PrincipalDep,
    page: PageDep,
    name: Annotated[
        str | None, Query(max_length=200, pattern=_NO_CONTROL, description="Only batches with exactly this name.")
    ] = None,
) -> Page[BatchListed]:
    """List batches, newest first, with the counts of their members by state."""
    tenant_id = principal.tenant_id
    return await page.answer(
        f"batches|{tenant_id}|{name}",
        lambda after, limit: service.list_page(app, tenant_id, name=name, after=after, limit=limit),
        shown=lambda listed: listed,
    )


@router.get("/{batch_id}", response_model=BatchOut, responses={304: {"description": "Not modified"}})
async def get_batch(
    batch_id: str,
    app: AppDep,
    principal: PrincipalDep,
    response: Response,
    wait: Wait = 0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response | BatchOut:
    """Get a batch with a summary. With ?wait= the response is sent when all jobs have ended or, with If-None-Match,
    when the batch has changed.
    """

    def settled(seen: BatchView) -> bool:
        return seen.ended or (if_none_match is not None and not etag_matches(if_none_match, seen.etag))

    view = await poll(
        app,
        Batch,
        batch_id,
        lambda: service.get(app, principal.tenant_id, batch_id),
        version=lambda seen: seen.version,
        done=settled,
        wait_seconds=wait,
    )
    retry_seconds = None if view.ended else 2
    return unless_changed(response, if_none_match, view.etag, retry_seconds=retry_seconds) or batch_out(view)


@router.post("/{batch_id}/cancel", response_model=BatchOut, responses={202: {"model": BatchOut}})
async def cancel_batch(batch_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Cancel the queued jobs of a batch and stop the running ones. 200: all have ended; 202: some will stop soon."""
    view = await app.writes.run(lambda: service.cancel(app, principal, batch_id))
    document = batch_out(view).model_dump(mode="json", by_alias=True)
    return JSONResponse(document, status_code=200 if view.ended else 202, headers={"ETag": view.etag})


@router.post(
    "/{batch_id}/retry-failed",
    status_code=202,
    response_model=BatchOut,
    responses=problems(BatchNotEndedError, BatchRefusedError, NothingToRetryError),
)
async def retry_failed_of_batch(
    batch_id: str, app: AppDep, principal: PrincipalDep, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Retry the members that failed or were canceled: each gets a new job with the same request."""
    return await app.writes.run(lambda: service.retry_failed(app, principal, batch_id, key=idempotency_key).response())


@router.delete("/{batch_id}", status_code=204, responses=problems(BatchNotEndedError))
async def delete_batch(batch_id: str, app: AppDep, principal: PrincipalDep) -> None:
    """Delete a batch that has ended. Its jobs are kept."""
    await app.writes.run(lambda: service.remove(app, principal, batch_id))


@router.get(
    "/{batch_id}/events",
    response_model=BatchEventPage,
    responses=_EVENT_RESPONSES,
    dependencies=[Depends(only_parameters("after", "limit", "format", "token"))],
)
async def list_batch_events(
    batch_id: str,
    app: AppDep,
    principal: PrincipalDep,
    as_page: EventPageDep,
    after: Annotated[
        str, Query(max_length=MOST_POSITION_CHARS, pattern=POSITION, description="Only events after this position.")
    ] = following.START,
    limit: Limit = DEFAULT_LIMIT,
    last_event_id: Annotated[str | None, Header(max_length=MOST_POSITION_CHARS, pattern=POSITION)] = None,
    token: TokenParameter = None,
) -> Response | BatchEventPage:
    """Stream the events of all jobs of a batch until it ends or, with ``format=json``, get pages of them.

    The stream contains ``event: state|progress|log|metric`` with the position as ``id:`` and ends with ``event: end``.
    """
    start = after if last_event_id is None else last_event_id
    if as_page:
        tail = await app.reads.run(lambda: following.tail_after(app, principal.tenant_id, batch_id, start, limit))
        return BatchEventPage(items=list(tail.events), next_after=tail.position, has_more=tail.more, state=tail.state)
    await app.reads.run(lambda: service.require(app, principal.tenant_id, batch_id))  # 404 comes first
    return CountedStream(
        app.meter_of(principal.tenant_id).stream(),
        following.event_stream(app, principal.tenant_id, batch_id, start),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.post("/{batch_id}/events/token", status_code=201)
async def create_batch_stream_token(
    batch_id: str, app: AppDep, principal: PrincipalDep, response: Response
) -> StreamToken:
    """Create a token for the batch's event stream, for pages: EventSource cannot send a key. Valid for five minutes."""
    await app.reads.run(lambda: service.require(app, principal.tenant_id, batch_id))  # 404 comes first
    return token_of(app, principal, f"/v1/batches/{batch_id}", response)
