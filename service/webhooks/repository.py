"""SQL statements for webhooks and deliveries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Double,
    Update,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy.orm import Session

from service import repository, tracing
from service.db import db_now
from service.ids import new_id
from service.pagination import Position
from service.repository import Outbox, owned
from service.tables import WebhookDelivery, WebhookEndpoint
from service.tables.webhooks import IS_LEASED, IS_WAITING
from service.webhooks.schemas import DeliveryNotFoundError, WebhookCreate, WebhookNotFoundError

OUTBOX = Outbox(WebhookDelivery, IS_WAITING, IS_LEASED)
# Endpoints that are looked at in one round.
_ENDPOINTS = 200


class Subscriber(NamedTuple):
    """An endpoint that may be told of an event."""

    id: str
    event_types: list[str]


# Asked in every transaction that tells of an event, so built once. The lock keeps the endpoint from being deleted until
# its delivery is there; it keeps nobody else waiting.
_ENABLED = (
    select(WebhookEndpoint.id, WebhookEndpoint.event_types)
    .where(owned(WebhookEndpoint, bindparam("of_tenant")), WebhookEndpoint.enabled)
    .order_by(WebhookEndpoint.id)
    .with_for_update(read=True, key_share=True)
)


def anybody_enabled(tenant_id: BindParameter[str]) -> ColumnElement[bool]:
    """Condition: the tenant has an endpoint that is told of anything. For statements that are made anyway."""
    return exists().where(owned(WebhookEndpoint, tenant_id), WebhookEndpoint.enabled)


def enabled(session: Session, tenant_id: str) -> list[Subscriber]:
    """The tenant's endpoints that are told of anything."""
    return [Subscriber(*row) for row in session.execute(_ENABLED, {"of_tenant": tenant_id})]


def create(
    session: Session, tenant_id: str, endpoint_id: str, body: WebhookCreate, *, sealed: str, pepper_id: str
) -> WebhookEndpoint:
    """Insert the endpoint that is asked for, with its secret as it is kept."""
    return repository.add(
        session,
        WebhookEndpoint,
        id=endpoint_id,
        tenant_id=tenant_id,
        url=body.url,
        event_types=body.event_types,
        description=body.description,
        enabled=body.enabled,
        disabled_reason=None if body.enabled else "client",
        disabled_at=None if body.enabled else db_now(),
        dropped_events=0,
        sealed=sealed,
        pepper_id=pepper_id,
    )


def get(session: Session, tenant_id: str, endpoint_id: str, *, locked: bool = False) -> WebhookEndpoint:
    """The tenant's endpoint; ``locked``: kept from changes until the transaction ends.

    Raises:
        WebhookNotFoundError: the tenant has no such endpoint.
    """
    missing = WebhookNotFoundError(endpoint_id)
    return repository.find(session, WebhookEndpoint, tenant_id, endpoint_id, missing, lock="update" if locked else None)


def list_page(
    session: Session, tenant_id: str, *, after: Position | None, limit: int
) -> tuple[list[WebhookEndpoint], Position | None]:
    """One page of the tenant's endpoints, newest first."""
    return repository.page(session, WebhookEndpoint, [owned(WebhookEndpoint, tenant_id)], after=after, limit=limit)


def rotate(
    session: Session, row: WebhookEndpoint, *, sealed: str, pepper_id: str, grace_seconds: float | None
) -> WebhookEndpoint:
    """Put a new secret in place of the one there is, which stays for the grace; None: it ends now."""
    kept = grace_seconds is not None
    return repository.change(
        session,
        WebhookEndpoint,
        row.id,
        sealed=sealed,
        pepper_id=pepper_id,
        previous_sealed=row.sealed if kept else None,
        previous_ends_at=db_now() + grace_seconds if kept else None,
    )


def enable(session: Session, endpoint_id: str) -> WebhookEndpoint:
    """Enable an endpoint; what was held for it is due now."""
    session.execute(_waiting_of(endpoint_id).values(next_attempt_at=db_now()))
    return repository.change(
        session, WebhookEndpoint, endpoint_id, enabled=True, disabled_reason=None, disabled_at=None, failing_since=None
    )


def disable(session: Session, endpoint_id: str, reason: str) -> WebhookEndpoint:
    """Disable an endpoint; what waits for it is held until it is enabled again, or forgotten."""
    row = repository.change(
        session, WebhookEndpoint, endpoint_id, enabled=False, disabled_reason=reason, disabled_at=db_now()
    )
    hold(session, endpoint_id)
    return row


def hold(session: Session, endpoint_id: str) -> None:
    """Let nothing that waits for the endpoint be due."""
    session.execute(_waiting_of(endpoint_id).values(next_attempt_at=None))


def remove(session: Session, endpoint_id: str) -> None:
    """Delete an endpoint that the caller has locked, with its deliveries."""
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id))
    session.execute(delete(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id))


def note_success(session: Session, endpoint_id: str) -> None:
    """The endpoint is not failing any more."""
    session.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.failing_since.is_not(None))
        .values(failing_since=None, row_version=WebhookEndpoint.row_version + 1, updated_at=db_now())
        .execution_options(synchronize_session=False)
    )


def note_failure(session: Session, endpoint_id: str) -> float:
    """The endpoint has failed; returns for how many seconds it does so without a success in between."""
    now = db_now()
    session.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.failing_since.is_(None))
        .values(failing_since=now, row_version=WebhookEndpoint.row_version + 1, updated_at=now)
        .execution_options(synchronize_session=False)
    )
    since = type_coerce(WebhookEndpoint.failing_since, Double)
    return float(session.scalars(select(now - since).where(WebhookEndpoint.id == endpoint_id)).one())


def add_delivery(
    session: Session, tenant_id: str, endpoint_id: str, *, event_id: str, event_type: str, payload: str, most: int
) -> WebhookDelivery | None:
    """Have an endpoint told of an event; None if as many are waiting for it as may: the event is counted as dropped.

    What other open transactions have written is not counted: there may be more, by an event or two for each that is
    open at a time, by up to ``most`` for one that cancels a batch. To count them, all that happens to a tenant's jobs
    would wait for its turn here.
    """
    waiting = select(func.count()).where(WebhookDelivery.endpoint_id == endpoint_id, text(IS_WAITING))
    if session.scalars(waiting).one() >= most:
        # not counted while somebody delivers to it: the caller's transaction waits for nobody
        free = select(WebhookEndpoint.id).where(WebhookEndpoint.id == endpoint_id)
        session.execute(
            update(WebhookEndpoint)
            .where(WebhookEndpoint.id.in_(free.with_for_update(key_share=True, skip_locked=True)))
            .values(dropped_events=WebhookEndpoint.dropped_events + 1)
            .execution_options(synchronize_session=False)
        )
        return None
    now = db_now()
    statement = (
        insert(WebhookDelivery)
        .values(
            id=new_id("dlv"),
            tenant_id=tenant_id,
            endpoint_id=endpoint_id,
            event_id=event_id,
            type=event_type,
            payload=payload,
            trace_context=tracing.carrier(),
            state="waiting",
            attempts=0,
            next_attempt_at=now,
            created_at=now,
        )
        .returning(WebhookDelivery)
    )
    return session.scalars(statement).one()


def _waiting_of(endpoint_id: str) -> Update:
    return (
        update(WebhookDelivery)
        .where(WebhookDelivery.endpoint_id == endpoint_id, text(IS_WAITING))
        .execution_options(synchronize_session=False)
    )


@dataclass(frozen=True)
class ClaimedDelivery:
    """A delivery that is this process's to send, until its lease is over; ``attempt`` is the fencing token.

    ``previous_sealed`` is None once its grace is over.
    """

    id: str
    endpoint_id: str
    event_id: str
    type: str
    payload: str
    trace_context: tracing.Carrier | None
    attempt: int
    url: str
    sealed: str
    previous_sealed: str | None


def list_deliveries(
    session: Session, tenant_id: str, endpoint_id: str, *, state: str | None, after: Position | None, limit: int
) -> tuple[list[WebhookDelivery], Position | None]:
    """One page of an endpoint's deliveries, newest first; without their payloads."""
    of_endpoint = [owned(WebhookDelivery, tenant_id), WebhookDelivery.endpoint_id == endpoint_id]
    large = [WebhookDelivery.payload]
    return repository.page(session, WebhookDelivery, of_endpoint, after=after, limit=limit, without=large, state=state)


def get_delivery(session: Session, tenant_id: str, endpoint_id: str, delivery_id: str) -> WebhookDelivery:
    """A delivery of the tenant's endpoint.

    Raises:
        DeliveryNotFoundError: it has none of this id.
    """
    missing = DeliveryNotFoundError(endpoint_id, delivery_id)
    return repository.find(session, WebhookDelivery, tenant_id, delivery_id, missing, endpoint_id=endpoint_id)


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


def claim(
    session: Session, *, free: int, most_of_endpoint: int, most_of_tenant: int, lease_seconds: float
) -> list[ClaimedDelivery]:
    """Take up to ``free`` deliveries that are due, those that have waited longest first, each endpoint in its share.

    Each endpoint's row is held meanwhile, so that reconcilers which do the same at once take nothing twice and count
    alike; one that somebody else holds is passed over.

    Args:
        session: writes.
        free: how many at most.
        most_of_endpoint: how many of one endpoint may be under way, whoever sends them.
        most_of_tenant: how many of one tenant.
        lease_seconds: of each.
    """
    columns = (WebhookDelivery.tenant_id, WebhookDelivery.endpoint_id)
    rows = session.execute(select(*columns).where(*OUTBOX.leased())).all()
    of_tenant = Counter(tenant_id for tenant_id, _ in rows)
    of_endpoint = Counter(endpoint_id for _, endpoint_id in rows)
    claimed: list[ClaimedDelivery] = []
    for tenant_id, endpoint_id in OUTBOX.waiting_longest(session, columns, _ENDPOINTS):
        room = min(
            free - len(claimed), most_of_tenant - of_tenant[tenant_id], most_of_endpoint - of_endpoint[endpoint_id]
        )
        if room > 0:
            taken = _claim_of(session, endpoint_id, room, most_of_endpoint, lease_seconds)
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


def _claim_of(session: Session, endpoint_id: str, room: int, most: int, lease_seconds: float) -> list[ClaimedDelivery]:
    endpoint = hold_endpoint(session, endpoint_id, skip_locked=True)
    if endpoint is None:
        return []
    if not endpoint.enabled:
        hold(session, endpoint_id)  # written while it was being disabled
        return []
    of_endpoint = WebhookDelivery.endpoint_id == endpoint_id
    # counted once more: before the row was held, others may have claimed as well
    busy = session.scalars(select(func.count()).select_from(WebhookDelivery).where(of_endpoint, *OUTBOX.leased())).one()
    due = OUTBOX.due_ids(session, min(room, most - busy), of_endpoint)
    rows = OUTBOX.take(session, due, lease_seconds)
    in_grace = (WebhookEndpoint.id == endpoint_id, WebhookEndpoint.previous_ends_at > db_now())
    previous = session.scalar(select(WebhookEndpoint.previous_sealed).where(*in_grace))
    return [
        ClaimedDelivery(
            id=row.id,
            endpoint_id=row.endpoint_id,
            event_id=row.event_id,
            type=row.type,
            payload=row.payload,
            trace_context=row.trace_context,
            attempt=row.attempts,
            url=endpoint.url,
            sealed=endpoint.sealed,
            previous_sealed=previous,
        )
        for row in rows
    ]
