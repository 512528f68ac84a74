"""Statements about the audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import Double, insert, select, type_coerce, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.repository import upsert
from service.tables import AuditEvent, AuditHead

HEAD = "audit"
# The hash before the first row.
BEGINNING = "0" * 64
_ROWS = 1000


class Link(NamedTuple):
    """One row as it is hashed, ``at`` as the exact number that is stored; the two hashes stand last."""

    seq: int
    tenant_id: str
    actor: str
    action: str
    object: str
    request_id: str
    address: str
    at: float
    previous_hash: str
    hash: str


_COLUMNS = tuple(
    type_coerce(AuditEvent.at, Double) if name == "at" else getattr(AuditEvent, name) for name in Link._fields
)


def hold_head(session: Session) -> tuple[int, str, float]:
    """Number and hash of the newest row, and the database's clock; nobody else appends until the commit."""
    held = select(AuditHead.seq, AuditHead.hash, db_now()).with_for_update()
    found = session.execute(held).one_or_none()
    if found is None:
        upsert(session, AuditHead, {"name": HEAD, "seq": 0, "hash": BEGINNING})
        found = session.execute(held).one()
    seq, newest, now = found
    return seq, newest, now


def head(session: Session) -> tuple[int, str]:
    """Number and hash of the newest row."""
    found = session.execute(select(AuditHead.seq, AuditHead.hash)).one_or_none()
    return (0, BEGINNING) if found is None else (found.seq, found.hash)


def append(session: Session, link: Link) -> None:
    """Insert a row and move the head to it."""
    session.execute(insert(AuditEvent).values(link._asdict()))
    session.execute(update(AuditHead).values(seq=link.seq, hash=link.hash).execution_options(synchronize_session=False))


def links(session: Session) -> Iterator[Link]:
    """All rows in the order of their numbers; memory does not grow with them."""
    statement = select(*_COLUMNS).order_by(AuditEvent.seq).execution_options(yield_per=_ROWS)
    for row in session.execute(statement):
        yield Link(*row)


def page(session: Session, *, tenant_id: str | None, before: int | None, limit: int) -> list[AuditEvent]:
    """Rows, the newest first: of one tenant or of all, with numbers below ``before``."""
    statement = select(AuditEvent).order_by(AuditEvent.seq.desc()).limit(limit)
    if tenant_id is not None:
        statement = statement.where(AuditEvent.tenant_id == tenant_id)
    if before is not None:
        statement = statement.where(AuditEvent.seq < before)
    return list(session.scalars(statement))
