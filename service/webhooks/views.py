"""What webhooks look like from outside."""

from __future__ import annotations

from service.tables import WebhookDelivery, WebhookEndpoint
from service.webhooks.schemas import DeliveryOut, WebhookLinks, WebhookMade, WebhookOut


def etag(row: WebhookEndpoint) -> str:
    """Entity tag: changes whenever the webhook does."""
    return f'"{row.row_version}"'


def location(row: WebhookEndpoint) -> str:
    """Where the webhook lives."""
    return f"/v1/webhooks/{row.id}"


def webhook_out(row: WebhookEndpoint) -> WebhookOut:
    """The webhook as it is shown."""
    path = location(row)
    return WebhookOut(
        id=row.id,
        url=row.url,
        event_types=row.event_types,
        description=row.description,
        enabled=row.enabled,
        disabled_reason=row.disabled_reason,
        disabled_at=row.disabled_at,
        failing_since=row.failing_since,
        dropped_events=row.dropped_events,
        previous_secret_ends_at=row.previous_ends_at,
        row_version=row.row_version,
        created_at=row.created_at,
        updated_at=row.updated_at,
        links=WebhookLinks(self=path, deliveries=f"{path}/deliveries"),
    )


def webhook_made(row: WebhookEndpoint, secret: str) -> WebhookMade:
    """The same with its new secret."""
    return WebhookMade(**dict(webhook_out(row)), secret=secret)


def delivery_out(row: WebhookDelivery) -> DeliveryOut:
    """A delivery; its payload is the receiver's business."""
    return DeliveryOut(
        id=row.id,
        webhook_id=row.endpoint_id,
        event_id=row.event_id,
        type=row.type,
        state=row.state,
        attempts=row.attempts,
        next_attempt_at=row.next_attempt_at,
        last_attempt_at=row.last_attempt_at,
        last_status=row.last_status,
        last_error=row.last_error,
        response_excerpt=row.response_excerpt,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )
