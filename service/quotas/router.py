"""HTTP face of quotas: one's own, and for operators those of all tenants."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from service.contracts.quota import Quota
from service.deps import AppDep, PrincipalDep
from service.quotas import actions as quotas
from service.quotas.schemas import TenantOut

router = APIRouter(tags=["tenants"])

Tenant = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The tenant's name.")]


@router.get("/v1/quota")
async def get_quota(app: AppDep, principal: PrincipalDep) -> TenantOut:
    """What the key's tenant may use, and uses."""
    return await app.reads.run(lambda: quotas.get(app, principal.tenant_id))


@router.get("/v1/tenants/{tenant}")
async def get_tenant(tenant: Tenant, app: AppDep, _: PrincipalDep) -> TenantOut:
    """What a tenant may use, and uses. For operators."""
    return await app.reads.run(lambda: quotas.get(app, tenant))


@router.put("/v1/tenants/{tenant}/quota")
async def set_tenant_quota(tenant: Tenant, body: Quota, app: AppDep, principal: PrincipalDep) -> TenantOut:
    """Set the tenant's own limits, in place of all that were set before; what is left out is the default's.

    For operators.

    Every API process heeds them within five seconds.
    """
    return await app.writes.run(lambda: quotas.set_quota(app, principal, tenant, body))
