"""HTTP routes of datasets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response

from service.artifacts.content import Content, content_range, file_response, not_modified
from service.artifacts.schemas import RangeNotSatisfiableError
from service.bodies import ThreadedBodyRoute
from service.contracts.errors import InvalidRequestError
from service.datasets import service
from service.datasets.schemas import DatasetCreate, DatasetInUseError, DatasetOut, ThumbnailsNotFoundError
from service.datasets.service import dataset_in_list, dataset_out
from service.deps import AppDep, PrincipalDep, reading
from service.files.serving import open_file
from service.http import (
    Conditions,
    IfMatch,
    PageDep,
    PreconditionFailedError,
    PreconditionRequiredError,
    Responses,
    Wait,
    etag_of,
    only_parameters,
    problems,
)
from service.idempotency.answers import IdempotencyHeader
from service.names.kinds import DATASETS
from service.names.repository import ResourceQuery
from service.names.service import (
    FILTERS,
    TAG,
    TAG_PARAMETER,
    NounPatch,
    answer_of,
    delete,
    identify,
    list_page,
    resource_query,
    update,
    waited_for,
)
from service.pagination import Page
from service.storage import StoredFileCorruptError, StoredFileMissingError
from service.uploads.schemas import UploadNotCompleteError, UploadNotFoundError

router = APIRouter(route_class=ThreadedBodyRoute, prefix="/v1/datasets", tags=["datasets"])

_PNG = "image/png"
_SHEET = {_PNG: {"schema": {"type": "string", "format": "binary"}}}
_SHEET_RESPONSES: Responses = {
    200: {"description": "The contact sheet", "content": _SHEET},
    206: {"description": "The requested range", "content": _SHEET},
    304: {"description": "Not modified"},
}


@router.post(
    "",
    status_code=201,
    response_model=DatasetOut,
    responses=problems(UploadNotFoundError, UploadNotCompleteError),
)
async def create_dataset(
    body: DatasetCreate,
    app: AppDep,
    principal: PrincipalDep,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Create a dataset from an upload. It is validated in the background: use ?wait=25 until it is ready or
    rejected.
    """
    return await app.writes.run(lambda: service.create(app, principal, body, key=idempotency_key).response())


@router.get("", dependencies=[Depends(only_parameters(*FILTERS, keyed=TAG))], openapi_extra=TAG_PARAMETER)
async def list_datasets(
    app: AppDep, principal: PrincipalDep, page: PageDep, query: Annotated[ResourceQuery, Depends(resource_query)]
) -> Page[DatasetOut]:
    """List datasets, newest first. Repeat ``tag=KEY=VALUE`` to filter by tags."""
    tenant_id = principal.tenant_id
    return await page.answer(
        f"datasets|{tenant_id}|{query}",
        lambda after, limit: list_page(app, DATASETS, tenant_id, query, after=after, limit=limit),
        dataset_in_list,
    )


@router.get("/{dataset_id}", response_model=DatasetOut, responses={304: {"description": "Not modified"}})
async def get_dataset(
    dataset_id: str,
    app: AppDep,
    principal: PrincipalDep,
    response: Response,
    wait: Wait = 0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response | DatasetOut:
    """Get a dataset. With ?wait= the response is sent when validation has ended or the time has passed."""
    seen = await waited_for(app, DATASETS, principal.tenant_id, dataset_id, wait)
    return answer_of(seen, response, if_none_match) or dataset_out(seen)


@router.patch(
    "/{dataset_id}", response_model=DatasetOut, responses=problems(PreconditionFailedError, PreconditionRequiredError)
)
async def update_dataset(
    dataset_id: str,
    body: NounPatch,
    app: AppDep,
    principal: PrincipalDep,
    response: Response,
    if_match: IfMatch = None,
) -> DatasetOut:
    """Update a dataset's tags and description. Requires If-Match with its ETag, or ``*``."""
    conditions = Conditions(if_match)
    dataset = await app.writes.run(lambda: update(app, principal, DATASETS, dataset_id, body, conditions))
    response.headers["ETag"] = etag_of(dataset)
    return dataset_out(dataset)


@router.delete("/{dataset_id}", status_code=204, responses=problems(InvalidRequestError, DatasetInUseError))
async def delete_dataset(dataset_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Delete a dataset, unless a job that has not ended or an alias uses it. Safe to repeat."""
    await app.writes.run(lambda: delete(app, principal, DATASETS, dataset_id))
    return Response(status_code=204)


@router.get(
    "/{dataset_id}/thumbnails",
    responses=_SHEET_RESPONSES
    | problems(ThumbnailsNotFoundError, RangeNotSatisfiableError, StoredFileMissingError, StoredFileCorruptError),
    response_class=Response,
)
@reading
def get_thumbnails(dataset_id: str, request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Get a contact sheet (PNG) with thumbnails of 16 samples, in the order of the data, preprocessed as for the model
    but without scale and mean.
    """
    found_id = identify(app, DATASETS, principal.tenant_id, dataset_id)
    found = service.thumbnails(app, principal.tenant_id, found_id)
    content = Content(f"{found_id}-{found.file}", _PNG, found.size_bytes, found.sha256)
    if not_modified(content, request.headers):
        return Response(status_code=304, headers=content.headers())
    part = content_range(content, request.headers)
    sheet = open_file(app.database, app.store, found.sha256, found.size_bytes)
    return file_response(sheet, content, part, app.writes)
