"""Statements about idempotency keys. All run in the transaction that does the work."""

from __future__ import annotations

import hashlib

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from service.db import db_now
from service.idempotency.answers import IDEMPOTENCY_HEADER, Answer, IdempotencyInFlightError, IdempotencyKeyReuseError
from service.tables import IdempotencyKey


def recall(
    session: Session, tenant_id: str, route: str, key: str, request_sha256: str, *, kept_seconds: float
) -> Answer | None:
    """The stored answer to an equal request; None if the key is new (or so old that it is forgotten).

    Until the transaction ends, nobody else gets past this point with the same key.

    Raises:
        IdempotencyKeyReuseError: the key was used for another request.
        IdempotencyInFlightError: a request with the same key is in its transaction.
    """
    _hold(session, tenant_id, route, key)
    place = (IdempotencyKey.tenant_id == tenant_id, IdempotencyKey.route == route, IdempotencyKey.key == key)
    session.execute(delete(IdempotencyKey).where(*place, IdempotencyKey.created_at < db_now() - kept_seconds))
    row = session.scalar(select(IdempotencyKey).where(*place))
    if row is None:
        return None
    if row.request_sha256 != request_sha256:
        raise IdempotencyKeyReuseError(
            f"The idempotency key {key!r} was used for another body.",
            hint="Use a new key for a new request.",
            header=IDEMPOTENCY_HEADER,
        )
    return Answer(row.status, row.body, row.headers, replayed=True)


def remember(session: Session, tenant_id: str, route: str, key: str, request_sha256: str, answer: Answer) -> None:
    """Store the answer under the key."""
    session.execute(
        insert(IdempotencyKey).values(
            tenant_id=tenant_id,
            route=route,
            key=key,
            request_sha256=request_sha256,
            status=answer.status,
            headers=answer.headers,
            body=answer.body,
            created_at=db_now(),
        )
    )


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
