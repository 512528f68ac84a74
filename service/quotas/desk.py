"""Tenants' limits, at the desk: seen and set."""

from __future__ import annotations

from service.contracts.quota import Quota
from service.deps import Desk
from service.principal import Principal
from service.quotas import service
from service.quotas.schemas import TenantOut


def get(desk: Desk, tenant_id: str) -> TenantOut:
    """What a tenant may use, and uses."""
    with desk.database.read() as session:
        return service.tenant_out(session, desk.settings, tenant_id)


def set_quota(desk: Desk, by: Principal, tenant_id: str, own: Quota) -> TenantOut:
    """Set a tenant's own limits, in place of all that were set before."""
    with desk.database.write() as session:
        service.set_quota(session, by, tenant_id, own)
    return get(desk, tenant_id)
