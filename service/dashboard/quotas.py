"""What a tenant may use: as a table beside its use, and as a form for operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ValidationError

from service.contracts.quota import Quota
from service.dashboard.forms import Form, field_errors, sent
from service.dashboard.pages import PageRoute, page, see
from service.deps import AppDep, PrincipalDep
from service.quotas import actions as quotas
from service.quotas.schemas import TenantOut
from service.reports import figures

router = APIRouter(route_class=PageRoute, include_in_schema=False)
Tenant = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
# What is typed for no limit at all; a field that is left blank is the installation's default.
NO_LIMIT = "none"


def _number(value: float) -> str:
    return f"{value:,}"


class Limit(NamedTuple):
    """How a limit is called, how its figures are shown, and the unit in which it is typed."""

    title: str
    shown: Callable[[float], str]
    unit: str


# In the order of the table.
LIMITS: dict[str, Limit] = {
    "stored_bytes": Limit("Bytes stored", figures.size, "bytes"),
    "upload_bytes": Limit("Largest file", figures.size, "bytes"),
    "jobs_queued": Limit("Jobs that wait", _number, "jobs"),
    "jobs_running": Limit("Jobs that run", _number, "jobs"),
    "jobs_per_day": Limit("Jobs within 24 hours", _number, "jobs"),
    "cpu_seconds_per_day": Limit("CPU time today", figures.seconds, "seconds"),
    "requests_per_second": Limit("Requests per second, of each API process", _number, "requests per second"),
    "upload_bytes_per_second": Limit("Uploads per second, of each API process", figures.size, "bytes per second"),
    "open_streams": Limit("Event streams, of each API process", _number, "streams"),
}


class QuotaLine(NamedTuple):
    """One limit as it is shown.

    Attributes:
        title: what is limited.
        limit: None: nothing limits it.
        used: None: it is no amount that is used up.
        share: of the limit that is used, at most 1.
        own: whether it was set for this tenant.
    """

    title: str
    limit: str | None
    used: str | None
    share: float | None
    own: bool


def lines_of(out: TenantOut) -> list[QuotaLine]:
    """The table of a tenant's limits."""
    limits, usage = out.quota.model_dump(), out.usage.model_dump()
    found = []
    for name, (title, shown, _) in LIMITS.items():
        limit, used = limits[name], usage.get(name)
        share = min(1.0, used / limit) if limit and used is not None else None
        found.append(
            QuotaLine(
                title,
                None if limit is None else shown(limit),
                None if used is None else shown(used),
                share,
                name in out.own,
            )
        )
    return found


@router.get("/admin/quotas")
async def find_quota(
    request: Request, _: PrincipalDep, of: Annotated[str, Query(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
) -> Response:
    """Go on at a tenant's own page."""
    return see(request, f"/admin/quotas/{of}")


@router.get("/admin/quotas/{tenant}")
async def get_quota(request: Request, tenant: Tenant, app: AppDep, principal: PrincipalDep) -> Response:
    """The form of a tenant's limits, filled in with its own."""
    out = await app.reads.run(lambda: quotas.get(app, tenant))
    typed = {name: NO_LIMIT if value is None else f"{value}" for name, value in out.own.items()}
    return _form(request, out, typed, {})


@router.post("/admin/quotas/{tenant}")
async def set_quota(request: Request, tenant: Tenant, app: AppDep, principal: PrincipalDep) -> Response:
    """Set them, in place of all that were set before; what is not right stands at its field, with what was typed."""
    form = await sent(request)
    try:
        own = await app.checks.run(lambda: _own(form))
    except ValidationError as error:
        typed = {name: form.text(name) or "" for name in LIMITS}
        out = await app.reads.run(lambda: quotas.get(app, tenant))
        return _form(request, out, typed, field_errors(error, Quota))
    await app.writes.run(lambda: quotas.set_quota(app, principal, tenant, own))
    return see(request, f"/admin/quotas/{tenant}")


def _own(form: Form) -> Quota:
    typed = {name: text for name in LIMITS if (text := form.text(name)) is not None}
    without = [name for name, text in typed.items() if text.lower() == NO_LIMIT]
    limits = {name: text for name, text in typed.items() if name not in without}
    given = Quota.model_validate_strings(limits, strict=False)
    return Quota.model_validate({**given.model_dump(exclude_unset=True), **dict.fromkeys(without)})


def _form(request: Request, out: TenantOut, typed: dict[str, str], errors: dict[str, str]) -> Response:
    shown: dict[str, Any] = {"tenant": out.tenant, "limits": LIMITS, "lines": lines_of(out)}
    status = 422 if errors else 200
    return page(request, "quota.html.jinja", status=status, typed=typed, errors=errors, no_limit=NO_LIMIT, **shown)
