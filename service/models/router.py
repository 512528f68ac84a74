"""HTTP face of models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from service.contracts.errors import Problem
from service.contracts.model import ModelSummary
from service.deps import DeskDep, PrincipalDep, RequestIdDep
from service.http import Wait, etag_matches, only_parameters, poll
from service.models import service
from service.models.schemas import ModelCreate, ModelFileOut, ModelOut, SelfLinks
from service.nouns import NounStatus
from service.pagination import DEFAULT_LIMIT, CursorCodec, CursorParameter, Limit, Page, link_header
from service.tables import Model

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.post("", status_code=201)
def create_model(
    body: ModelCreate, desk: DeskDep, principal: PrincipalDep, request_id: RequestIdDep, response: Response
) -> ModelOut:
    """Make a model of uploads. Validated in the background: ask with ?wait=25 until it is ready or rejected."""
    model = service.create(desk, principal.tenant_id, body, request_id=request_id)
    response.headers.update({"Location": f"/v1/models/{model.id}", "Retry-After": "1", "ETag": _etag(model)})
    return _out(model)


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
    return Page(items=[_in_list(model) for model in models], next_cursor=next_cursor, has_more=last is not None)


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
        lambda: service.get(desk, principal.tenant_id, model_id), lambda seen: seen.status != "validating", wait
    )
    headers = {"ETag": _etag(model), "Cache-Control": "no-cache"}
    if model.status == "validating":
        headers["Retry-After"] = "1"
    if etag_matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return _out(model)


def _etag(model: Model) -> str:
    return f'"{model.row_version}"'


def _in_list(model: Model) -> ModelOut:
    """Without the names of the nodes, which would make up most of a page."""
    out = _out(model)
    if out.summary is not None:
        out.summary = out.summary.model_copy(update={"node_names": None})
    return out


def _out(model: Model) -> ModelOut:
    return ModelOut(
        id=model.id,
        name=model.name,
        format=model.format,
        status=model.status,
        summary=None if model.summary is None else ModelSummary.model_validate(model.summary),
        problems=[Problem.model_validate(problem) for problem in model.problems or []],
        files=[ModelFileOut(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256) for file in model.files],
        created_at=model.created_at,
        updated_at=model.updated_at,
        links=SelfLinks(self=f"/v1/models/{model.id}"),
    )
