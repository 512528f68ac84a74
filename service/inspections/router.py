"""HTTP routes of inspections."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import JSONResponse

from service.bodies import ThreadedBodyRoute
from service.contracts.errors import AlreadyQuantizedError, InvalidConfigError
from service.deps import AppDep, AppState, PrincipalDep
from service.http import Responses, Wait, etag_matches, etag_of, only_parameters, poll, problems
from service.inspections import service
from service.inspections.schemas import InspectionCreate, InspectionOut, UnknownTargetError
from service.inspections.service import inspection_out
from service.models.schemas import ModelNotReadyError, ModelRejectedError
from service.principal import Principal
from service.quarantine.schemas import ModelQuarantinedError
from service.tables import InspectionRow

router = APIRouter(route_class=ThreadedBodyRoute, tags=["inspections"])

_REFUSALS = (
    AlreadyQuantizedError,
    InvalidConfigError,
    ModelNotReadyError,
    ModelQuarantinedError,
    ModelRejectedError,
    UnknownTargetError,
)
_NOT_CHANGED: Responses = {304: {"description": "Not modified"}}
_RUNNING: Responses = {
    202: {"model": InspectionOut, "description": "The inspection is being created; get it from the URL in Location."}
}


@router.post(
    "/v1/models/{model_id}/inspect",
    response_model=InspectionOut,
    responses=_RUNNING | problems(*_REFUSALS),
    dependencies=[Depends(only_parameters("target", "wait"))],
)
async def inspect_model(
    model_id: str,
    app: AppDep,
    principal: PrincipalDep,
    body: InspectionCreate | None = None,
    target: Annotated[
        str | None, Query(max_length=64, description="Target that overrides the config's target.")
    ] = None,
    wait: Wait = 0,
) -> Response:
    """Inspect a model: report for each node whether a target runs it quantized, why not, and what would help. Needs no
    data.

    200: an inspection exists or was completed within ?wait= seconds; 202: it is being created. Repeated requests for
    the
    same model and config return the same inspection.
    """
    asked = body or InspectionCreate()
    with asked.pointing_into_request():
        config = await app.checks.run(lambda: service.aimed_at(asked.config, target))
        made = await app.writes.run(
            lambda: service.inspect(app, principal, model_id, config, notes=asked.translation_notes)
        )
    row = made
    if made.status == "running" and wait:
        row = await _poll(app, principal, made.id, wait)
    headers = {"Location": f"/v1/inspections/{row.id}", **_headers(row)}
    status = 200 if _ended(row) else 202
    return JSONResponse(inspection_out(row).model_dump(mode="json"), status_code=status, headers=headers)


@router.get(
    "/v1/inspections/{inspection_id}",
    response_model=InspectionOut,
    responses=_NOT_CHANGED,
)
async def get_inspection(
    inspection_id: str,
    app: AppDep,
    principal: PrincipalDep,
    wait: Wait = 0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Get an inspection. With ?wait= the response is sent when the inspection has ended or the time has passed."""
    row = await _poll(app, principal, inspection_id, wait)
    headers = _headers(row)
    if etag_matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return JSONResponse(inspection_out(row).model_dump(mode="json"), headers=headers)


async def _poll(app: AppState, principal: Principal, inspection_id: str, wait_seconds: float) -> InspectionRow:
    return await poll(
        app,
        InspectionRow,
        inspection_id,
        lambda: service.get(app, principal.tenant_id, inspection_id),
        version=lambda seen: (seen.row_version, 0),
        done=_ended,
        wait_seconds=wait_seconds,
    )


def _ended(row: InspectionRow) -> bool:
    return row.status != "running"


def _headers(row: InspectionRow) -> dict[str, str]:
    headers = {"ETag": etag_of(row), "Cache-Control": "private, no-cache"}
    return headers if _ended(row) else {**headers, "Retry-After": "1"}
