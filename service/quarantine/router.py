"""HTTP routes of the quarantine."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from service.deps import AppDep, PrincipalDep, reading
from service.http import only_parameters, problems
from service.quarantine import service
from service.quarantine.schemas import QuarantineList, QuarantineNotFoundError

router = APIRouter(prefix="/v1/quarantine", tags=["quarantine"])


@router.get("", dependencies=[Depends(only_parameters())])
@reading
def list_quarantine(app: AppDep, principal: PrincipalDep) -> QuarantineList:
    """List models in quarantine: they crashed the runner process twice in a row and are no longer processed."""
    return QuarantineList(items=service.list_all(app, principal.tenant_id))


@router.delete("/{digest}", status_code=204, responses=problems(QuarantineNotFoundError))
async def release_model(digest: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Release a model from quarantine: jobs with it are accepted and run again."""
    await app.writes.run(lambda: service.release(app, principal, digest))
    return Response(status_code=204)
