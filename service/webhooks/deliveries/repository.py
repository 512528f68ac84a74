"""Statements about deliveries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, literal, or_, select, text, update
from sqlalchemy.orm import Session

from service import repository
from service.db import db_now
from service.pagination import Position
from service.tables import WebhookDelivery, WebhookEndpoint
from service.tables.webhooks import IS_LEASED, IS_WAITING
from service.tenancy import owned
from service.webhooks import repository as webhooks
from service.webhooks.errors import DeliveryNotFoundError

# Endpoints that are looked at in one round.
_ENDPOINTS = 200


@dataclass(frozen=True)
class Claimed:
    """A delivery that is this process's to send, until its lease is over; ``attempt`` is the fencing token.

    ``previous_sealed`` is None once its grace is over.
    """

    id: str
    endpoint_id: str
    event_id: str
    type: str
    payload: str
    attempt: int
    url: str
    sealed: str
    previous_sealed: str | None


@dataclass(frozen=True)
class Share:
    """How many deliveries may be under way at a time, whoever sends them: of one endpoint, and of one tenant."""

    of_endpoint: int
    of_tenant: int


def list_page(
    session: Session, tenant_id: str, endpoint_id: str, *, state: str | None, after: Position | None, limit: int
) -> tuple[list[WebhookDelivery], Position | None]:
    """One page of an endpoint's deliveries, newest first; without their payloads."""
    of_endpoint = [owned(WebhookDelivery, tenant_id), WebhookDelivery.endpoint_id == endpoint_id]
    large = [WebhookDelivery.payload]
    return repository.page(session, WebhookDelivery, of_endpoint, after=after, limit=limit, without=large, state=state)


def get(session: Session, tenant_id: str, endpoint_id: str, delivery_id: str) -> WebhookDelivery:
    """A delivery of the tenant's endpoint.

    Raises:
        DeliveryNotFoundError: it has none of this id.
    """
    row = repository.find(session, WebhookDelivery, tenant_id, delivery_id, endpoint_id=endpoint_id)
    if row is None:
        raise DeliveryNotFoundError(endpoint_id, delivery_id)
    return row


def send_again(session: Session, delivery_id: str) -> WebhookDelivery:
    """Let the delivery be due now, whatever became of it before."""
    statement = (
        update(WebhookDelivery)
        .where(WebhookDelivery.id == delivery_id)
        .values(state="waiting", next_attempt_at=db_now(), finished_at=None)
        .returning(WebhookDelivery)
    )
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).one()


def any_due(session: Session) -> bool:
    """Whether there is anything to send: a look that writes nothing."""
    return session.scalar(select(literal(1)).select_from(WebhookDelivery).where(*_due()).limit(1)) is not None


def claim(session: Session, *, free: int, share: Share, lease_seconds: float) -> list[Claimed]:
    """Take up to ``free`` deliveries that are due, those that have waited longest first, each endpoint in its share.

    Each endpoint's row is held meanwhile, so that reconcilers which do the same at once take nothing twice and count
    alike; one that somebody else holds is passed over.
    """
    under_way = select(WebhookDelivery.tenant_id, WebhookDelivery.endpoint_id).where(*_leased())
    rows = session.execute(under_way).all()
    of_tenant = Counter(tenant_id for tenant_id, _ in rows)
    of_endpoint = Counter(endpoint_id for _, endpoint_id in rows)
    claimed: list[Claimed] = []
    for tenant_id, endpoint_id in _waiting_longest(session):
        room = min(
            free - len(claimed),
            share.of_tenant - of_tenant[tenant_id],
            share.of_endpoint - of_endpoint[endpoint_id],
        )
        if room > 0:
            taken = _claim_of(session, endpoint_id, room, share.of_endpoint, lease_seconds)
            of_tenant[tenant_id] += len(taken)
            claimed += taken
    return claimed


def hold_endpoint(session: Session, endpoint_id: str, *, skip_locked: bool = False) -> WebhookEndpoint | None:
    """The endpoint, kept from changes by others until the transaction ends; new deliveries may be written for it.

    Whoever changes a delivery together with its endpoint asks for this first: so all do it in one order.
    """
    statement = select(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id)
    statement = statement.with_for_update(key_share=True, skip_locked=skip_locked)
    return session.scalar(statement, execution_options={"populate_existing": True})


def settle(session: Session, claimed: Claimed, **values: Any) -> bool:
    """Note what became of an attempt; False if somebody else has claimed the delivery since, or it is not there."""
    statement = (
        update(WebhookDelivery)
        .where(WebhookDelivery.id == claimed.id, WebhookDelivery.attempts == claimed.attempt, text(IS_WAITING))
        .values(**values, lease_until=None, last_attempt_at=db_now())
        .returning(WebhookDelivery.id)
        .execution_options(synchronize_session=False)
    )
    return session.scalar(statement) is not None


def _waiting_longest(session: Session) -> Sequence[tuple[str, str]]:
    columns = (WebhookDelivery.tenant_id, WebhookDelivery.endpoint_id)
    oldest = func.min(WebhookDelivery.next_attempt_at)
    statement = select(*columns).where(*_due()).group_by(*columns).order_by(oldest).limit(_ENDPOINTS)
    return [(tenant_id, endpoint_id) for tenant_id, endpoint_id in session.execute(statement)]


def _claim_of(session: Session, endpoint_id: str, room: int, most: int, lease_seconds: float) -> list[Claimed]:
    endpoint = hold_endpoint(session, endpoint_id, skip_locked=True)
    if endpoint is None:
        return []
    if not endpoint.enabled:
        webhooks.hold(session, endpoint_id)  # written while it was being disabled
        return []
    of_endpoint = WebhookDelivery.endpoint_id == endpoint_id
    # counted once more: before the row was held, others may have claimed as well
    busy = session.scalars(select(func.count()).select_from(WebhookDelivery).where(of_endpoint, *_leased())).one()
    due = select(WebhookDelivery.id).where(of_endpoint, *_due())
    due = due.order_by(WebhookDelivery.next_attempt_at, WebhookDelivery.id).limit(max(0, min(room, most - busy)))
    now = db_now()
    statement = (
        update(WebhookDelivery)
        .where(WebhookDelivery.id.in_(list(session.scalars(due))), *_due())
        .values(attempts=WebhookDelivery.attempts + 1, lease_until=now + lease_seconds)
        .returning(WebhookDelivery)
    )
    rows = session.scalars(statement, execution_options={"synchronize_session": False, "populate_existing": True})
    grace = select(WebhookEndpoint.id).where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.previous_ends_at > now)
    previous = endpoint.previous_sealed if session.scalar(grace) is not None else None
    return [
        Claimed(
            id=row.id,
            endpoint_id=row.endpoint_id,
            event_id=row.event_id,
            type=row.type,
            payload=row.payload,
            attempt=row.attempts,
            url=endpoint.url,
            sealed=endpoint.sealed,
            previous_sealed=previous,
        )
        for row in sorted(rows, key=lambda row: row.id)
    ]


def _due() -> tuple[ColumnElement[bool], ...]:
    free = or_(WebhookDelivery.lease_until.is_(None), WebhookDelivery.lease_until < db_now())
    return text(IS_WAITING), WebhookDelivery.next_attempt_at <= db_now(), free  # type: ignore[return-value]


def _leased() -> tuple[ColumnElement[bool], ...]:
    return text(IS_LEASED), WebhookDelivery.lease_until >= db_now()  # type: ignore[return-value]
