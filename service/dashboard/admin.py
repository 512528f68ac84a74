"""For admins: keys, quota and audit of the tenant; for operators the audit of all, and their limits."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from service.audit import service as audit
from service.dashboard.forms import Form, checked, field_errors, sent
from service.dashboard.pages import PageRoute, changed_query, page, root_of, see
from service.dashboard.quotas import lines_of
from service.deps import AppDep, AppState, PrincipalDep
from service.keys import actions as keys
from service.keys.schemas import DAY_SECONDS, KeyCreate, KeyMade
from service.keys.scopes import seen_tenant
from service.principal import SCOPES, Principal
from service.quotas import actions as quotas

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LIMIT = 50
_SEQ_MAX = 2**62
_EMPTY = {"name": "", "scope": "submit", "days": ""}
_TENANT = r"^[A-Za-z0-9_-]{0,64}$"


@router.get("/admin")
async def get_admin(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    tenant: Annotated[str, Query(pattern=_TENANT)] = "",
    before: Annotated[int | None, Query(ge=1, le=_SEQ_MAX)] = None,
) -> Response:
    """Keys, quotas and the audit."""
    shown = await app.reads.run(lambda: _shown(request, app, principal, tenant=tenant, before=before))
    return page(request, "admin.html.jinja", typed=_EMPTY, errors={}, verdict=None, **shown)


@router.post("/admin/keys")
async def create_key(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Make a key, and show its text this once; what is not right stands at its field, with what was typed."""
    form = await sent(request)
    asked = {name: value for name in _EMPTY if (value := form.text(name)) is not None}
    try:
        body = await checked(app, KeyCreate, asked)
    except ValidationError as error:
        return await _again(request, app, principal, form, error)
    made = await app.writes.run(lambda: KeyMade.model_validate(keys.create(app, principal, body).body))
    return page(request, "secret_made.html.jinja", **_shown_once(made))


@router.post("/admin/keys/{key_id}/rotate")
async def rotate_key(request: Request, key_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Make a key in place of one, and show its text this once."""
    made = await app.writes.run(lambda: keys.rotate(app, principal, key_id, grace_seconds=DAY_SECONDS))
    return page(request, "secret_made.html.jinja", **_shown_once(made))


@router.post("/admin/keys/{key_id}/revoke")
async def revoke_key(request: Request, key_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """End a key."""
    await app.writes.run(lambda: keys.revoke(app, principal, key_id))
    return see(request, "/admin")


@router.post("/admin/audit/verify")
async def verify_audit(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Whether the chain of the audit holds."""
    verdict = await app.reads.run(lambda: audit.verify_all(app.database))
    shown = await app.reads.run(lambda: _shown(request, app, principal))
    return page(request, "admin.html.jinja", typed=_EMPTY, errors={}, verdict=verdict, **shown)


def _shown(
    request: Request, app: AppState, principal: Principal, *, tenant: str = "", before: int | None = None
) -> dict[str, Any]:
    """What the page shows, whatever was asked of it."""
    rows, more = audit.list_page(app.database, seen_tenant(principal, tenant or None), before=before, limit=_LIMIT)
    return {
        "keys": keys.list_keys(app, principal.tenant_id),
        "scopes": [(scope, scope) for scope in SCOPES if principal.may(scope)],
        "quota": lines_of(quotas.get(app, principal.tenant_id)),
        "deeds": rows,
        "tenant": tenant,
        "before": before,
        "next_query": f"{root_of(request)}/admin{changed_query(request, before=rows[-1].seq)}" if more else None,
    }


async def _again(request: Request, app: AppState, principal: Principal, form: Form, error: ValidationError) -> Response:
    shown = await app.reads.run(lambda: {**_shown(request, app, principal), "errors": field_errors(error, KeyCreate)})
    typed = {name: form.text(name) or "" for name in _EMPTY}
    return page(request, "admin.html.jinja", status=422, typed=typed, verdict=None, **shown)


def _shown_once(made: KeyMade) -> dict[str, Any]:
    return {
        "title": "The new key",
        "about": f"{made.name}, scope {made.scope}",
        "secret": made.key,
        "use": "Programs send it as Authorization: Bearer KEY; people sign in with it.",
        "back": "/admin",
        "back_words": "To the keys",
    }
