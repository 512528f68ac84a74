"""HTTP routes of webhooks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from service.bodies import ThreadedBodyRoute
from service.deps import AppDep, PrincipalDep
from service.egress.errors import AddressNotAllowedError, UrlNotAllowedError
from service.http import (
    Conditions,
    IfMatch,
    PageDep,
    PreconditionFailedError,
    PreconditionRequiredError,
    etag_of,
    only_parameters,
    problems,
    unless_changed,
)
from service.idempotency.answers import IdempotencyHeader
from service.pagination import Page
from service.webhooks import service
from service.webhooks.schemas import (
    DeliveryOut,
    DeliveryState,
    SecretUnreadableError,
    TooManyWebhooksError,
    WebhookBacklogError,
    WebhookChange,
    WebhookCreate,
    WebhookDisabledError,
    WebhookMade,
    WebhookOut,
    WebhookRotate,
    WebhooksUnavailableError,
)
from service.webhooks.service import delivery_out, webhook_made, webhook_out

router = APIRouter(route_class=ThreadedBodyRoute, prefix="/v1/webhooks", tags=["webhooks"])

_URL_REFUSALS = (AddressNotAllowedError, UrlNotAllowedError)
_A_DAY = WebhookRotate()


@router.post(
    "",
    status_code=201,
    response_model=WebhookMade,
    responses=problems(*_URL_REFUSALS, TooManyWebhooksError, WebhooksUnavailableError, SecretUnreadableError),
)
async def create_webhook(
    body: WebhookCreate, app: AppDep, principal: PrincipalDep, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Create a webhook: a URL that receives events. The secret that signs its requests is returned only in this
    response.

    A repeated request with the same `Idempotency-Key` returns the same response.
    """
    await app.lookups.run(lambda: service.check_destination(app.settings, body.url))
    answer = await app.writes.run(lambda: service.create(app, principal, body, idempotency_key))
    return answer.response()


@router.get("", dependencies=[Depends(only_parameters("limit", "cursor"))])
async def list_webhooks(app: AppDep, principal: PrincipalDep, page: PageDep) -> Page[WebhookOut]:
    """List webhooks, newest first."""
    tenant_id = principal.tenant_id
    return await page.answer(
        f"webhooks|{tenant_id}",
        lambda after, limit: service.list_page(app, tenant_id, after=after, limit=limit),
        webhook_out,
    )


@router.get("/{webhook_id}", response_model=WebhookOut, responses={304: {"description": "Not modified"}})
async def get_webhook(
    webhook_id: str,
    app: AppDep,
    principal: PrincipalDep,
    response: Response,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response | WebhookOut:
    """Get a webhook."""
    row = await app.reads.run(lambda: service.get(app, principal.tenant_id, webhook_id))
    return unless_changed(response, if_none_match, etag_of(row)) or webhook_out(row)


@router.patch(
    "/{webhook_id}",
    responses=problems(*_URL_REFUSALS, PreconditionFailedError, PreconditionRequiredError),
)
async def change_webhook(
    webhook_id: str,
    body: WebhookChange,
    app: AppDep,
    principal: PrincipalDep,
    response: Response,
    if_match: IfMatch = None,
) -> WebhookOut:
    """Update the fields in the body. A webhook that is enabled again receives the events that were held for it."""
    url = body.url
    if url is not None:
        await app.lookups.run(lambda: service.check_destination(app.settings, url))
    row = await app.writes.run(lambda: service.change(app, principal, webhook_id, body, Conditions(if_match)))
    response.headers["ETag"] = etag_of(row)
    return webhook_out(row)


@router.delete("/{webhook_id}", status_code=204, responses=problems(PreconditionFailedError))
async def delete_webhook(webhook_id: str, app: AppDep, principal: PrincipalDep, if_match: IfMatch = None) -> Response:
    """Delete a webhook and its deliveries. Pending deliveries are never sent."""
    await app.writes.run(lambda: service.delete(app, principal, webhook_id, Conditions(if_match)))
    return Response(status_code=204)


@router.post("/{webhook_id}/rotate", responses=problems(WebhooksUnavailableError))
async def rotate_webhook_secret(
    webhook_id: str, app: AppDep, principal: PrincipalDep, response: Response, body: WebhookRotate = _A_DAY
) -> WebhookMade:
    """Rotate the secret; the new one is returned only in this response. Both sign until the old one expires, by default
    after one day.
    """
    made = await app.writes.run(lambda: service.rotate(app, principal, webhook_id, body))
    response.headers.update({"ETag": etag_of(made.row), "Cache-Control": "no-store"})
    return webhook_made(made.row, made.secret)


@router.post("/{webhook_id}/ping", status_code=202, responses=problems(WebhookBacklogError, WebhookDisabledError))
async def ping_webhook(webhook_id: str, app: AppDep, principal: PrincipalDep) -> DeliveryOut:
    """Send the event `webhook.ping` as a test; see the webhook's deliveries for the result."""
    return delivery_out(await app.writes.run(lambda: service.ping(app, principal, webhook_id)))


@router.get("/{webhook_id}/deliveries", dependencies=[Depends(only_parameters("state", "limit", "cursor"))])
async def list_webhook_deliveries(
    webhook_id: str,
    app: AppDep,
    principal: PrincipalDep,
    page: PageDep,
    state: Annotated[DeliveryState | None, Query()] = None,
) -> Page[DeliveryOut]:
    """List the deliveries of a webhook, sent and pending, newest first. They are kept for 30 days."""
    tenant_id = principal.tenant_id
    return await page.answer(
        f"deliveries|{tenant_id}|{webhook_id}|{state}",
        lambda after, limit: service.list_deliveries(app, tenant_id, webhook_id, state=state, after=after, limit=limit),
        delivery_out,
    )


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver", status_code=202, responses=problems(WebhookDisabledError)
)
async def redeliver_to_webhook(webhook_id: str, delivery_id: str, app: AppDep, principal: PrincipalDep) -> DeliveryOut:
    """Send a delivery now, even if it was already delivered. The receiver can identify it by its webhook-id."""
    return delivery_out(await app.writes.run(lambda: service.redeliver(app, principal, webhook_id, delivery_id)))
