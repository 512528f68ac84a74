"""Webhooks: which URLs get which events, what fails there, what was sent and what came back."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from service.contracts.errors import InvalidRequestError
from service.contracts.webhooks import EVENT_TYPES
from service.dashboard.forms import FormFields, checked, field_errors, sent, told_at
from service.dashboard.listing import one_of, one_page
from service.dashboard.pages import PageRoute, add_act, page, see
from service.deps import AppDep, AppState, PrincipalDep
from service.egress.errors import EgressError
from service.http import Conditions, CursorParameter, PreconditionFailedError, etag_of
from service.pagination import Position
from service.tables import WebhookEndpoint
from service.webhooks import service
from service.webhooks.schemas import DAY_SECONDS, WebhookChange, WebhookCreate, WebhookRotate
from service.webhooks.service import delivery_out, webhook_out

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_Asked = TypeVar("_Asked", WebhookCreate, WebhookChange)
_LIMIT = 50
_STATES = ("waiting", "delivered", "failed")
# For how long the old secret still signs, as the form offers it.
_GRACES = ((f"{DAY_SECONDS:.0f}", "for 24 hours"), ("0", "not at all"), (f"{7 * DAY_SECONDS:.0f}", "for 7 days"))
_EMPTY = {"url": "", "event_types": [], "description": "", "enabled": True}
_GROUPS = {
    "job": "Jobs",
    "model": "Models",
    "dataset": "Datasets",
    "alias": "Aliases",
    "schedule": "Schedules",
    "webhook": "Webhooks",
}
_NONE_TICKED = "Select at least one event."


@router.get("/webhooks")
async def list_webhooks(
    request: Request, app: AppDep, principal: PrincipalDep, cursor: CursorParameter = None
) -> Response:
    """Webhooks, newest first."""
    rows, next_query = await one_page(
        request,
        app,
        f"webhooks|{principal.tenant_id}",
        cursor,
        lambda after: service.list_page(app, principal.tenant_id, after=after, limit=_LIMIT),
    )
    return page(request, "webhooks.html.jinja", webhooks=[webhook_out(row) for row in rows], next_query=next_query)


@router.get("/webhooks/new")
async def new_webhook(request: Request, principal: PrincipalDep) -> Response:
    """The form of one."""
    return _form(request, _EMPTY)


@router.post("/webhooks/new")
async def create_webhook(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Make it, and show its secret this once; errors are shown at their fields, with what was typed."""
    form = await sent(request)
    typed = _typed(form)
    body, errors = await _read(app, WebhookCreate, {**typed, "description": typed["description"] or None})
    if body is None:
        return _form(request, typed, errors=errors)
    made = (await app.writes.run(lambda: service.create(app, principal, body, None))).body
    return page(request, "secret_made.html.jinja", **_shown_once(made["id"], made["url"], made["secret"]))


@router.get("/webhooks/{webhook_id}")
async def get_webhook(
    request: Request,
    webhook_id: str,
    app: AppDep,
    principal: PrincipalDep,
    state: Annotated[str, Query(max_length=32)] = "",
    cursor: CursorParameter = None,
) -> Response:
    """One webhook with what was sent to it."""
    wanted = one_of(state, _STATES, "state")

    def read(after: Position | None) -> tuple[dict[str, Any], Position | None]:
        row = service.get(app, principal.tenant_id, webhook_id)
        rows, last = service.list_deliveries(
            app, principal.tenant_id, webhook_id, state=wanted, after=after, limit=_LIMIT
        )
        deliveries = [delivery_out(one) for one in rows]
        return {"webhook": webhook_out(row), "etag": etag_of(row), "deliveries": deliveries}, last

    scope = f"deliveries|{principal.tenant_id}|{webhook_id}|{state}"
    shown, next_query = await one_page(request, app, scope, cursor, read)
    shown |= {"states": [(one, one) for one in _STATES], "chosen": state, "graces": _GRACES}
    return page(request, "webhook.html.jinja", next_query=next_query, **shown)


@router.get("/webhooks/{webhook_id}/edit")
async def edit_webhook(request: Request, webhook_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """The form of one, filled in."""
    row = await app.reads.run(lambda: service.get(app, principal.tenant_id, webhook_id))
    return _form(request, _stored(row), webhook_id=webhook_id, tag=etag_of(row))


@router.post("/webhooks/{webhook_id}/edit")
async def change_webhook(request: Request, webhook_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Change it; if somebody else has since the form was filled in, show what was typed beside what it is now."""
    form = await sent(request)
    typed, tag = _typed(form), form.text("etag")
    asked = {**typed, "description": typed["description"] or None}
    row = await app.reads.run(lambda: service.get(app, principal.tenant_id, webhook_id))
    if asked["url"] == row.url:
        del asked["url"]  # one that is set anew counts as another, which has not failed yet
    body, errors = await _read(app, WebhookChange, asked)
    if body is None:
        return _form(request, typed, webhook_id=webhook_id, tag=tag or "", errors=errors)
    try:
        await app.writes.run(lambda: service.change(app, principal, webhook_id, body, Conditions(tag)))
    except PreconditionFailedError:
        row = await app.reads.run(lambda: service.get(app, principal.tenant_id, webhook_id))
        return _form(request, typed, webhook_id=webhook_id, tag=etag_of(row), now=_stored(row))
    return see(request, f"/webhooks/{webhook_id}")


@router.post("/webhooks/{webhook_id}/delete")
async def delete_webhook(request: Request, webhook_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Delete it with its deliveries."""
    tag = (await sent(request)).text("etag")
    await app.writes.run(lambda: service.delete(app, principal, webhook_id, Conditions(tag)))
    return see(request, "/webhooks")


@router.post("/webhooks/{webhook_id}/rotate")
async def rotate_webhook(request: Request, webhook_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Give it another secret, and show that this once."""
    grace = (await sent(request)).text("grace_seconds")
    if grace not in dict(_GRACES):
        raise InvalidRequestError("How long the old secret works is missing.", pointer="/grace_seconds")
    body = WebhookRotate(grace_seconds=float(grace))
    made = await app.writes.run(lambda: service.rotate(app, principal, webhook_id, body))
    return page(request, "secret_made.html.jinja", **_shown_once(made.row.id, made.row.url, made.secret))


def _typed(form: FormFields) -> dict[str, Any]:
    return {
        "url": form.text("url") or "",
        "event_types": form.all("event_types"),
        "description": form.text("description") or "",
        "enabled": form.ticked("enabled"),
    }


def _stored(row: WebhookEndpoint) -> dict[str, Any]:
    kept = {name: getattr(row, name) for name in ("url", "event_types", "enabled")}
    return {**kept, "description": row.description or ""}


async def _read(app: AppState, model: type[_Asked], asked: dict[str, Any]) -> tuple[_Asked | None, dict[str, str]]:
    """What is asked for, or all that is wrong with it, by field: the URL is looked up whatever else is wrong."""
    body, errors, url = None, {}, asked.get("url")
    try:
        body = await checked(app, model, asked)
    except ValidationError as error:
        errors = field_errors(error, WebhookCreate)
    if url is not None and "url" not in errors:
        try:
            await app.lookups.run(lambda: service.check_destination(app.settings, url))
        except EgressError as error:
            errors["url"] = told_at(error)
    if not asked["event_types"]:
        errors["event_types"] = _NONE_TICKED
    return (None if errors else body), errors


def _groups() -> list[tuple[str, list[tuple[str, str]]]]:
    """The events to tick, in groups: pattern and words of each."""
    return [
        (_GROUPS[noun], [(f"{noun}.*", "all"), *((f"{noun}.{name}", name) for name in names)])
        for noun, names in EVENT_TYPES.items()
    ]


def _form(
    request: Request,
    typed: dict[str, Any],
    *,
    webhook_id: str = "",
    tag: str = "",
    errors: dict[str, str] | None = None,
    now: dict[str, Any] | None = None,
) -> Response:
    """The form; ``now`` is what somebody else has made of the webhook meanwhile."""
    shown = {"typed": typed, "webhook_id": webhook_id, "etag": tag, "errors": errors or {}, "groups": _groups()}
    status = 412 if now else 422 if errors else 200
    return page(request, "webhook_form.html.jinja", status=status, now=now, **shown)


def _shown_once(webhook_id: str, url: str, secret: str) -> dict[str, Any]:
    return {
        "title": "Webhook secret",
        "about": url,
        "what": "webhook secret",
        "secret": secret,
        "use": "The receiver verifies the signature of each request with it.",
        "back": f"/webhooks/{webhook_id}",
        "back_words": "Back to the webhook",
    }


add_act(router, "/webhooks/{webhook_id}/ping", service.ping)
add_act(
    router, "/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver", service.redeliver, "/webhooks/{webhook_id}"
)
