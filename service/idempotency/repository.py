"""Statements about idempotency keys. All run in the transaction that does the work."""

from __future__ import annotations

import hashlib

from sqlalchemy import Double, bindparam, delete, func, insert, select
from sqlalchemy.orm import Session

from service.db import db_now
from service.idempotency.answers import IDEMPOTENCY_HEADER, Answer, IdempotencyInFlightError, IdempotencyKeyReuseError
from service.idempotency.digests import Digests
from service.tables import IdempotencyKey
from service.tenancy import owned

# Built once: that takes longer than the database does for the answer.
_PLACE = (
    owned(IdempotencyKey, bindparam("of_tenant")),
    IdempotencyKey.route == bindparam("of_route"),
    IdempotencyKey.key == bindparam("of_key"),
)
_FIND = select(IdempotencyKey).where(*_PLACE)
_FIND_KEPT = _FIND.where(IdempotencyKey.created_at >= db_now() - bindparam("kept_seconds", type_=Double))
_FORGET = (
    delete(IdempotencyKey)
    .where(*_PLACE, IdempotencyKey.created_at < db_now() - bindparam("kept_seconds", type_=Double))
    .execution_options(synchronize_session=False)
)


def recall(
    session: Session, tenant_id: str, route: str, key: str, digests: Digests, *, kept_seconds: float
) -> Answer | None:
    """The stored answer to an equal request; None if the key is new (or so old that it is forgotten).

    Until the transaction ends, nobody else gets past this point with the same key.

    Raises:
        IdempotencyKeyReuseError: the key was used for another request.
        IdempotencyInFlightError: a request with the same key is in its transaction.
    """
    _hold(session, tenant_id, route, key)
    place = {"of_tenant": tenant_id, "of_route": route, "of_key": key}
    session.execute(_FORGET, {**place, "kept_seconds": kept_seconds})
    return _answer(session.scalar(_FIND, place), key, digests)


def look_up(
    session: Session, tenant_id: str, route: str, key: str, digests: Digests, *, kept_seconds: float
) -> Answer | None:
    """As ``recall``, to be asked before there is a transaction to write in: what is not known now may be then.

    Raises:
        IdempotencyKeyReuseError: the key was used for another request.
    """
    place = {"of_tenant": tenant_id, "of_route": route, "of_key": key}
    row = session.scalar(_FIND_KEPT, {**place, "kept_seconds": kept_seconds})
    return _answer(row, key, digests)


def remember(session: Session, tenant_id: str, route: str, key: str, digests: Digests, answer: Answer) -> None:
    """Store the answer under the key."""
    session.execute(
        insert(IdempotencyKey).values(
            tenant_id=tenant_id,
            route=route,
            key=key,
            sent_sha256=digests.sent,
            request_sha256=digests.meaning,
            status=answer.status,
            headers=answer.headers,
            body=answer.body,
            created_at=db_now(),
        )
    )


def _answer(row: IdempotencyKey | None, key: str, digests: Digests) -> Answer | None:
    if row is None:
        return None
    if row.sent_sha256 != digests.sent and row.request_sha256 != digests.meaning:
        raise IdempotencyKeyReuseError(
            f"The idempotency key {key!r} was used for another body.",
            hint="Use a new key for a new request.",
            header=IDEMPOTENCY_HEADER,
        )
    return Answer(row.status, row.body, row.headers, replayed=True)


def _hold(session: Session, tenant_id: str, route: str, key: str) -> None:
    # On SQLite there is one write transaction at a time anyway.
    if session.get_bind().dialect.name != "postgresql":
        return
    digest = hashlib.sha256("\0".join((tenant_id, route, key)).encode()).digest()
    number = int.from_bytes(digest[:8], "big", signed=True)
    if not session.scalar(select(func.pg_try_advisory_xact_lock(number))):
        raise IdempotencyInFlightError(
            f"A request with the idempotency key {key!r} is in flight.", hint="Send it again in a second."
        )
