"""API keys of the tenant: listed, created, rotated, revoked."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from service.dashboard.forms import checked, field_errors, sent
from service.dashboard.pages import PageRoute, add_act, page, see
from service.deps import AppDep, AppState, PrincipalDep
from service.keys import actions as keys
from service.keys.schemas import DAY_SECONDS, KeyCreate, KeyMade
from service.principal import SCOPES, Principal, Scope

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_EMPTY = {"name": "", "scope": "submit", "days": ""}
_SCOPE_WORDS: dict[Scope, str] = {
    "read": "read (view)",
    "submit": "submit (start jobs)",
    "manage": "manage (delete, schedule)",
    "admin": "admin (keys, audit log)",
    "operator": "operator (all tenants)",
}


@router.get("/keys")
async def list_keys(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Keys, newest first, and the form of a new one."""
    shown = await app.reads.run(lambda: _shown(app, principal))
    return page(request, "keys.html.jinja", typed=_EMPTY, errors={}, **shown)


@router.post("/keys")
async def create_key(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Create a key, and show its text this once; what is wrong is said at its field, with what was typed."""
    form = await sent(request)
    asked = {name: value for name in _EMPTY if (value := form.text(name)) is not None}
    try:
        body = await checked(app, KeyCreate, asked)
    except ValidationError as error:
        errors = field_errors(error, KeyCreate)
        typed = {name: form.text(name) or "" for name in _EMPTY}
        shown = await app.reads.run(lambda: _shown(app, principal))
        return page(request, "keys.html.jinja", status=422, typed=typed, errors=errors, **shown)
    made = await app.writes.run(lambda: KeyMade.model_validate(keys.create(app, principal, body).body))
    return page(request, "secret_made.html.jinja", **_shown_once(made))


@router.post("/keys/{key_id}/rotate")
async def rotate_key(request: Request, key_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Create a key in place of one, and show its text this once."""
    made = await app.writes.run(lambda: keys.rotate(app, principal, key_id, grace_seconds=DAY_SECONDS))
    return page(request, "secret_made.html.jinja", **_shown_once(made))


def _shown(app: AppState, principal: Principal) -> dict[str, Any]:
    return {
        "keys": keys.list_keys(app, principal.tenant_id),
        "scopes": [(scope, _SCOPE_WORDS[scope]) for scope in SCOPES if principal.may(scope)],
    }


def _shown_once(made: KeyMade) -> dict[str, Any]:
    return {
        "title": "API key created",
        "about": f"{made.name}, scope {made.scope}",
        "what": "API key",
        "secret": made.key,
        "use": "Programs send it as Authorization: Bearer KEY. People sign in with it.",
        "back": "/keys",
        "back_words": "Back to keys",
    }


add_act(router, "/keys/{key_id}/revoke", keys.revoke, "/keys")


@router.get("/admin")
async def get_admin(request: Request, principal: PrincipalDep) -> Response:
    """Where keys, quota and the audit log were before."""
    return see(request, "/keys")
