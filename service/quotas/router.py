"""HTTP routes of quotas: the own one, and all tenants' for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from service.contracts.quota import Quota
from service.deps import AppDep, AppState, PrincipalDep
from service.principal import Principal
from service.quotas import service
from service.quotas.schemas import TenantOut

# Tenants' limits: seen and set.


def get(app: AppState, tenant_id: str) -> TenantOut:
    """What a tenant may use, and uses."""
    with app.database.read() as session:
        return service.tenant_out(session, app.settings, tenant_id)


def names(app: AppState) -> list[str]:
    """The tenants that have a key, limits or usage, by name."""
    with app.database.read() as session:
        return service.names(session)


def set_quota(app: AppState, by: Principal, tenant_id: str, own: Quota) -> TenantOut:
    """Set a tenant's own limits, in place of all that were set before."""
    with app.database.write() as session:
        service.set_quota(session, by, tenant_id, own)
    return get(app, tenant_id)


router = APIRouter(tags=["tenants"])
Tenant = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The tenant's name.")]


@router.get("/v1/quota")
async def get_quota(app: AppDep, principal: PrincipalDep) -> TenantOut:
    """Get the quota and the usage of your tenant."""
    return await app.reads.run(lambda: get(app, principal.tenant_id))


@router.get("/v1/tenants/{tenant}")
async def get_tenant(tenant: Tenant, app: AppDep, _: PrincipalDep) -> TenantOut:
    """Get the quota and the usage of a tenant. Requires an operator key."""
    return await app.reads.run(lambda: get(app, tenant))


@router.put("/v1/tenants/{tenant}/quota")
async def set_tenant_quota(tenant: Tenant, body: Quota, app: AppDep, principal: PrincipalDep) -> TenantOut:
    """Set a tenant's own limits. They replace all limits set before; omitted limits use the default.

    Requires an operator key.

    Every API process applies them within five seconds.
    """
    return await app.writes.run(lambda: set_quota(app, principal, tenant, body))
