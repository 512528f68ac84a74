"""Webhooks as seen over HTTP, and their errors."""

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
_URL = "https, of a host on the public internet, on port 443 or 8443; an operator allows more."
_EVENT_TYPES = f"Events that it is told of: `{'`, `'.join(patterns())}`."


class WebhookCreate(RepeatableBody):
    """Where to be told of which events."""

    model_config = ConfigDict(extra="forbid")

    url: Url = Field(description=_URL)
    event_types: EventPatterns = Field(default=[EVERYTHING], description=_EVENT_TYPES)
    description: Text | None = None
    enabled: bool = True


class WebhookChange(BaseModel):
    """What is to be another; what is left out stays. To enable one that was disabled starts its time anew."""

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
        description="Until the old secret ends; 0: at once.",
    )


class WebhookLinks(BaseModel):
    """Where this lives."""

    self: str
    deliveries: str


class WebhookOut(BaseModel):
    """A webhook. Its secret is shown once, when it is made."""

    id: str
    url: str
    event_types: list[str]
    description: str | None
    enabled: bool
    disabled_reason: DisabledReason | None = Field(
        description="gone: it answered 410; failing: it failed for a day without a success; client: by a request."
    )
    disabled_at: datetime | None
    failing_since: datetime | None = Field(description="The first failure since the last success.")
    dropped_events: int = Field(
        description="About how many events were not kept for it, because as many were waiting as may."
    )
    previous_secret_ends_at: datetime | None = Field(description="Until then two secrets sign.")
    row_version: int
    created_at: datetime
    updated_at: datetime
    links: WebhookLinks


class WebhookMade(WebhookOut):
    """A webhook with its new secret: the only time that it is shown."""

    secret: str


class DeliveryOut(BaseModel):
    """One event for one webhook."""

    id: str
    webhook_id: str
    event_id: str = Field(description="The header webhook-id: the same however often it is sent.")
    type: str
    state: DeliveryState
    attempts: int
    next_attempt_at: datetime | None = Field(
        description="Of one that waits; null while the webhook is disabled, and of one that has ended."
    )
    last_attempt_at: datetime | None
    last_status: int | None = Field(description="HTTP status of the last answer; null if there was none.")
    last_error: str | None = Field(description="Code of what kept the last attempt from an answer.")
    response_excerpt: str | None = Field(description="The beginning of the last answer, or why there was none.")
    created_at: datetime
    finished_at: datetime | None


# Errors around webhooks.


class WebhookNotFoundError(ResourceNotFoundError, word="webhook", code="webhook-not-found", title="No such webhook"):
    """There is no such webhook (or it belongs to somebody else)."""


class DeliveryNotFoundError(QuantmillError, code="delivery-not-found", title="No such delivery", status=404):
    """The webhook has no such delivery, or it has been forgotten."""

    def __init__(self, webhook_id: str, delivery_id: str) -> None:
        super().__init__(
            f"There is no delivery {delivery_id!r} of the webhook {webhook_id!r}.",
            path_parameter="delivery_id",
            hint=f"GET /v1/webhooks/{webhook_id}/deliveries lists the deliveries that are kept.",
        )


class WebhookDisabledError(QuantmillError, code="webhook-disabled", title="The webhook is disabled", status=409):
    """Nothing is sent to a webhook that is disabled."""

    def __init__(self, webhook_id: str) -> None:
        super().__init__(
            f"The webhook {webhook_id} is disabled.",
            hint=f'Enable it with PATCH /v1/webhooks/{webhook_id}: {{"enabled": true}}.',
        )


class TooManyWebhooksError(QuantmillError, code="too-many-webhooks", title="There are too many webhooks", status=409):
    """The tenant has as many webhooks as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"There are {most} webhooks, as many as there may be.", hint="Delete one that is not needed.")


class WebhookBacklogError(QuantmillError, code="webhook-backlog", title="Too much waits for the webhook", status=409):
    """So much waits for the webhook that nothing more is kept for it."""

    def __init__(self, webhook_id: str, most: int) -> None:
        super().__init__(
            f"{most} deliveries wait for the webhook {webhook_id}, as many as may.",
            hint=f"GET /v1/webhooks/{webhook_id}/deliveries shows why.",
        )


class WebhooksUnavailableError(
    QuantmillError, code="webhooks-unavailable", title="The service cannot keep secrets of webhooks", status=409
):
    """The installation has no pepper, by which the secrets of webhooks are encrypted."""


class SecretUnreadableError(
    QuantmillError, code="webhook-secret-unreadable", title="The webhook's secret cannot be read", status=409
):
    """The stored secret was encrypted under another pepper, or is damaged."""
