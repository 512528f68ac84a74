"""HTTP face of the quarantine."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from service.audit.service import note
from service.deps import AppDep, AppState, PrincipalDep, reading
from service.http import only_parameters, problems
from service.principal import Principal
from service.quarantine import repository
from service.quarantine.schemas import QuarantineList, QuarantineNotFoundError, QuarantineOut
from service.storage import is_sha256

router = APIRouter(prefix="/v1/quarantine", tags=["quarantine"])


def list_all(app: AppState, tenant_id: str) -> list[QuarantineOut]:
    """The tenant's models in quarantine, the newest first."""
    with app.database.read() as session:
        rows = repository.list_held(session, tenant_id)
        return [QuarantineOut.model_validate(row, from_attributes=True) for row in rows]


def release(app: AppState, by: Principal, digest: str) -> None:
    """Have jobs tried again with these bytes.

    Raises:
        QuarantineNotFoundError: they are not in quarantine.
    """
    with app.database.write() as session:
        # what is no digest is not asked for: PostgreSQL takes no NUL
        if not is_sha256(digest) or repository.held(session, by.tenant_id, digest) is None:
            raise QuarantineNotFoundError(digest)
        repository.forget(session, by.tenant_id, digest)
        note(session, by, "quarantine.release", digest)


@router.get("", dependencies=[Depends(only_parameters())])
@reading
def list_quarantine(app: AppDep, principal: PrincipalDep) -> QuarantineList:
    """Models that killed the process that worked on them, twice in a row: nothing is tried with them any more."""
    return QuarantineList(items=list_all(app, principal.tenant_id))


@router.delete("/{digest}", status_code=204, responses=problems(QuarantineNotFoundError))
async def release_model(digest: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Release a model from quarantine: jobs with it are accepted and run again."""
    await app.writes.run(lambda: release(app, principal, digest))
    return Response(status_code=204)
