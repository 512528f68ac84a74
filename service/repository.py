"""SQL statements shared by all resources: a tenant's row, a page of rows, updates, and versions."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Double,
    Integer,
    TextClause,
    and_,
    cast,
    func,
    insert,
    inspect,
    literal,
    or_,
    select,
    text,
    true,
    tuple_,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import insert as insert_postgresql
from sqlalchemy.dialects.sqlite import insert as insert_sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session, defer

from service.contracts.errors import QuantmillError
from service.db import db_now
from service.ids import Prefix, is_id
from service.pagination import Position
from service.tables import (
    ApiKey,
    Artifact,
    Base,
    Batch,
    BatchMember,
    Dataset,
    HandOver,
    InspectionRow,
    Job,
    JobSchedule,
    Model,
    ScheduleRun,
    Upload,
    WebhookDelivery,
    WebhookEndpoint,
)
from service.tables.base import Owned


def owned(table: type[Owned], tenant_id: str | BindParameter[str] | InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """``table``'s row is the tenant's; what is another's is not there."""
    return table.tenant_id == tenant_id


_Own = TypeVar(
    "_Own", Artifact, Batch, Dataset, InspectionRow, Job, Model, JobSchedule, ScheduleRun, Upload, WebhookDelivery,
    WebhookEndpoint,
)  # fmt: skip
_Listed = TypeVar(
    "_Listed", ApiKey, Batch, Dataset, Job, Model, JobSchedule, ScheduleRun, WebhookDelivery, WebhookEndpoint
)
_Made = TypeVar("_Made", Batch, Dataset, InspectionRow, JobSchedule, Model, ScheduleRun, WebhookEndpoint)
_Versioned = TypeVar("_Versioned", JobSchedule, ScheduleRun, WebhookEndpoint)
# Of ids, by the table that they are of.
_PREFIXES: dict[type[Base], Prefix] = {
    Artifact: "art",
    Batch: "bat",
    Dataset: "dst",
    InspectionRow: "ins",
    Job: "job",
    Model: "mdl",
    JobSchedule: "sch",
    ScheduleRun: "run",
    Upload: "upl",
    WebhookDelivery: "dlv",
    WebhookEndpoint: "whk",
}
# Of a row: its row_version, and the number of its last event, where it has events.
Version = tuple[int, int]
# In one statement: databases have a limit of parameters.
_IDS = 500

_NOW = select(db_now())
_BATCH_VERSIONS: Any = (
    select(
        Batch.id,
        Batch.row_version + cast(func.coalesce(func.sum(Job.row_version), 0), Integer),
        cast(func.coalesce(func.sum(Job.last_seq), 0), Integer),
    )
    .outerjoin(BatchMember, BatchMember.batch_id == Batch.id)
    .outerjoin(Job, and_(Job.id == BatchMember.job_id, owned(Job, BatchMember.tenant_id)))
    .group_by(Batch.id, Batch.row_version)
)


def now_seconds(session: Session) -> float:
    """The database's clock, in seconds since 1970 UTC."""
    return float(session.execute(_NOW).scalar_one())


def alone(session: Session, number: int) -> None:
    """Until the commit, nobody else is between this call and their commit with the same number.

    On SQLite a write transaction is alone anyway.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(number)))


def try_alone(session: Session, what: str) -> bool:
    """As ``alone``, by a text; False, without waiting, if somebody else is between their call and their commit."""
    if session.get_bind().dialect.name != "postgresql":
        return True
    number = int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big", signed=True)
    return bool(session.scalar(select(func.pg_try_advisory_xact_lock(number))))


def insert_of(session: Session, table: type[Base]) -> Any:
    """An INSERT as the session's database spells it, for ``on_conflict_do_update`` and the like."""
    return (insert_postgresql if session.get_bind().dialect.name == "postgresql" else insert_sqlite)(table)


def upsert(session: Session, table: type[Base], row: dict[str, Any], changes: dict[str, Any] | None = None) -> None:
    """Insert a row, or set ``changes`` on the one that has its primary key; without changes that one stays as it is."""
    statement = insert_of(session, table).values(row)
    if changes is None:
        session.execute(statement.on_conflict_do_nothing())
        return
    keys = [column.name for column in inspect(table).primary_key]
    session.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes))


def settle(
    session: Session, table: type[Model] | type[Dataset] | type[InspectionRow], values: dict[str, Any], **which: str
) -> bool:
    """End a validation or an inspection by ``values``, the new status among them. False if it had ended before.

    Args:
        session: of the transaction.
        table: which table.
        values: columns to set.
        which: what columns of the row hold.
    """
    row = session.scalar(
        update(table)
        .where(*_equal(table, which), table.status.in_(("validating", "running")))
        .values(**values, row_version=table.row_version + 1, updated_at=db_now())
        .returning(table.id)
        .execution_options(synchronize_session=False)
    )
    return row is not None


def note_waiting(
    session: Session, table: type[Model] | type[Dataset], row_id: str, waiting: dict[str, Any] | None
) -> None:
    """Note what keeps the row in validation, or that nothing does any more."""
    news = true() if waiting is not None else table.waiting.is_not(None)
    session.execute(
        update(table)
        .where(table.id == row_id, news)
        .values(waiting=waiting, row_version=table.row_version + 1, updated_at=db_now())
        .execution_options(synchronize_session=False)
    )


def find(
    session: Session,
    table: type[_Own],
    tenant_id: str,
    row_id: str,
    missing: QuantmillError,
    *,
    lock: Literal["update", "read"] | None = None,
    **equal: str,
) -> _Own:
    """The tenant's row of this id.

    Args:
        session: reads; with a lock it writes.
        table: which table.
        tenant_id: whose.
        row_id: as a request has it: what is no id of this table is not asked for.
        missing: what is raised where the tenant has no such row.
        lock: ``update``: the row as it is now, and nobody else changes it until the transaction ends; ``read``: nobody
            deletes it until then. Others' rows are not even waited for.
        equal: what else columns have to hold.
    """
    if not is_id(row_id, _PREFIXES[table]):
        raise missing
    statement = select(table).where(table.id == row_id, owned(table, tenant_id), *_equal(table, equal))
    if lock is not None:
        statement = statement.with_for_update(read=lock == "read")
    row = session.scalar(statement, execution_options={"populate_existing": lock == "update"})
    if row is None:
        raise missing
    return row


def count(session: Session, table: type[_Own], tenant_id: str) -> int:
    """How many rows the tenant has."""
    return session.scalars(select(func.count()).select_from(table).where(owned(table, tenant_id))).one()


def page(
    session: Session,
    table: type[_Listed],
    where: Sequence[ColumnElement[bool]],
    *,
    after: Position | None,
    limit: int,
    without: Sequence[InstrumentedAttribute[Any]] = (),
    **equal: str | None,
) -> tuple[list[_Listed], Position | None]:
    """One page of a table, newest first.

    Args:
        session: reads.
        table: which table.
        where: the tenant's filter, as of ``owned``, and others.
        after: last item of the page before.
        limit: items per page.
        without: columns that are not read, because they may be large; to touch one of them is an error.
        equal: what columns have to hold; None: anything.

    Returns:
        The rows, and the position of the last of them if there are more.
    """
    # The exact stored number: as a datetime it would lose its last bits, and the page its place.
    created_at = type_coerce(table.created_at, Double).label("created_at_seconds")
    statement: Any = select(table, created_at).where(*where, *_equal(table, equal))
    statement = statement.options(*(defer(column, raiseload=True) for column in without))
    if after is not None:
        statement = statement.where(tuple_(created_at, table.id) < tuple_(after.created_at, after.id))
    statement = statement.order_by(created_at.desc(), table.id.desc()).limit(limit + 1)
    found = session.execute(statement).all()
    rows = [row for row, _ in found[:limit]]
    if len(found) <= limit:
        return rows, None
    last, seconds = found[limit - 1]
    return rows, Position(seconds, last.id)


def add(session: Session, table: type[_Made], **values: Any) -> _Made:
    """Insert a row in its first version, made now."""
    now = db_now()
    statement = insert(table).values(**values, row_version=1, created_at=now, updated_at=now).returning(table)
    return session.scalars(statement).one()


def change(session: Session, table: type[_Versioned], row_id: str, **values: Any) -> _Versioned:
    """Set ``values`` on a row that the caller has looked up and locked; its ``row_version`` goes on."""
    statement = (
        update(table)
        .where(table.id == row_id)
        .values(**values, row_version=table.row_version + 1, updated_at=db_now())
        .returning(table)
    )
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).one()


def _equal(table: Any, values: Mapping[str, str | None]) -> list[ColumnElement[bool]]:
    return [getattr(table, name) == value for name, value in values.items() if value is not None]


def versions(
    session: Session,
    table: type[Job] | type[Model] | type[Dataset] | type[InspectionRow] | type[Batch],
    ids: Sequence[str],
) -> dict[str, Version]:
    """The version of each of these rows, by id; none for what is not there. Reads nothing else of the rows.

    That of a batch is summed over its jobs.
    """
    statement: Any
    if table is Batch:
        statement = _BATCH_VERSIONS
    else:
        last_seq: Any = Job.last_seq if table is Job else literal(0)
        statement = select(table.id, table.row_version, last_seq)
    found: dict[str, Version] = {}
    for first in range(0, len(ids), _IDS):
        some = statement.where(table.id.in_(ids[first : first + _IDS]))
        found |= {row_id: (row_version, seq) for row_id, row_version, seq in session.execute(some)}
    return found


_RETURNING = {"synchronize_session": False, "populate_existing": True}
OutboxTable = TypeVar("OutboxTable", WebhookDelivery, HandOver)
Condition = ColumnElement[bool] | TextClause


class Claim(Protocol):
    """A row that is this process's to send, until its lease is over; ``attempt`` is the fencing token."""

    @property
    def id(self) -> str:
        """Of the row."""

    @property
    def attempt(self) -> int:
        """From 1 on."""


class Outbox(Generic[OutboxTable]):
    """Rows that are sent to other hosts, at least once, by whoever claims them: what all such tables share.

    A claim is an attempt with a lease: nobody else sends the row until the lease is over. The number of the attempt is
    the fencing token, by which whoever notes what became of it is told apart from who has claimed it since.

    Args:
        table: with ``attempts``, ``next_attempt_at``, ``lease_until`` and ``last_attempt_at``.
        is_pending: condition of its index of rows that are still to be sent, word for word.
        is_leased: of its index of those that are under way.
    """

    def __init__(self, table: type[OutboxTable], is_pending: str, is_leased: str) -> None:
        self._table: type[OutboxTable] = table
        self._is_pending = text(is_pending)
        self._is_leased = text(is_leased)

    def due(self) -> tuple[Condition, ...]:
        """Conditions: it is to be sent now, and nobody does."""
        free = or_(self._table.lease_until.is_(None), self._table.lease_until < db_now())
        return self._is_pending, self._table.next_attempt_at <= db_now(), free

    def leased(self) -> tuple[Condition, ...]:
        """Conditions: somebody sends it."""
        return self._is_leased, self._table.lease_until >= db_now()

    def any_due(self, session: Session) -> bool:
        """Whether there is anything to send: a look that writes nothing."""
        return session.scalar(select(literal(1)).select_from(self._table).where(*self.due()).limit(1)) is not None

    def backlog(self, session: Session) -> tuple[int, float]:
        """How many rows are still to be sent; and for how long, in seconds, the first that is due has been."""
        now = db_now()
        overdue = now - func.min(type_coerce(self._table.next_attempt_at, Double))
        pending, seconds = session.execute(
            select(func.count(), overdue).select_from(self._table).where(self._is_pending)
        ).one()
        return pending, max(0.0, seconds or 0.0)

    def waiting_longest(
        self, session: Session, columns: Sequence[InstrumentedAttribute[str]], most: int
    ) -> list[tuple[str, ...]]:
        """Values of columns, such as tenants, with something due, whoever has waited longest first."""
        oldest = func.min(self._table.next_attempt_at)
        statement = select(*columns).where(*self.due()).group_by(*columns).order_by(oldest)
        return [tuple(row) for row in session.execute(statement.limit(most))]

    def due_ids(self, session: Session, most: int, condition: ColumnElement[bool]) -> list[str]:
        """Ids of up to ``most`` rows that are due, those that have waited longest first."""
        due = select(self._table.id).where(condition, *self.due())
        return list(session.scalars(due.order_by(self._table.next_attempt_at, self._table.id).limit(max(0, most))))

    def take(self, session: Session, ids: Collection[str], lease_seconds: float) -> list[OutboxTable]:
        """Begin an attempt on those of the rows that are still due; returns them, by their ids."""
        statement = (
            update(self._table)
            .where(self._table.id.in_(ids), *self.due())
            .values(attempts=self._table.attempts + 1, lease_until=db_now() + lease_seconds)
            .returning(self._table)
        )
        taken = session.scalars(statement, execution_options=_RETURNING)
        return sorted(taken, key=lambda row: row.id)

    def renew(self, session: Session, claim: Claim, lease_seconds: float) -> bool:
        """Go on with an attempt for so much longer; False if somebody else has claimed it since, or it is gone."""
        return self._note(session, claim, lease_until=db_now() + lease_seconds)

    def release(self, session: Session, claim: Claim) -> bool:
        """Leave an attempt that was broken off to whoever claims it next; False if somebody has, or it is gone."""
        return self._note(session, claim, lease_until=None, next_attempt_at=db_now())

    def settle(self, session: Session, claim: Claim, **values: Any) -> bool:
        """Note what became of an attempt; False if somebody else has claimed it since, or it is gone."""
        return self._note(session, claim, **values, lease_until=None, last_attempt_at=db_now())

    def _note(self, session: Session, claim: Claim, **values: Any) -> bool:
        of_attempt = (self._table.id == claim.id, self._table.attempts == claim.attempt, self._is_pending)
        statement = update(self._table).where(*of_attempt).values(**values).returning(self._table.id)
        return session.scalar(statement, execution_options={"synchronize_session": False}) is not None
