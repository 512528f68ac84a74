"""HTTP face of the audit: of one's own tenant for admins, of all for operators."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from service.audit import service as audit
from service.deps import AppDep, AppState, PrincipalDep
from service.http import only_parameters
from service.keys.schemas import Tenant
from service.keys.scopes import seen_tenant

router = APIRouter(tags=["audit"])

_SEQ_MAX = 2**62


class AuditOut(BaseModel):
    """One deed."""

    seq: int
    tenant_id: str
    actor: str = Field(description="Id of the key, or what stands in its place, such as local-key.")
    action: str = Field(description="Noun and verb, such as job.cancel.")
    object: str = Field(description="Id of what it was done to.")
    request_id: str
    address: str = Field(description="Of the client; behind a proxy that is not trusted the proxy's.")
    at: datetime
    previous_hash: str
    hash: str


class AuditPage(BaseModel):
    """Deeds, the newest first."""

    items: list[AuditOut]
    next_before: int | None = Field(default=None, description="Send it as ?before= to get the next page.")


@router.get("/v1/audit", dependencies=[Depends(only_parameters("tenant", "before", "limit"))])
async def list_audit(
    app: AppDep,
    principal: PrincipalDep,
    tenant: Annotated[Tenant | None, Query(description="Of this tenant alone; another's takes an operator.")] = None,
    before: Annotated[int | None, Query(ge=1, le=_SEQ_MAX, description="Only rows with numbers below this.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditPage:
    """Who did what in the asker's tenant, operators' deeds there too; for operators in all."""
    shown = seen_tenant(principal, tenant)
    return await app.reads.run(lambda: _page(app, shown, before, limit))


def _page(app: AppState, tenant: str | None, before: int | None, limit: int) -> AuditPage:
    rows, more = audit.list_page(app.database, tenant, before=before, limit=limit)
    items = [AuditOut.model_validate(row, from_attributes=True) for row in rows]
    return AuditPage(items=items, next_before=items[-1].seq if more else None)
