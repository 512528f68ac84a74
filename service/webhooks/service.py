"""Webhooks: create, update, delete; their encrypted secrets; deliveries and redelivery."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from service import repository as rows
from service.audit.changes import changes_between
from service.audit.service import note
from service.contracts.webhooks import SECRET_PREFIX
from service.deps import AppState
from service.egress.addresses import parse_allowed
from service.egress.resolving import refuse_destination, system_resolver
from service.http import Conditions, etag_of
from service.idempotency.answers import Answer
from service.idempotency.requests import KeyedRequest
from service.idempotency.service import submit_once
from service.ids import new_id
from service.pagination import Position
from service.principal import Principal
from service.quotas import repository as usage
from service.sealing import SealBrokenError, Vault
from service.settings import Settings
from service.tables import WebhookDelivery, WebhookEndpoint
from service.tables.base import record_of
from service.webhooks import outbox, repository
from service.webhooks.schemas import (
    DeliveryOut,
    SecretUnreadableError,
    TooManyWebhooksError,
    WebhookBacklogError,
    WebhookChange,
    WebhookCreate,
    WebhookDisabledError,
    WebhookLinks,
    WebhookMade,
    WebhookOut,
    WebhookRotate,
    WebhooksUnavailableError,
)

# What webhooks look like from outside.


def location(row: WebhookEndpoint) -> str:
    """Where the webhook lives."""
    return f"/v1/webhooks/{row.id}"


def webhook_out(row: WebhookEndpoint) -> WebhookOut:
    """The webhook as it is shown."""
    path = location(row)
    return record_of(
        row,
        WebhookOut,
        previous_secret_ends_at=row.previous_ends_at,
        links=WebhookLinks(self=path, deliveries=f"{path}/deliveries"),
    )


def webhook_made(row: WebhookEndpoint, secret: str) -> WebhookMade:
    """The same with its new secret."""
    return WebhookMade(**dict(webhook_out(row)), secret=secret)


def delivery_out(row: WebhookDelivery) -> DeliveryOut:
    """A delivery; its payload is the receiver's business."""
    return record_of(row, DeliveryOut, webhook_id=row.endpoint_id)


# Secrets of webhooks: made at random, kept encrypted. A signature needs the secret itself: a hash will not do.

_SECRET_BYTES = 32


def make_secret() -> str:
    """A secret of 256 random bits."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


class WebhookVault(Vault):
    """Encrypts and decrypts secrets."""

    purpose = b"quantmill webhook secrets v1"
    about = "The secrets of webhooks are"
    unavailable = WebhooksUnavailableError

    def seal(self, endpoint_id: str, secret: str) -> str:
        """What is stored of a secret."""
        return self.sealer.seal(endpoint_id, secret)

    def open(self, endpoint_id: str, sealed: str) -> str:
        """The secret that was stored.

        Raises:
            SecretUnreadableError: it was encrypted under another pepper or for another endpoint, or is damaged.
        """
        try:
            return self.sealer.open(endpoint_id, sealed)
        except SealBrokenError:
            raise SecretUnreadableError(
                f"The secret of webhook {endpoint_id} is damaged, or was created with a different "
                "QUANTMILL_KEY_PEPPER.",
                hint="Set the pepper that it was created with, or rotate the secret.",
            ) from None


# Of one tenant: each is looked at with every event.
MOST_WEBHOOKS = 50
# A name that takes longer is looked at again before anything is sent.
_RESOLVE_SECONDS = 2.0


@dataclass(frozen=True)
class Made:
    """A webhook and its new secret, which is shown once."""

    row: WebhookEndpoint
    secret: str = field(repr=False)


def create(app: AppState, by: Principal, body: WebhookCreate, key: str | None) -> Answer:
    """Store a webhook, whose URL has been checked, with a secret of its own.

    The answer is remembered with its secret sealed, as the webhook keeps it.

    Raises:
        WebhooksUnavailableError: the installation has no pepper.
        TooManyWebhooksError: the tenant has as many as it may.
        SecretUnreadableError: the answer is remembered, and of another pepper.
    """
    vault, secret, endpoint_id = WebhookVault.of(app.settings), make_secret(), new_id("whk")
    sealed = vault.seal(endpoint_id, secret)

    def work(_: None, session: Session) -> tuple[Answer, None]:
        usage.hold(session, by.tenant_id)
        if rows.count(session, WebhookEndpoint, by.tenant_id) >= MOST_WEBHOOKS:
            raise TooManyWebhooksError(MOST_WEBHOOKS)
        row = repository.create(session, by.tenant_id, endpoint_id, body, sealed=sealed, pepper_id=vault.pepper_id)
        headers = {"Location": location(row), "ETag": etag_of(row), "Cache-Control": "no-store"}
        return Answer(201, webhook_made(row, sealed).model_dump(mode="json"), headers), None

    kept = submit_once(app, by, KeyedRequest.of("POST /v1/webhooks", key, body), None, work)
    shown = vault.open(kept.body["id"], kept.body["secret"])
    return replace(kept, body={**kept.body, "secret": shown})


def check_destination(settings: Settings, url: str) -> None:
    """Let no webhook be made of a URL that nothing is sent to, as far as it can be told now: sending checks it again.

    Raises:
        EgressError: of its form, or of an address of its host; points at ``/url``.
    """
    refuse_destination(url, parse_allowed(settings.egress_allowed), system_resolver, _RESOLVE_SECONDS, pointer="/url")


def get(app: AppState, tenant_id: str, webhook_id: str) -> WebhookEndpoint:
    """The webhook.

    Raises:
        WebhookNotFoundError: the tenant has no such webhook.
    """
    with app.database.read() as session:
        return repository.get(session, tenant_id, webhook_id)


def list_page(
    app: AppState, tenant_id: str, *, after: Position | None, limit: int
) -> tuple[list[WebhookEndpoint], Position | None]:
    """One page of webhooks, newest first, and the position to go on from."""
    with app.database.read() as session:
        return repository.list_page(session, tenant_id, after=after, limit=limit)


def change(
    app: AppState, by: Principal, webhook_id: str, body: WebhookChange, conditions: Conditions
) -> WebhookEndpoint:
    """Change what the body names, if nobody else has in the meantime. A URL of it has been checked.

    Raises:
        WebhookNotFoundError: the tenant has no such webhook.
        PreconditionRequiredError, PreconditionFailedError: the version that is to be changed is not told, or is older.
    """
    with app.database.write() as session:
        row = repository.get(session, by.tenant_id, webhook_id, locked=True)
        conditions.require("Send the ETag of your last GET as If-Match, or If-Match: * to match any version.")
        conditions.check(etag_of(row), f"webhook {row.id}")
        before = _recorded(row)
        values = body.model_dump(exclude_unset=True, exclude={"enabled"})
        # only a description may be none
        values = {name: value for name, value in values.items() if value is not None or name == "description"}
        if "url" in values:
            values["failing_since"] = None  # it was another that failed
        if values:
            row = rows.change(session, WebhookEndpoint, webhook_id, **values)
        if body.enabled is not None and body.enabled != row.enabled:
            enable, disable = repository.enable, repository.disable
            row = enable(session, webhook_id) if body.enabled else disable(session, webhook_id, "client")
        changes = changes_between(before, _recorded(row), hidden=frozenset({"url"}))
        note(session, by, "webhook.update", webhook_id, changes=changes)
    return row


def _recorded(row: WebhookEndpoint) -> dict[str, Any]:
    """What the audit log tells of; of the URL, whose path and query may hold a secret, the host alone."""
    kept = ("url", "event_types", "description", "enabled")
    return {name: getattr(row, name) for name in kept} | {"url.host": urlsplit(row.url).hostname}


def delete(app: AppState, by: Principal, webhook_id: str, conditions: Conditions) -> None:
    """Delete a webhook with its deliveries; what waits for it is never sent.

    Raises:
        WebhookNotFoundError: the tenant has no such webhook.
        PreconditionFailedError: it is another version than the caller has seen.
    """
    with app.database.write() as session:
        row = repository.get(session, by.tenant_id, webhook_id, locked=True)
        conditions.check(etag_of(row), f"webhook {row.id}")
        repository.remove(session, webhook_id)
        note(session, by, "webhook.delete", webhook_id)


def rotate(app: AppState, by: Principal, webhook_id: str, body: WebhookRotate) -> Made:
    """A new secret; the old one signs beside it until its grace is over. One that is older ends now.

    Raises:
        WebhookNotFoundError: the tenant has no such webhook.
        WebhooksUnavailableError: the installation has no pepper.
    """
    vault, secret = WebhookVault.of(app.settings), make_secret()
    with app.database.write() as session:
        row = repository.get(session, by.tenant_id, webhook_id, locked=True)
        kept = body.grace_seconds > 0 and _opens(vault, row)
        changed = repository.rotate(
            session,
            row,
            sealed=vault.seal(webhook_id, secret),
            pepper_id=vault.pepper_id,
            grace_seconds=body.grace_seconds if kept else None,
        )
        note(session, by, "webhook.rotate", webhook_id)
    return Made(changed, secret)


def _opens(vault: WebhookVault, row: WebhookEndpoint) -> bool:
    """Whether the secret can still sign: one of another pepper cannot."""
    try:
        vault.open(row.id, row.sealed)
    except SecretUnreadableError:
        return False
    return True


def ping(app: AppState, by: Principal, webhook_id: str) -> WebhookDelivery:
    """Have the webhook told of nothing but that it can be reached.

    Raises:
        WebhookNotFoundError: the tenant has no such webhook.
        WebhookDisabledError: it is disabled.
        WebhookBacklogError: too much waits for it.
    """
    with app.database.write() as session:
        row = repository.get(session, by.tenant_id, webhook_id, locked=True)
        if not row.enabled:
            raise WebhookDisabledError(webhook_id)
        delivery = outbox.ping(session, row)
        if delivery is None:
            raise WebhookBacklogError(webhook_id, outbox.MOST_WAITING)
        note(session, by, "webhook.ping", webhook_id)
    return delivery


def list_deliveries(
    app: AppState, tenant_id: str, webhook_id: str, *, state: str | None, after: Position | None, limit: int
) -> tuple[list[WebhookDelivery], Position | None]:
    """One page of the webhook's deliveries, newest first.

    Raises:
        WebhookNotFoundError: the tenant has no such webhook.
    """
    with app.database.read() as session:
        repository.get(session, tenant_id, webhook_id)
        return repository.list_deliveries(session, tenant_id, webhook_id, state=state, after=after, limit=limit)


def redeliver(app: AppState, by: Principal, webhook_id: str, delivery_id: str) -> WebhookDelivery:
    """Have a delivery sent (again) now, under the same id.

    Raises:
        WebhookNotFoundError, DeliveryNotFoundError: the tenant has no such webhook, or that no such delivery.
        WebhookDisabledError: the webhook is disabled.
    """
    with app.database.write() as session:
        row = repository.get(session, by.tenant_id, webhook_id, locked=True)
        delivery = repository.get_delivery(session, by.tenant_id, webhook_id, delivery_id)
        if not row.enabled:
            raise WebhookDisabledError(webhook_id)
        delivery = repository.send_again(session, delivery.id)
        note(session, by, "webhook.redeliver", delivery_id)
    return delivery
