"""HTTP routes of models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Response

from service.bodies import ThreadedBodyRoute
from service.contracts.errors import InvalidRequestError, Pt2NotAllowedError
from service.deps import AppDep, PrincipalDep
from service.http import (
    Conditions,
    IfMatch,
    PageDep,
    PreconditionFailedError,
    PreconditionRequiredError,
    Wait,
    etag_of,
    only_parameters,
    problems,
)
from service.idempotency.answers import IdempotencyHeader
from service.models import service
from service.models.schemas import (
    ModelCreate,
    ModelInUseError,
    ModelNotFoundError,
    ModelNotReadyError,
    ModelOut,
    ModelRejectedError,
)
from service.models.service import model_in_list, model_out
from service.names.kinds import MODELS
from service.names.repository import ResourceQuery
from service.names.service import (
    FILTERS,
    TAG,
    TAG_PARAMETER,
    NounPatch,
    answer_of,
    delete,
    list_page,
    resource_query,
    update,
    waited_for,
)
from service.pagination import Page
from service.quarantine.schemas import ModelQuarantinedError
from service.uploads.schemas import UploadNotCompleteError, UploadNotFoundError

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
    app: AppDep,
    principal: PrincipalDep,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Create a model from uploads. It is validated in the background: use ?wait=25 until it is ready or rejected."""
    return await app.writes.run(lambda: service.create(app, principal, body, key=idempotency_key).response())


@router.get("", dependencies=[Depends(only_parameters(*FILTERS, keyed=TAG))], openapi_extra=TAG_PARAMETER)
async def list_models(
    app: AppDep, principal: PrincipalDep, page: PageDep, query: Annotated[ResourceQuery, Depends(resource_query)]
) -> Page[ModelOut]:
    """List models, newest first. Repeat ``tag=KEY=VALUE`` to filter by tags."""
    tenant_id = principal.tenant_id
    return await page.answer(
        f"models|{tenant_id}|{query}",
        lambda after, limit: list_page(app, MODELS, tenant_id, query, after=after, limit=limit),
        model_in_list,
    )


@router.get("/{model_id}", response_model=ModelOut, responses={304: {"description": "Not modified"}})
async def get_model(
    model_id: str,
    app: AppDep,
    principal: PrincipalDep,
    response: Response,
    wait: Wait = 0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response | ModelOut:
    """Get a model. With ?wait= the response is sent when validation has ended or the time has passed."""
    seen = await waited_for(app, MODELS, principal.tenant_id, model_id, wait)
    return answer_of(seen, response, if_none_match) or model_out(seen)


@router.patch(
    "/{model_id}", response_model=ModelOut, responses=problems(PreconditionFailedError, PreconditionRequiredError)
)
async def update_model(
    model_id: str, body: NounPatch, app: AppDep, principal: PrincipalDep, response: Response, if_match: IfMatch = None
) -> ModelOut:
    """Update a model's tags and description. Requires If-Match with its ETag, or ``*``."""
    conditions = Conditions(if_match)
    model = await app.writes.run(lambda: update(app, principal, MODELS, model_id, body, conditions))
    response.headers["ETag"] = etag_of(model)
    return model_out(model)


@router.delete("/{model_id}", status_code=204, responses=problems(InvalidRequestError, ModelInUseError))
async def delete_model(model_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Delete a model, unless a job that has not ended or an alias uses it. Safe to repeat."""
    await app.writes.run(lambda: delete(app, principal, MODELS, model_id))
    return Response(status_code=204)
