"""Required scope of each route, as data. Routes not listed require read or submit, by method."""

from __future__ import annotations

from service.keys.schemas import ScopeMissingError
from service.principal import Principal, Scope

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
# Routes that need another scope than their method says; operators alone see what concerns all tenants.
_NEEDED: dict[tuple[str, str], Scope] = {
    ("POST", "/v1/jobs:validate"): "read",
    ("POST", "/v1/jobs/{job_id}/events/token"): "read",
    ("POST", "/v1/batches/{batch_id}/events/token"): "read",
    # a form that nobody could send who may not submit
    ("GET", "/new"): "submit",
    ("DELETE", "/v1/jobs/{job_id}"): "manage",
    ("POST", "/jobs/{job_id}/delete"): "manage",
    ("DELETE", "/v1/batches/{batch_id}"): "manage",
    ("DELETE", "/v1/models/{model_id}"): "manage",
    ("DELETE", "/v1/datasets/{dataset_id}"): "manage",
    ("PUT", "/v1/models/{model_id}/aliases/{alias}"): "manage",
    ("DELETE", "/v1/models/{model_id}/aliases/{alias}"): "manage",
    ("PUT", "/v1/datasets/{dataset_id}/aliases/{alias}"): "manage",
    ("DELETE", "/v1/datasets/{dataset_id}/aliases/{alias}"): "manage",
    ("DELETE", "/v1/quarantine/{digest}"): "manage",
    ("POST", "/workers/quarantine/{digest}/release"): "manage",
    ("GET", "/schedules/new"): "manage",
    ("POST", "/schedules/new"): "manage",
    ("GET", "/schedules/{schedule_id}/edit"): "manage",
    ("POST", "/schedules/{schedule_id}/edit"): "manage",
    ("POST", "/schedules/{schedule_id}/pause"): "manage",
    ("POST", "/schedules/{schedule_id}/resume"): "manage",
    ("POST", "/schedules/{schedule_id}/delete"): "manage",
    # they submit jobs, and may move aliases, for as long as they are there
    ("POST", "/v1/schedules"): "manage",
    ("PATCH", "/v1/schedules/{schedule_id}"): "manage",
    ("DELETE", "/v1/schedules/{schedule_id}"): "manage",
    ("POST", "/v1/schedules/{schedule_id}/pause"): "manage",
    ("POST", "/v1/schedules/{schedule_id}/resume"): "manage",
    # what is told there leaves the service; a URL may itself be a secret of its receiver's
    ("GET", "/v1/webhooks"): "manage",
    ("POST", "/v1/webhooks"): "manage",
    ("GET", "/v1/webhooks/{webhook_id}"): "manage",
    ("PATCH", "/v1/webhooks/{webhook_id}"): "manage",
    ("DELETE", "/v1/webhooks/{webhook_id}"): "manage",
    ("POST", "/v1/webhooks/{webhook_id}/rotate"): "manage",
    ("POST", "/v1/webhooks/{webhook_id}/ping"): "manage",
    ("GET", "/v1/webhooks/{webhook_id}/deliveries"): "manage",
    ("POST", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver"): "manage",
    # pages that do the same
    ("GET", "/models/{ref}/delete"): "manage",
    ("POST", "/models/{ref}/delete"): "manage",
    ("POST", "/models/{ref}/aliases"): "manage",
    ("POST", "/models/{ref}/aliases/end"): "manage",
    ("GET", "/datasets/{ref}/delete"): "manage",
    ("POST", "/datasets/{ref}/delete"): "manage",
    ("POST", "/datasets/{ref}/aliases"): "manage",
    ("POST", "/datasets/{ref}/aliases/end"): "manage",
    ("POST", "/batches/{batch_id}/delete"): "manage",
    ("GET", "/webhooks"): "manage",
    ("GET", "/webhooks/new"): "manage",
    ("POST", "/webhooks/new"): "manage",
    ("GET", "/webhooks/{webhook_id}"): "manage",
    ("GET", "/webhooks/{webhook_id}/edit"): "manage",
    ("POST", "/webhooks/{webhook_id}/edit"): "manage",
    ("POST", "/webhooks/{webhook_id}/delete"): "manage",
    ("POST", "/webhooks/{webhook_id}/rotate"): "manage",
    ("POST", "/webhooks/{webhook_id}/ping"): "manage",
    ("POST", "/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver"): "manage",
    ("GET", "/keys"): "admin",
    ("POST", "/keys"): "admin",
    ("POST", "/keys/{key_id}/rotate"): "admin",
    ("POST", "/keys/{key_id}/revoke"): "admin",
    ("GET", "/audit"): "admin",
    ("POST", "/audit/verify"): "operator",
    ("GET", "/tenants"): "admin",
    ("GET", "/tenants/{tenant}"): "operator",
    ("POST", "/tenants/{tenant}"): "operator",
    # where these pages were before
    ("GET", "/admin"): "admin",
    ("GET", "/admin/quotas/{tenant}"): "operator",
    ("GET", "/v1/keys"): "admin",
    ("POST", "/v1/keys"): "admin",
    ("GET", "/v1/keys/{key_id}"): "admin",
    ("POST", "/v1/keys/{key_id}/rotate"): "admin",
    ("POST", "/v1/keys/{key_id}/revoke"): "admin",
    ("GET", "/v1/audit"): "admin",
    ("GET", "/metrics"): "operator",
    ("GET", "/v1/tenants/{tenant}"): "operator",
    ("PUT", "/v1/tenants/{tenant}/quota"): "operator",
}


def needed(method: str, path: str) -> Scope:
    """The scope that a request to the route ``path`` needs."""
    return _NEEDED.get((method, path)) or ("read" if method in _READING else "submit")


def is_own(by: Principal, tenant_id: str) -> bool:
    """True if it is the key's own tenant, whose resources it may look up."""
    return by.tenant_id == tenant_id


def seen_tenant(by: Principal, asked: str | None) -> str | None:
    """The tenant whose things are shown, where ``asked`` is what was asked for; None: all, which operators alone see.

    Raises:
        ScopeMissingError: it is another's, and the asker no operator.
    """
    if by.may("operator") or asked == by.tenant_id:
        return asked
    if asked is None:
        return by.tenant_id
    raise ScopeMissingError(
        f"A key of scope {by.scope!r} can access only its own tenant, not {asked!r}.",
        hint="Omit the tenant, or use a key of scope 'operator'.",
    )
