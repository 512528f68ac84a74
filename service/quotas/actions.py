"""Tenants' limits: seen and set."""

from __future__ import annotations

from service.contracts.quota import Quota
from service.deps import AppState
from service.principal import Principal
from service.quotas import service
from service.quotas.schemas import TenantOut


def get(app: AppState, tenant_id: str) -> TenantOut:
    """What a tenant may use, and uses."""
    with app.database.read() as session:
        return service.tenant_out(session, app.settings, tenant_id)


def set_quota(app: AppState, by: Principal, tenant_id: str, own: Quota) -> TenantOut:
    """Set a tenant's own limits, in place of all that were set before."""
    with app.database.write() as session:
        service.set_quota(session, by, tenant_id, own)
    return get(app, tenant_id)
