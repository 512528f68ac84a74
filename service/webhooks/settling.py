"""What becomes of a delivery, and of its endpoint, by what an attempt met with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy.orm import Session

from service.db import db_now
from service.egress.attempts import SendResult, excerpt, pause_seconds
from service.tables import WebhookEndpoint
from service.tables.webhooks import EXCERPT_LENGTH
from service.webhooks import outbox, repository
from service.webhooks.repository import OUTBOX, ClaimedDelivery, hold_endpoint

_GONE = 410
Fate = Literal["delivered", "retried", "failed", "fenced"]


def settle(
    session: Session, claimed: ClaimedDelivery, result: SendResult, *, schedule: Sequence[float], failing_seconds: float
) -> Fate:
    """Note what an attempt met with: done, to be tried again, or given up; and what that says of the endpoint.

    Args:
        session: writes.
        claimed: the delivery.
        result: what it met with.
        schedule: pauses between attempts.
        failing_seconds: so long may an endpoint fail without a success in between.
    """
    endpoint = hold_endpoint(session, claimed.endpoint_id)
    if endpoint is None:
        return "fenced"  # deleted with all of its deliveries
    pause = None
    if not result.is_success and result.status != _GONE:
        pause = pause_seconds(claimed.attempt, schedule, result.headers)
    fate: Fate = "delivered" if result.is_success else "failed" if pause is None else "retried"
    told = {
        "last_status": result.status,
        "last_error": result.error,
        "response_excerpt": excerpt(result.text, EXCERPT_LENGTH),
    }
    if not OUTBOX.settle(session, claimed, **told, **_next(fate, pause, endpoint)):
        return "fenced"
    _judge(session, endpoint, result, failing_seconds)
    return fate


def _next(fate: Fate, pause: float | None, endpoint: WebhookEndpoint) -> dict[str, Any]:
    if pause is None:
        return {"state": fate, "next_attempt_at": None, "finished_at": db_now()}
    return {"next_attempt_at": db_now() + pause if endpoint.enabled else None}


def _judge(session: Session, endpoint: WebhookEndpoint, result: SendResult, failing_seconds: float) -> None:
    if result.is_success:
        repository.note_success(session, endpoint.id)
        return
    failing = repository.note_failure(session, endpoint.id)
    if not endpoint.enabled:
        return
    if result.status == _GONE:
        outbox.disable(session, endpoint, "gone")
    elif failing >= failing_seconds:
        outbox.disable(session, endpoint, "failing")
