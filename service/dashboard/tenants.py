"""Tenants: what each may use, and uses; for operators a form that sets the limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ValidationError

from service.contracts.quota import Quota
from service.dashboard.forms import FormFields, field_errors, sent
from service.dashboard.pages import PageRoute, page, see
from service.deps import AppDep, AppState, PrincipalDep
from service.principal import Principal
from service.quotas import router as quotas
from service.quotas.schemas import TenantOut
from service.reports import figures

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
Tenant = Annotated[str, Path(pattern=_PATTERN)]
# What is typed for no limit at all; a field that is left blank is the installation's default.
NO_LIMIT = "none"
# Tenants that are listed with what they use; each takes several statements.
_LISTED = 100


def _number(value: float) -> str:
    return f"{value:,}"


class QuotaField(NamedTuple):
    """How a limit is called, how its figures are shown, and the unit in which it is typed."""

    title: str
    shown: Callable[[float], str]
    unit: str


# In the order of the table.
LIMITS: dict[str, QuotaField] = {
    "stored_bytes": QuotaField("Storage", figures.size, "bytes"),
    "upload_bytes": QuotaField("Largest file", figures.size, "bytes"),
    "jobs_queued": QuotaField("Queued jobs", _number, "jobs"),
    "jobs_running": QuotaField("Running jobs", _number, "jobs"),
    "jobs_per_day": QuotaField("Jobs in 24 hours", _number, "jobs"),
    "cpu_seconds_per_day": QuotaField("CPU time today", figures.seconds, "seconds"),
    "requests_per_second": QuotaField("Requests per second, per API process", _number, "requests per second"),
    "upload_bytes_per_second": QuotaField("Upload rate, per API process", figures.size, "bytes per second"),
    "open_streams": QuotaField("Event streams, per API process", _number, "streams"),
}


def lines_of(out: TenantOut) -> list[dict[str, Any]]:
    """The table of a tenant's limits; ``used`` is None for what is no amount that is used up."""
    limits, usage = out.quota.model_dump(), out.usage.model_dump()
    found = []
    for name, (title, shown, _) in LIMITS.items():
        limit, used = limits[name], usage.get(name)
        share = min(1.0, used / limit) if limit and used is not None else None
        words = {"limit": None if limit is None else shown(limit), "used": None if used is None else shown(used)}
        found.append({"title": title, "share": share, "own": name in out.own, **words})
    return found


@router.get("/tenants")
async def list_tenants(
    request: Request, app: AppDep, principal: PrincipalDep, of: Annotated[str, Query(pattern=f"{_PATTERN}|^$")] = ""
) -> Response:
    """The asker's tenant; for operators all of them."""
    if of and principal.may("operator"):
        return see(request, f"/tenants/{of}")
    return page(request, "tenants.html.jinja", **await app.reads.run(lambda: _listed(app, principal)))


def _listed(app: AppState, principal: Principal) -> dict[str, Any]:
    names = quotas.names(app) if principal.may("operator") else []
    shown = [quotas.get(app, name) for name in names[:_LISTED]]
    return {
        "tenants": shown,
        "left_out": len(names) - len(shown),
        "quota": lines_of(quotas.get(app, principal.tenant_id)),
    }


@router.get("/tenants/{tenant}")
async def get_tenant(request: Request, tenant: Tenant, app: AppDep, principal: PrincipalDep) -> Response:
    """What a tenant uses, and the form of its limits, filled in with its own."""
    out = await app.reads.run(lambda: quotas.get(app, tenant))
    typed = {name: NO_LIMIT if value is None else f"{value}" for name, value in out.own.items()}
    return _form(request, out, typed, {})


@router.post("/tenants/{tenant}")
async def set_limits(request: Request, tenant: Tenant, app: AppDep, principal: PrincipalDep) -> Response:
    """Set them, in place of all that were set before; what is wrong is said at its field, with what was typed."""
    form = await sent(request)
    try:
        own = await app.checks.run(lambda: _typed_limits(form))
    except ValidationError as error:
        typed = {name: form.text(name) or "" for name in LIMITS}
        out = await app.reads.run(lambda: quotas.get(app, tenant))
        return _form(request, out, typed, field_errors(error, Quota))
    await app.writes.run(lambda: quotas.set_quota(app, principal, tenant, own))
    return see(request, f"/tenants/{tenant}")


def _typed_limits(form: FormFields) -> Quota:
    typed = {name: text for name in LIMITS if (text := form.text(name)) is not None}
    without = [name for name, text in typed.items() if text.lower() == NO_LIMIT]
    limits = {name: text for name, text in typed.items() if name not in without}
    given = Quota.model_validate_strings(limits, strict=False)
    return Quota.model_validate({**given.model_dump(exclude_unset=True), **dict.fromkeys(without)})


def _form(request: Request, out: TenantOut, typed: dict[str, str], errors: dict[str, str]) -> Response:
    shown: dict[str, Any] = {"tenant": out.tenant, "limits": LIMITS, "lines": lines_of(out)}
    status = 422 if errors else 200
    return page(request, "tenant.html.jinja", status=status, typed=typed, errors=errors, no_limit=NO_LIMIT, **shown)


@router.get("/admin/quotas/{tenant}")
async def get_quota(request: Request, tenant: Tenant, principal: PrincipalDep) -> Response:
    """Where the page of a tenant was before."""
    return see(request, f"/tenants/{tenant}")
