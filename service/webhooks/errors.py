"""Errors around webhooks."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class WebhookNotFoundError(QuantmillError):
    """There is no such webhook (or it belongs to somebody else)."""

    code = "webhook-not-found"
    title = "No such webhook"
    status = 404

    def __init__(self, webhook_id: str) -> None:
        super().__init__(
            f"There is no webhook {webhook_id!r}.", path_parameter="webhook_id", hint="GET /v1/webhooks lists them."
        )


class DeliveryNotFoundError(QuantmillError):
    """The webhook has no such delivery, or it has been forgotten."""

    code = "delivery-not-found"
    title = "No such delivery"
    status = 404

    def __init__(self, webhook_id: str, delivery_id: str) -> None:
        super().__init__(
            f"There is no delivery {delivery_id!r} of the webhook {webhook_id!r}.",
            path_parameter="delivery_id",
            hint=f"GET /v1/webhooks/{webhook_id}/deliveries lists those that are kept.",
        )


class WebhookDisabledError(QuantmillError):
    """Nothing is sent to a webhook that is disabled."""

    code = "webhook-disabled"
    title = "The webhook is disabled"
    status = 409

    def __init__(self, webhook_id: str) -> None:
        super().__init__(
            f"The webhook {webhook_id} is disabled.",
            hint=f'Enable it before: PATCH /v1/webhooks/{webhook_id} with {{"enabled": true}}.',
        )


class TooManyWebhooksError(QuantmillError):
    """The tenant has as many webhooks as it may."""

    code = "too-many-webhooks"
    title = "There are too many webhooks"
    status = 409

    def __init__(self, most: int) -> None:
        super().__init__(f"There are {most} webhooks, as many as there may be.", hint="Delete one that is not needed.")


class WebhookBacklogError(QuantmillError):
    """So much waits for the webhook that nothing more is kept for it."""

    code = "webhook-backlog"
    title = "Too much waits for the webhook"
    status = 409

    def __init__(self, webhook_id: str, most: int) -> None:
        super().__init__(
            f"{most} deliveries wait for the webhook {webhook_id}, as many as may.",
            hint=f"See why by GET /v1/webhooks/{webhook_id}/deliveries.",
        )


class WebhooksUnavailableError(QuantmillError):
    """The installation has no pepper, by which the secrets of webhooks are encrypted."""

    code = "webhooks-unavailable"
    title = "The service cannot keep secrets of webhooks"
    status = 409


class SecretUnreadableError(QuantmillError):
    """The stored secret was encrypted under another pepper, or is damaged."""

    code = "webhook-secret-unreadable"
    title = "The webhook's secret cannot be read"
    status = 409
