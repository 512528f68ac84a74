"""SQL statements for the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Double, Select, String, cast, delete, func, insert, select, type_coerce, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.ids import new_id
from service.repository import owned, upsert
from service.tables import (
    AuditEvent,
    AuditHead,
    Base,
    Batch,
    Dataset,
    Job,
    JobSchedule,
    Model,
    NewAuditEvent,
    WebhookEndpoint,
)

HEAD = "audit"
# The hash before the first row.
BEGINNING = "0" * 64
_ROWS = 1000


class Link(NamedTuple):
    """One row as it is hashed, ``at`` as the exact number that is stored."""

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
    changes: str | None = None


def _columns(table: type[Base], names: Sequence[str]) -> list[Any]:
    return [type_coerce(getattr(table, name), Double) if name == "at" else getattr(table, name) for name in names]


_COLUMNS = _columns(AuditEvent, Link._fields)
_NEW_COLUMNS = _columns(NewAuditEvent, (*Link._fields[1:-3], "changes"))
_ENDS = select(
    AuditHead.seq, AuditHead.hash, func.coalesce(AuditHead.first_seq, 0), func.coalesce(AuditHead.first_hash, BEGINNING)
)


class AuditFilters(NamedTuple):
    """Which entries are listed; None: all."""

    actor: str | None = None
    action: str | None = None  # such as job.cancel, or job.* for all of a noun
    but: str | None = None  # all but this action
    since: datetime | None = None  # at this moment or later
    until: datetime | None = None  # before this moment


EVERYTHING = AuditFilters()


class ChainEnds(NamedTuple):
    """Number and hash of the newest row of the chain, and of the newest that was forgotten before its first one."""

    seq: int = 0
    hash: str = BEGINNING
    first_seq: int = 0
    first_hash: str = BEGINNING


def add(session: Session, **values: str | None) -> None:
    """Insert a row that is to be chained; waits for nobody."""
    session.execute(insert(NewAuditEvent).values(id=new_id("aud"), at=db_now(), **values))


def hold_ends(session: Session) -> ChainEnds | None:
    """The ends of the chain; nobody else moves them until the commit. None: somebody does so now."""
    held = _ENDS.with_for_update(skip_locked=True)
    found = session.execute(held).one_or_none()
    if found is None:
        upsert(session, AuditHead, {"name": HEAD, "seq": 0, "hash": BEGINNING})
        found = session.execute(held).one_or_none()
    return None if found is None else ChainEnds(*found)


def ends(session: Session) -> ChainEnds:
    """The same, to be read."""
    found = session.execute(_ENDS).one_or_none()
    return ChainEnds() if found is None else ChainEnds(*found)


def any_new(session: Session) -> bool:
    """Whether there are rows that are not chained yet."""
    return session.scalar(select(NewAuditEvent.id).limit(1)) is not None


def take_new(session: Session) -> list[tuple[Any, ...]]:
    """Take the oldest rows that are not chained: of ``Link`` the columns from ``tenant_id`` to ``at``, and changes."""
    found = session.execute(select(NewAuditEvent.id, *_NEW_COLUMNS).order_by(NewAuditEvent.id).limit(_ROWS)).all()
    session.execute(delete(NewAuditEvent).where(NewAuditEvent.id.in_([row.id for row in found])))
    return [tuple(row)[1:] for row in found]


def append(session: Session, links: Sequence[Link]) -> None:
    """Insert rows, at least one, and move the end of the chain to the last."""
    session.execute(insert(AuditEvent), [link._asdict() for link in links])
    _move(session, seq=links[-1].seq, hash=links[-1].hash)


def count_old(session: Session, age_seconds: float) -> int:
    """How many rows are older, and stand before all that are not."""
    known = ends(session)
    return _last_old(session, known, age_seconds, known.seq) - known.first_seq


def delete_old(session: Session, age_seconds: float, limit: int) -> int:
    """Forget the first rows of the chain, as far as they are older; returns how many. What is left begins there."""
    known = hold_ends(session)
    if known is None:
        return 0
    last = _last_old(session, known, age_seconds, min(known.seq, known.first_seq + limit))
    if last <= known.first_seq:
        return 0
    last_hash = session.scalar(select(AuditEvent.hash).where(AuditEvent.seq == last))
    forgotten = AuditEvent.seq.between(known.first_seq + 1, last)  # past what the index holds of rows before
    session.execute(delete(AuditEvent).where(forgotten).execution_options(synchronize_session=False))
    _move(session, first_seq=last, first_hash=last_hash)
    return last - known.first_seq


def _last_old(session: Session, known: ChainEnds, age_seconds: float, upto: int) -> int:
    """Number of the last row before the first that is younger; of those up to a number, which alone are looked at."""
    looked_at = AuditEvent.seq.between(known.first_seq + 1, upto)
    young = select(AuditEvent.seq).where(looked_at, AuditEvent.at >= db_now() - age_seconds)
    first = session.scalar(young.order_by(AuditEvent.seq).limit(1))
    return upto if first is None else first - 1


def _move(session: Session, **values: Any) -> None:
    session.execute(update(AuditHead).values(**values).execution_options(synchronize_session=False))


def links(session: Session) -> Iterator[Link]:
    """All rows in the order of their numbers; memory does not grow with them."""
    statement = select(*_COLUMNS).order_by(AuditEvent.seq).execution_options(yield_per=_ROWS)
    for row in session.execute(statement):
        yield Link(*row)


def page(
    session: Session, *, tenant_id: str | None, before: int | None, limit: int, filters: AuditFilters = EVERYTHING
) -> list[AuditEvent]:
    """Rows, the newest first: of one tenant or of all, with numbers below ``before``."""
    statement = select(AuditEvent).order_by(AuditEvent.seq.desc()).limit(limit)
    if tenant_id is not None:
        statement = statement.where(AuditEvent.tenant_id == tenant_id)
    if before is not None:
        statement = statement.where(AuditEvent.seq < before)
    return list(session.scalars(statement.where(*_conditions(filters))))


def names(session: Session, tenant_id: str, ids: Sequence[str]) -> dict[str, str]:
    """What a tenant's objects are called, by id; of those that are gone, or have no name, nothing."""
    asked: list[Select[str, str]] = [
        select(table.id, table.name + "@" + cast(table.version, String)).where(owned(table, tenant_id))
        for table in (Model, Dataset)
    ]
    asked += [
        select(table.id, func.coalesce(table.name, "")).where(owned(table, tenant_id))
        for table in (Job, Batch, JobSchedule)
    ]
    asked.append(select(WebhookEndpoint.id, WebhookEndpoint.url).where(owned(WebhookEndpoint, tenant_id)))
    found: dict[str, str] = {}
    for statement in asked:
        place = statement.selected_columns[0]
        found |= {row[0]: row[1] for row in session.execute(statement.where(place.in_(ids))) if row[1]}
    return found


def _conditions(filters: AuditFilters) -> Iterator[ColumnElement[bool]]:
    if filters.actor is not None:
        yield AuditEvent.actor == filters.actor
    if filters.action is not None:
        noun = filters.action.removesuffix("*")
        yield (
            AuditEvent.action == noun if noun == filters.action else AuditEvent.action.startswith(noun, autoescape=True)
        )
    if filters.but is not None:
        yield AuditEvent.action != filters.but
    if filters.since is not None:
        yield AuditEvent.at >= filters.since
    if filters.until is not None:
        yield AuditEvent.at < filters.until
