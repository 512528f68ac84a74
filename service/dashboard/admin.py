"""Signing in with a key, and out; keys, quota and audit of the tenant; for operators those of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ValidationError

from service.audit import service as audit
from service.contracts.quota import Quota
from service.dashboard.forms import FormFields, checked, field_errors, sent
from service.dashboard.pages import PageRoute, add_act, changed_query, page, root_of, see
from service.deps import AppDep, AppState, PrincipalDep, address_of
from service.keys import actions as keys
from service.keys import cookies
from service.keys.files import LOCAL_KEY_FILE
from service.keys.schemas import DAY_SECONDS, KeyCreate, KeyMade
from service.keys.scopes import seen_tenant
from service.principal import SCOPES, Principal
from service.quotas import router as quotas
from service.quotas.schemas import TenantOut
from service.reports import figures

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/sign-in")
async def get_sign_in(request: Request, app: AppDep, next: str = "/") -> Response:  # noqa: A002 - as it stands in the address
    """The page that asks for a key."""
    if app.settings.keyless:
        return see(request, _own(next))
    return page(request, "sign_in.html.jinja", next=_own(next), refused=False, key_file=_key_file(app))


@router.post("/sign-in")
async def sign_in(request: Request, app: AppDep) -> Response:
    """Take a key, and give the browser a session for it."""
    form = await sent(request)
    wanted, key = _own(form.text("next") or "/"), form.text("key")
    made = None
    if key is not None:
        made = await app.reads.run(lambda: app.keyring.session_token(key, address_of(request)))
    if made is None:
        shown = {"next": wanted, "refused": True, "key_file": _key_file(app)}
        return page(request, "sign_in.html.jinja", status=401, **shown)
    answer = see(request, wanted)
    cookies.keep(answer, request, made[0])
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Have the browser forget its session."""
    answer = see(request, "/sign-in")
    cookies.drop(answer, request)
    return answer


def _own(path: str) -> str:
    """A path of this service; whatever else was given is the first page."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"


def _key_file(app: AppDep) -> str | None:
    """Where the key of this machine lies, for who reaches the service on this machine alone."""
    path = app.settings.data_dir / LOCAL_KEY_FILE
    return str(path) if app.settings.api_key is None and path.is_file() else None


Tenant = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
# What is typed for no limit at all; a field that is left blank is the installation's default.
NO_LIMIT = "none"


def _number(value: float) -> str:
    return f"{value:,}"


class QuotaField(NamedTuple):
    """How a limit is called, how its figures are shown, and the unit in which it is typed."""

    title: str
    shown: Callable[[float], str]
    unit: str


# In the order of the table.
LIMITS: dict[str, QuotaField] = {
    "stored_bytes": QuotaField("Bytes stored", figures.size, "bytes"),
    "upload_bytes": QuotaField("Largest file", figures.size, "bytes"),
    "jobs_queued": QuotaField("Jobs that wait", _number, "jobs"),
    "jobs_running": QuotaField("Jobs that run", _number, "jobs"),
    "jobs_per_day": QuotaField("Jobs within 24 hours", _number, "jobs"),
    "cpu_seconds_per_day": QuotaField("CPU time today", figures.seconds, "seconds"),
    "requests_per_second": QuotaField("Requests per second, of each API process", _number, "requests per second"),
    "upload_bytes_per_second": QuotaField("Uploads per second, of each API process", figures.size, "bytes per second"),
    "open_streams": QuotaField("Event streams, of each API process", _number, "streams"),
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
        own = await app.checks.run(lambda: _quotas_own(form))
    except ValidationError as error:
        typed = {name: form.text(name) or "" for name in LIMITS}
        out = await app.reads.run(lambda: quotas.get(app, tenant))
        return _form(request, out, typed, field_errors(error, Quota))
    await app.writes.run(lambda: quotas.set_quota(app, principal, tenant, own))
    return see(request, f"/admin/quotas/{tenant}")


def _quotas_own(form: FormFields) -> Quota:
    typed = {name: text for name in LIMITS if (text := form.text(name)) is not None}
    without = [name for name, text in typed.items() if text.lower() == NO_LIMIT]
    limits = {name: text for name, text in typed.items() if name not in without}
    given = Quota.model_validate_strings(limits, strict=False)
    return Quota.model_validate({**given.model_dump(exclude_unset=True), **dict.fromkeys(without)})


def _form(request: Request, out: TenantOut, typed: dict[str, str], errors: dict[str, str]) -> Response:
    shown: dict[str, Any] = {"tenant": out.tenant, "limits": LIMITS, "lines": lines_of(out)}
    status = 422 if errors else 200
    return page(request, "quota.html.jinja", status=status, typed=typed, errors=errors, no_limit=NO_LIMIT, **shown)


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


@router.post("/admin/audit/verify")
async def verify_audit(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Whether the chain of the audit holds."""
    verdict = await app.reads.run(lambda: audit.verify_all(app.database))
    shown = await app.reads.run(lambda: _shown(request, app, principal))
    return page(request, "admin.html.jinja", typed=_EMPTY, errors={}, verdict=verdict, **shown)


def _shown(
    request: Request, app: AppState, principal: Principal, *, tenant: str = "", before: int | None = None
) -> dict[str, Any]:
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


async def _again(
    request: Request, app: AppState, principal: Principal, form: FormFields, error: ValidationError
) -> Response:
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


add_act(router, "/admin/keys/{key_id}/revoke", keys.revoke, "/admin")
