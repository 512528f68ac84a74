"""For admins: keys of the tenant, quotas with their use, and the audit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from service.audit import desk as audit
from service.contracts.validation import field_problems
from service.dashboard.forms import Form, sent
from service.dashboard.pages import PageRoute, changed_query, page, root_of, see
from service.deps import Desk, DeskDep, PrincipalDep
from service.keys import desk as keys
from service.keys.schemas import KeyCreate
from service.keys.service import MadeKey
from service.principal import SCOPES, Principal
from service.quotas import desk as quotas
from service.quotas.schemas import TenantOut
from service.reports import figures

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LIMIT = 50
_SEQ_MAX = 2**62
# So long a key that was replaced is good yet: its users are given the new one meanwhile.
_GRACE_SECONDS = 24 * 3600.0
_EMPTY = {"name": "", "scope": "submit", "days": ""}
_TENANT = r"^[A-Za-z0-9_-]{0,64}$"


def _number(value: float) -> str:
    return f"{value:,.6g}"


# How each limit is called, and how its figures are shown; in the order of the table.
_LIMITS: dict[str, tuple[str, Callable[[float], str]]] = {
    "stored_bytes": ("Bytes stored", figures.size),
    "upload_bytes": ("Largest file", figures.size),
    "jobs_queued": ("Jobs that wait", _number),
    "jobs_running": ("Jobs that run", _number),
    "jobs_per_day": ("Jobs within 24 hours", _number),
    "cpu_seconds_per_day": ("CPU time today", figures.seconds),
    "requests_per_second": ("Requests per second, of each API process", _number),
    "upload_bytes_per_second": ("Uploads per second, of each API process", figures.size),
    "open_streams": ("Event streams, of each API process", _number),
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


@router.get("/admin")
async def get_admin(
    request: Request,
    desk: DeskDep,
    principal: PrincipalDep,
    tenant: Annotated[str, Query(pattern=_TENANT)] = "",
    before: Annotated[int | None, Query(ge=1, le=_SEQ_MAX)] = None,
) -> Response:
    """Keys, quotas and the audit."""
    shown = await desk.reads.run(lambda: _shown(request, desk, principal, tenant=tenant, before=before))
    return page(request, "admin.html.jinja", typed=_EMPTY, errors={}, verdict=None, **shown)


@router.post("/admin/keys")
async def create_key(request: Request, desk: DeskDep, principal: PrincipalDep) -> Response:
    """Make a key, and show its text this once; what is not right stands at its field, with what was typed."""
    form = await sent(request)
    asked = {name: value for name in _EMPTY if (value := form.text(name)) is not None}
    try:
        body = KeyCreate.model_validate(asked)
    except ValidationError as error:
        return await _again(request, desk, principal, form, error)
    made = await desk.writes.run(lambda: keys.create(desk, principal, body))
    return page(request, "secret_made.html.jinja", **_shown_once(made))


@router.post("/admin/keys/{key_id}/rotate")
async def rotate_key(request: Request, key_id: str, desk: DeskDep, principal: PrincipalDep) -> Response:
    """Make a key in place of one, and show its text this once."""
    made = await desk.writes.run(lambda: keys.rotate(desk, principal, key_id, grace_seconds=_GRACE_SECONDS))
    return page(request, "secret_made.html.jinja", **_shown_once(made))


@router.post("/admin/keys/{key_id}/revoke")
async def revoke_key(request: Request, key_id: str, desk: DeskDep, principal: PrincipalDep) -> Response:
    """End a key."""
    await desk.writes.run(lambda: keys.revoke(desk, principal, key_id))
    return see(request, "/admin")


@router.post("/admin/audit/verify")
async def verify_audit(request: Request, desk: DeskDep, principal: PrincipalDep) -> Response:
    """Whether the chain of the audit holds."""
    verdict = await desk.reads.run(lambda: audit.verify(desk))
    shown = await desk.reads.run(lambda: _shown(request, desk, principal))
    return page(request, "admin.html.jinja", typed=_EMPTY, errors={}, verdict=verdict, **shown)


def _shown(
    request: Request, desk: Desk, principal: Principal, *, tenant: str = "", before: int | None = None
) -> dict[str, Any]:
    """What the page shows, whatever was asked of it."""
    rows, more = audit.list_page(desk, tenant or None, before=before, limit=_LIMIT)
    return {
        "keys": keys.list_keys(desk, principal.tenant_id),
        "scopes": [(scope, scope) for scope in SCOPES if principal.may(scope)],
        "quota": _lines(quotas.get(desk, principal.tenant_id)),
        "deeds": rows,
        "tenant": tenant,
        "before": before,
        "next_query": f"{root_of(request)}/admin{changed_query(request, before=rows[-1].seq)}" if more else None,
    }


def _lines(out: TenantOut) -> list[QuotaLine]:
    limits, usage = out.quota.model_dump(), out.usage.model_dump()
    found = []
    for name, (title, shown) in _LIMITS.items():
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


async def _again(request: Request, desk: Desk, principal: Principal, form: Form, error: ValidationError) -> Response:
    errors = {one.pointer.split("/")[1]: one.message for one in field_problems(error, KeyCreate)}
    typed = {name: form.text(name) or "" for name in _EMPTY}
    shown = await desk.reads.run(lambda: _shown(request, desk, principal))
    return page(request, "admin.html.jinja", status=422, typed=typed, errors=errors, verdict=None, **shown)


def _shown_once(made: MadeKey) -> dict[str, Any]:
    return {
        "title": "The new key",
        "about": f"{made.row.name}, scope {made.row.scope}",
        "secret": made.text,
        "use": "Programs send it as Authorization: Bearer KEY; people sign in with it.",
        "back": "/admin",
        "back_words": "To the keys",
    }
