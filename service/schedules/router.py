"""HTTP routes of schedules."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from service.bodies import ThreadedBodyRoute
from service.deps import AppDep, PrincipalDep
from service.http import (
    Conditions,
    IfMatch,
    PageDep,
    PreconditionFailedError,
    PreconditionRequiredError,
    etag_of,
    only_parameters,
    problems,
    unless_changed,
)
from service.idempotency.answers import IdempotencyHeader
from service.pagination import Page
from service.schedules import service
from service.schedules.schemas import (
    RunOut,
    RunState,
    ScheduleBusyError,
    ScheduleChange,
    ScheduleChangedError,
    ScheduleCreate,
    ScheduleListed,
    ScheduleNameTakenError,
    ScheduleOut,
    TooManySchedulesError,
)
from service.schedules.views import run_out, schedule_listed, schedule_out

router = APIRouter(route_class=ThreadedBodyRoute, prefix="/v1/schedules", tags=["schedules"])


@router.post(
    "", status_code=201, response_model=ScheduleOut, responses=problems(TooManySchedulesError, ScheduleNameTakenError)
)
async def create_schedule(
    body: ScheduleCreate, app: AppDep, principal: PrincipalDep, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Create a schedule (cron) that submits jobs. The template is validated now, and each time the schedule is due."""
    answer = await app.writes.run(lambda: service.create(app, principal, body, key=idempotency_key))
    return answer.response()


@router.get("", dependencies=[Depends(only_parameters("limit", "cursor"))])
async def list_schedules(app: AppDep, principal: PrincipalDep, page: PageDep) -> Page[ScheduleListed]:
    """List schedules, newest first, without their templates."""
    tenant_id = principal.tenant_id
    return await page.answer(
        f"schedules|{tenant_id}",
        lambda after, limit: service.list_page(app, tenant_id, after=after, limit=limit),
        schedule_listed,
    )


@router.get("/{schedule_id}", response_model=ScheduleOut, responses={304: {"description": "Not modified"}})
async def get_schedule(
    schedule_id: str,
    app: AppDep,
    principal: PrincipalDep,
    response: Response,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response | ScheduleOut:
    """Get a schedule."""
    row = await app.reads.run(lambda: service.get(app, principal.tenant_id, schedule_id))
    return unless_changed(response, if_none_match, etag_of(row)) or schedule_out(row)


@router.patch(
    "/{schedule_id}",
    responses=problems(
        PreconditionFailedError, PreconditionRequiredError, ScheduleChangedError, ScheduleNameTakenError
    ),
)
async def change_schedule(
    schedule_id: str,
    body: ScheduleChange,
    app: AppDep,
    principal: PrincipalDep,
    response: Response,
    if_match: IfMatch = None,
) -> ScheduleOut:
    """Update the fields in the body. If its times change, the next run is planned again from now."""
    row, warnings = await app.writes.run(
        lambda: service.change(app, principal, schedule_id, body, Conditions(if_match))
    )
    response.headers["ETag"] = etag_of(row)
    return schedule_out(row, warnings)


@router.delete("/{schedule_id}", status_code=204, responses=problems(PreconditionFailedError))
async def delete_schedule(schedule_id: str, app: AppDep, principal: PrincipalDep, if_match: IfMatch = None) -> Response:
    """Delete a schedule and its history. Its jobs are kept."""
    await app.writes.run(lambda: service.delete(app, principal, schedule_id, Conditions(if_match)))
    return Response(status_code=204)


@router.post(
    "/{schedule_id}/run",
    status_code=202,
    response_model=RunOut,
    responses=problems(ScheduleBusyError, ScheduleChangedError),
)
async def run_schedule(
    schedule_id: str, app: AppDep, principal: PrincipalDep, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Run a schedule now, even if it is paused or nothing has changed. Its planned times do not change."""
    answer = await app.writes.run(lambda: service.run(app, principal, schedule_id, key=idempotency_key))
    return answer.response()


@router.post("/{schedule_id}/pause")
async def pause_schedule(schedule_id: str, app: AppDep, principal: PrincipalDep, response: Response) -> ScheduleOut:
    """Pause a schedule: it is not due until it is resumed. A run in progress continues."""
    row = await app.writes.run(lambda: service.pause(app, principal, schedule_id))
    response.headers["ETag"] = etag_of(row)
    return schedule_out(row)


@router.post("/{schedule_id}/resume", responses=problems(ScheduleChangedError))
async def resume_schedule(schedule_id: str, app: AppDep, principal: PrincipalDep, response: Response) -> ScheduleOut:
    """Resume a paused schedule. Runs that were due while it was paused are not made up for."""
    row = await app.writes.run(lambda: service.resume(app, principal, schedule_id))
    response.headers["ETag"] = etag_of(row)
    return schedule_out(row)


@router.get("/{schedule_id}/runs", dependencies=[Depends(only_parameters("state", "limit", "cursor"))])
async def list_schedule_runs(
    schedule_id: str,
    app: AppDep,
    principal: PrincipalDep,
    page: PageDep,
    state: Annotated[RunState | None, Query()] = None,
) -> Page[RunOut]:
    """List the runs of a schedule, due or requested, newest first, with their results."""
    tenant_id = principal.tenant_id
    return await page.answer(
        f"runs|{tenant_id}|{schedule_id}|{state}",
        lambda after, limit: service.list_runs(app, tenant_id, schedule_id, state=state, after=after, limit=limit),
        run_out,
    )


@router.get("/{schedule_id}/runs/{run_id}")
async def get_schedule_run(schedule_id: str, run_id: str, app: AppDep, principal: PrincipalDep) -> RunOut:
    """Get a run of a schedule."""
    return run_out(await app.reads.run(lambda: service.get_run(app, principal.tenant_id, schedule_id, run_id)))
