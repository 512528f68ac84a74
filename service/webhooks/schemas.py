"""API schemas and errors of webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.contracts.base import Text, plain_text
from service.contracts.errors import QuantmillError
from service.contracts.webhooks import EVERYTHING, DisabledReason, patterns
from service.egress.urls import MOST_CHARACTERS
from service.idempotency.requests import RepeatableBody
from service.resources import ResourceNotFoundError

DAY_SECONDS = 24 * 3600.0
_LONGEST_GRACE_SECONDS = 30 * DAY_SECONDS
DeliveryState = Literal["waiting", "delivered", "failed"]


def _known(pattern: str) -> str:
    if pattern not in patterns():
        raise ValueError(f"must be one of {', '.join(patterns())}")
    return pattern


def _once(subscribed: list[str]) -> list[str]:
    return list(dict.fromkeys(subscribed))


EventPattern = Annotated[str, Field(max_length=32), AfterValidator(_known)]
EventPatterns = Annotated[list[EventPattern], Field(min_length=1, max_length=len(patterns())), AfterValidator(_once)]
Url = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS), AfterValidator(plain_text)]
_URL = "https URL of a host on the public internet, on port 443 or 8443; an operator can allow others."
_EVENT_TYPES = f"Events to send: `{'`, `'.join(patterns())}`."


class WebhookCreate(RepeatableBody):
    """A webhook to create: a URL and the events to send to it."""

    model_config = ConfigDict(extra="forbid")

    url: Url = Field(description=_URL)
    event_types: EventPatterns = Field(default=[EVERYTHING], description=_EVENT_TYPES)
    description: Text | None = None
    enabled: bool = True


class WebhookChange(BaseModel):
    """Changes to a webhook. Omitted fields are unchanged. Enabling a disabled webhook resets its failure period."""

    model_config = ConfigDict(extra="forbid")

    url: Url | None = Field(default=None, description=_URL)
    event_types: EventPatterns | None = Field(default=None, description=_EVENT_TYPES)
    description: Text | None = None
    enabled: bool | None = None


class WebhookRotate(BaseModel):
    """How long both secrets sign."""

    model_config = ConfigDict(extra="forbid")

    grace_seconds: float = Field(
        default=DAY_SECONDS,
        ge=0,
        le=_LONGEST_GRACE_SECONDS,
        allow_inf_nan=False,
        description="Seconds until the old secret expires; 0: immediately.",
    )


class WebhookLinks(BaseModel):
    """Related URLs of a webhook."""

    self: str
    deliveries: str


class WebhookOut(BaseModel):
    """A webhook. Its secret is returned only once, when it is created."""

    id: str
    url: str
    event_types: list[str]
    description: str | None
    enabled: bool
    disabled_reason: DisabledReason | None = Field(
        description="Why the webhook is disabled. gone: the receiver responded with 410; failing: all deliveries "
        "failed for one day; client: disabled by a request."
    )
    disabled_at: datetime | None
    failing_since: datetime | None = Field(description="Time of the first failure since the last success.")
    dropped_events: int = Field(
        description="Approximate number of events that were dropped because the maximum number of deliveries was "
        "pending."
    )
    previous_secret_ends_at: datetime | None = Field(
        description="When the previous secret expires; until then, both secrets sign."
    )
    row_version: int
    created_at: datetime
    updated_at: datetime
    links: WebhookLinks


class WebhookMade(WebhookOut):
    """A webhook with its new secret, which is returned only once."""

    secret: str = Field(repr=False)


class DeliveryOut(BaseModel):
    """The delivery of one event to one webhook."""

    id: str
    webhook_id: str
    event_id: str = Field(
        description="Id of the event, sent in the header webhook-id; it is the same for each attempt."
    )
    type: str
    state: DeliveryState
    attempts: int
    next_attempt_at: datetime | None = Field(
        description="Time of the next attempt; null if the webhook is disabled or the delivery has ended."
    )
    last_attempt_at: datetime | None
    last_status: int | None = Field(description="HTTP status of the last response; null if there was none.")
    last_error: str | None = Field(
        description="Code of the error because of which the last attempt received no response."
    )
    response_excerpt: str | None = Field(
        description="Beginning of the last response body, or why there was no response."
    )
    created_at: datetime
    finished_at: datetime | None


# Errors around webhooks.


class WebhookNotFoundError(ResourceNotFoundError, word="webhook", code="webhook-not-found", title="Webhook not found"):
    """The webhook does not exist or belongs to another tenant."""


class DeliveryNotFoundError(QuantmillError, code="delivery-not-found", title="Delivery not found", status=404):
    """The webhook has no such delivery, or it was deleted because of its age."""

    def __init__(self, webhook_id: str, delivery_id: str) -> None:
        super().__init__(
            f"Delivery {delivery_id!r} of webhook {webhook_id!r} not found.",
            path_parameter="delivery_id",
            hint=f"List the stored deliveries with GET /v1/webhooks/{webhook_id}/deliveries.",
        )


class WebhookDisabledError(QuantmillError, code="webhook-disabled", title="Webhook is disabled", status=409):
    """Nothing can be sent to a disabled webhook."""

    def __init__(self, webhook_id: str) -> None:
        super().__init__(
            f"Webhook {webhook_id} is disabled.",
            hint=f"Set enabled to true with PATCH /v1/webhooks/{webhook_id} first.",
        )


class TooManyWebhooksError(QuantmillError, code="too-many-webhooks", title="Too many webhooks", status=409):
    """The tenant has the maximum number of webhooks."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The tenant has {most} webhooks, which is the maximum.", hint="Delete a webhook that is no longer needed."
        )


class WebhookBacklogError(QuantmillError, code="webhook-backlog", title="Too many pending deliveries", status=409):
    """The webhook has the maximum number of pending deliveries; no more are stored."""

    def __init__(self, webhook_id: str, most: int) -> None:
        super().__init__(
            f"Webhook {webhook_id} has {most} pending deliveries, which is the maximum.",
            hint=f"See why they are pending with GET /v1/webhooks/{webhook_id}/deliveries.",
        )


class WebhooksUnavailableError(QuantmillError, code="webhooks-unavailable", title="Webhooks not available", status=409):
    """The installation has no pepper, which is required to encrypt the secrets of webhooks."""


class SecretUnreadableError(
    QuantmillError, code="webhook-secret-unreadable", title="Webhook secret not readable", status=409
):
    """The stored secret was encrypted with a different pepper, or is damaged."""
