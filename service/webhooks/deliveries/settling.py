"""What becomes of a delivery, and of its endpoint, by what an attempt met with."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy.orm import Session

from service.db import db_now
from service.egress.answers import Answer, excerpt
from service.egress.retries import pause_seconds
from service.tables import WebhookEndpoint
from service.tables.webhooks import EXCERPT_LENGTH
from service.webhooks import outbox
from service.webhooks import repository as webhooks
from service.webhooks.deliveries import repository
from service.webhooks.deliveries.repository import Claimed

log = logging.getLogger(__name__)

_GONE = 410
Fate = Literal["delivered", "retried", "failed", "fenced"]


def settle(
    session: Session, claimed: Claimed, answer: Answer, *, schedule: Sequence[float], failing_seconds: float
) -> Fate:
    """Note what an attempt met with: done, to be tried again, or given up; and what that says of the endpoint.

    Args:
        session: writes.
        claimed: the delivery.
        answer: what it met with.
        schedule: pauses between attempts.
        failing_seconds: so long may an endpoint fail without a success in between.
    """
    endpoint = repository.hold_endpoint(session, claimed.endpoint_id)
    if endpoint is None:
        return "fenced"  # deleted with all of its deliveries
    pause = None
    if not answer.is_success and answer.status != _GONE:
        pause = pause_seconds(claimed.attempt, schedule, answer.headers)
    fate: Fate = "delivered" if answer.is_success else "failed" if pause is None else "retried"
    told = {
        "last_status": answer.status,
        "last_error": answer.error,
        "response_excerpt": excerpt(answer.text, EXCERPT_LENGTH),
    }
    if not repository.settle(session, claimed, **told, **_next(fate, pause, endpoint)):
        return "fenced"
    _judge(session, endpoint, answer, failing_seconds)
    return fate


def _next(fate: Fate, pause: float | None, endpoint: WebhookEndpoint) -> dict[str, Any]:
    if pause is None:
        return {"state": fate, "next_attempt_at": None, "finished_at": db_now()}
    return {"next_attempt_at": db_now() + pause if endpoint.enabled else None}


def _judge(session: Session, endpoint: WebhookEndpoint, answer: Answer, failing_seconds: float) -> None:
    if answer.is_success:
        webhooks.note_success(session, endpoint.id)
        return
    failing = webhooks.note_failure(session, endpoint.id)
    if not endpoint.enabled:
        return
    if answer.status == _GONE:
        outbox.disable(session, endpoint, "gone")
    elif failing >= failing_seconds:
        outbox.disable(session, endpoint, "failing")
