"""HTTP face of quotas: one's own, and for admins those of all tenants."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from service.contracts.quota import Quota
from service.deps import Desk, DeskDep, PrincipalDep
from service.quotas import service
from service.quotas.schemas import TenantOut

router = APIRouter(tags=["tenants"])

Tenant = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The tenant's name.")]


@router.get("/v1/quota")
async def get_quota(desk: DeskDep, principal: PrincipalDep) -> TenantOut:
    """What the key's tenant may use, and uses."""
    return await _out(desk, principal.tenant_id)


@router.get("/v1/tenants/{tenant}")
async def get_tenant(tenant: Tenant, desk: DeskDep, _: PrincipalDep) -> TenantOut:
    """What a tenant may use, and uses. For admins."""
    return await _out(desk, tenant)


@router.put("/v1/tenants/{tenant}/quota")
async def set_tenant_quota(tenant: Tenant, body: Quota, desk: DeskDep, principal: PrincipalDep) -> TenantOut:
    """Set the tenant's own limits, in place of all that were set before; what is left out is the default's. For admins.

    Every API process heeds them within five seconds.
    """

    def put() -> TenantOut:
        with desk.database.write() as session:
            service.set_quota(session, principal, tenant, body)
        with desk.database.read() as session:
            return service.tenant_out(session, desk.settings, tenant)

    return await desk.writes.run(put)


async def _out(desk: Desk, tenant_id: str) -> TenantOut:
    def read() -> TenantOut:
        with desk.database.read() as session:
            return service.tenant_out(session, desk.settings, tenant_id)

    return await desk.reads.run(read)
