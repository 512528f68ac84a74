"""SQL statements for idempotency keys."""

from __future__ import annotations

from sqlalchemy import Double, bindparam, delete, insert, select
from sqlalchemy.orm import Session

from service.db import db_now
from service.idempotency.answers import IDEMPOTENCY_HEADER, Answer, IdempotencyInFlightError, IdempotencyKeyReuseError
from service.idempotency.requests import KeyedRequest
from service.repository import owned, try_alone
from service.tables import IdempotencyKey

# Built once: that takes longer than the database does for the answer.
_PLACE = (
    owned(IdempotencyKey, bindparam("of_tenant")),
    IdempotencyKey.route == bindparam("of_route"),
    IdempotencyKey.key == bindparam("of_key"),
)
_KEPT_SINCE = db_now() - bindparam("kept_seconds", type_=Double)
_FIND = select(IdempotencyKey).where(*_PLACE)
_FIND_KEPT = _FIND.where(IdempotencyKey.created_at >= _KEPT_SINCE)
_FORGET = (
    delete(IdempotencyKey)
    .where(*_PLACE, IdempotencyKey.created_at < _KEPT_SINCE)
    .execution_options(synchronize_session=False)
)


def recall(
    session: Session, tenant_id: str, request: KeyedRequest, *, kept_seconds: float, hold: bool = False
) -> Answer | None:
    """The stored answer to an equal request; None if the key is new (or so old that it is forgotten).

    Args:
        session: reads; with ``hold`` it writes, and until its transaction ends nobody else gets past this point with
            the same key.
        tenant_id: who asks.
        request: without a key nothing is known of it.
        kept_seconds: older keys are forgotten.
        hold: the request is done in this transaction if it is not known; before that, what is not known now may be.

    Raises:
        IdempotencyKeyReuseError: the key was used for another request.
        IdempotencyInFlightError: a request with the same key is in its transaction.
    """
    if request.key is None:
        return None
    place = {"of_tenant": tenant_id, "of_route": request.route, "of_key": request.key}
    kept = {**place, "kept_seconds": kept_seconds}
    if hold:
        held = "\0".join((tenant_id, request.route, request.key))
        if not try_alone(session, held):
            raise IdempotencyInFlightError(
                f"A request with the idempotency key {request.key!r} is in progress.",
                hint="Send the request again in a second.",
            )
        session.execute(_FORGET, kept)
    row = session.scalar(_FIND, place) if hold else session.scalar(_FIND_KEPT, kept)
    if row is None:
        return None
    if row.sent_sha256 != request.sent_sha256 and row.request_sha256 != request.meaning_sha256:
        raise IdempotencyKeyReuseError(
            f"The idempotency key {request.key!r} was already used with a different body.",
            hint="Use a new key for a new request.",
            header=IDEMPOTENCY_HEADER,
        )
    return Answer(row.status, row.body, row.headers, replayed=True)


def remember(session: Session, tenant_id: str, request: KeyedRequest, answer: Answer) -> None:
    """Store the answer under the request's key, if it has one, in the transaction that does the work."""
    if request.key is None:
        return
    session.execute(
        insert(IdempotencyKey).values(
            tenant_id=tenant_id,
            route=request.route,
            key=request.key,
            sent_sha256=request.sent_sha256,
            request_sha256=request.meaning_sha256,
            status=answer.status,
            headers=answer.headers,
            body=answer.body,
            created_at=db_now(),
        )
    )
