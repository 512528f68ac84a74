"""Webhook events, written in the transaction they report; results of deliveries.

A tenant without endpoints costs one look at an index; transitions of jobs have it done by a statement that they send
anyway. What is told is thin: the receiver asks the service for more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy.orm import Session

from service.contracts.webhooks import DISABLED, EVENT_TYPES, EVERYTHING, PING
from service.db import db_now
from service.egress.attempts import SendResult, excerpt, pause_seconds
from service.ids import new_id
from service.repository import now_seconds
from service.tables import WebhookDelivery, WebhookEndpoint
from service.tables.webhooks import EXCERPT_LENGTH
from service.webhooks import repository
from service.webhooks.repository import OUTBOX, ClaimedDelivery, hold_endpoint

log = logging.getLogger(__name__)
SCHEMA_VERSION = 1
MOST_BYTES = 20 * 1024
# Of one endpoint; a receiver that is away for long asks for what it has missed.
MOST_WAITING = 1000
# What is left of data that is too large, if it has them.
_KEPT = ("id", "state", "verdict", "fallback")
Data = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


def matches(event_type: str, subscribed: list[str]) -> bool:
    """Whether an endpoint that has subscribed to these patterns is told of the event."""
    noun = event_type.partition(".")[0]
    return any(pattern in (EVERYTHING, event_type, f"{noun}.*") for pattern in subscribed)


def emit(session: Session, tenant_id: str, event_type: str, data: Data) -> int:
    """Tell the tenant's endpoints of an event, once this transaction is committed.

    Args:
        session: writes, in the transaction that the event tells of.
        tenant_id: whose endpoints.
        event_type: ``noun.name``; the noun is one of ``EVENT_TYPES``.
        data: ids and words, no documents; a function of them is called only if somebody is told.

    Returns:
        How many endpoints are told.

    Raises:
        ValueError: there is no such noun.
    """
    if event_type.partition(".")[0] not in EVENT_TYPES:
        raise ValueError(f"no noun of webhooks: {event_type!r}")
    found = repository.enabled(session, tenant_id)
    told = [endpoint.id for endpoint in found if matches(event_type, endpoint.event_types)]
    return len(_write(session, tenant_id, told, event_type, data)) if told else 0


def ping(session: Session, endpoint: WebhookEndpoint) -> WebhookDelivery | None:
    """Tell one endpoint that it can be reached, whatever it has subscribed to; None if too much waits for it."""
    data = {"id": endpoint.id, "description": endpoint.description}
    return next(iter(_write(session, endpoint.tenant_id, [endpoint.id], PING, data)), None)


def disable(session: Session, endpoint: WebhookEndpoint, reason: str) -> None:
    """Disable an endpoint that the caller has locked, and tell the others of it."""
    row = repository.disable(session, endpoint.id, reason)
    log.warning("webhook.disabled webhook_id=%s reason=%s", row.id, reason)
    emit(session, row.tenant_id, DISABLED, {"id": row.id, "state": "disabled", "reason": reason})


def _write(
    session: Session, tenant_id: str, endpoint_ids: Iterable[str], event_type: str, data: Data
) -> list[WebhookDelivery]:
    at = datetime.fromtimestamp(now_seconds(session), UTC)
    payload = payload_of(event_type, at, data() if callable(data) else data)
    event_id = new_id("evt")
    written = []
    for endpoint_id in endpoint_ids:
        delivery = repository.add_delivery(
            session,
            tenant_id,
            endpoint_id,
            event_id=event_id,
            event_type=event_type,
            payload=payload,
            most=MOST_WAITING,
        )
        if delivery is None:
            log.warning("webhook.event_dropped webhook_id=%s type=%s waiting=%d", endpoint_id, event_type, MOST_WAITING)
        else:
            written.append(delivery)
    return written


def payload_of(event_type: str, at: datetime, data: Mapping[str, Any]) -> str:
    """What is sent, byte by byte. Data that would make it too large are left out, and ``truncated`` says so."""
    whole = _encoded(event_type, at, data)
    if len(whole.encode()) <= MOST_BYTES:
        return whole
    return _encoded(event_type, at, {**{key: data[key] for key in _KEPT if key in data}, "truncated": True})


def _encoded(event_type: str, at: datetime, data: Mapping[str, Any]) -> str:
    document = {
        "type": event_type,
        "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "schema_version": SCHEMA_VERSION,
        "data": data,
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


# What becomes of a delivery, and of its endpoint, by what an attempt met with.

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
        disable(session, endpoint, "gone")
    elif failing >= failing_seconds:
        disable(session, endpoint, "failing")
