"""HTTP routes of hand-overs."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.bodies import ThreadedBodyRoute
from service.deps import AppDep, PrincipalDep
from service.egress.errors import AddressNotAllowedError, UrlNotAllowedError
from service.hand_overs import service
from service.hand_overs.asking import prepared
from service.hand_overs.schemas import (
    ArtifactNotThereError,
    HandOverCreate,
    HandOverList,
    HandOverRefusedError,
    HandOverUnavailableError,
    TooManyHandOversError,
)
from service.http import problems
from service.idempotency.answers import IdempotencyHeader

router = APIRouter(route_class=ThreadedBodyRoute, prefix="/v1/jobs/{job_id}/hand-over", tags=["hand-over"])


@router.get("")
async def list_hand_overs(job_id: str, app: AppDep, principal: PrincipalDep) -> HandOverList:
    """List the hand-overs of a job, with their state, in the order in which they were created."""
    return await app.reads.run(lambda: service.list_of_job(app, principal.tenant_id, job_id))


@router.post(
    "",
    status_code=202,
    response_model=HandOverList,
    responses=problems(
        AddressNotAllowedError,
        ArtifactNotThereError,
        HandOverRefusedError,
        HandOverUnavailableError,
        TooManyHandOversError,
        UrlNotAllowedError,
    ),
)
async def create_hand_overs(
    job_id: str,
    body: HandOverCreate,
    app: AppDep,
    principal: PrincipalDep,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Create hand-overs: results of a job are sent to your URLs when it has succeeded. Returns the new hand-overs.

    A failed hand-over is created again, with a new URL.
    """
    asked = await app.lookups.run(lambda: prepared(app.settings, body.targets, service.POINTER, names=True))
    return await app.writes.run(
        lambda: service.add(app, principal, job_id, body, asked, key=idempotency_key).response()
    )
