"""HTTP face of models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from service.bodies import ThreadedBodyRoute
from service.contracts.errors import Pt2NotAllowedError
from service.deps import DeskDep, PrincipalDep
from service.http import DEFAULT_LIMIT, CursorParameter, Limit, Wait, etag_matches, only_parameters, poll
from service.idempotency.answers import IdempotencyHeader
from service.models import service
from service.models.errors import ModelNotFoundError, ModelNotReadyError, ModelRejectedError
from service.models.schemas import ModelCreate, ModelOut
from service.models.views import etag, model_in_list, model_out
from service.nouns import NounStatus
from service.pagination import CursorCodec, Page, link_header
from service.quarantine.errors import ModelQuarantinedError
from service.responses import problems
from service.tables import Model
from service.uploads.errors import UploadNotCompleteError, UploadNotFoundError

router = APIRouter(route_class=ThreadedBodyRoute, prefix="/v1/models", tags=["models"])

_REFUSALS = (
    ModelNotFoundError,
    ModelNotReadyError,
    ModelQuarantinedError,
    ModelRejectedError,
    Pt2NotAllowedError,
    UploadNotCompleteError,
    UploadNotFoundError,
)


@router.post(
    "",
    status_code=201,
    response_model=ModelOut,
    responses=problems(*_REFUSALS),
)
async def create_model(
    body: ModelCreate,
    desk: DeskDep,
    principal: PrincipalDep,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Make a model of uploads. Validated in the background: ask with ?wait=25 until it is ready or rejected."""
    return await desk.writes.run(lambda: service.create(desk, principal, body, key=idempotency_key).response())


@router.get("", dependencies=[Depends(only_parameters("status", "limit", "cursor"))])
def list_models(
    desk: DeskDep,
    principal: PrincipalDep,
    response: Response,
    status: Annotated[NounStatus | None, Query()] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: CursorParameter = None,
) -> Page[ModelOut]:
    """Models, newest first."""
    codec = CursorCodec(desk.settings, f"models|{principal.tenant_id}|{status}")
    after = None if cursor is None else codec.decode(cursor)
    models, last = service.list_page(desk, principal.tenant_id, status=status, after=after, limit=limit)
    next_cursor = None if last is None else codec.encode(last)
    response.headers.update(link_header("/v1/models", next_cursor, status=status, limit=limit))
    return Page(items=[model_in_list(model) for model in models], next_cursor=next_cursor, has_more=last is not None)


@router.get("/{model_id}", response_model=ModelOut, responses={304: {"description": "Not changed"}})
async def get_model(
    model_id: str,
    desk: DeskDep,
    principal: PrincipalDep,
    response: Response,
    wait: Wait = 0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response | ModelOut:
    """A model. With ?wait= the answer comes once validation has ended, or when the time is over."""
    model = await poll(
        desk,
        Model,
        model_id,
        lambda: service.get(desk, principal.tenant_id, model_id),
        version=lambda seen: (seen.row_version, 0),
        done=lambda seen: seen.status != "validating",
        wait_seconds=wait,
    )
    headers = {"ETag": etag(model), "Cache-Control": "no-cache"}
    if model.status == "validating":
        headers["Retry-After"] = "1"
    if etag_matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return model_out(model)
