"""Writes and verifies the audit log.

Each row's hash covers its columns and the hash of the row before (a hash chain, as in RFC 6962's forerunners and in
Schneier and Kelsey, "Secure audit logs", 1999), so that no row can be changed, taken out or moved without changing all
that follow. Whoever can write the database could make a whole new chain: the head that ``verify`` prints, kept
elsewhere, shows that too.

A deed leaves its row in its own transaction and waits for nobody; ``link`` appends such rows to the chain, in a
transaction of its own: the reconciler does, and whoever reads.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from service.audit import repository
from service.audit.changes import FieldChange, kept
from service.audit.repository import BEGINNING, EVERYTHING, AuditFilters, Link
from service.db import Database
from service.principal import Principal
from service.tables import AuditEvent

log = logging.getLogger(__name__)

Fault = Literal["changed", "missing", "moved", "cut-off"]


@dataclass(frozen=True)
class Verdict:
    """What verification found."""

    rows: int  # how many there are
    head: str  # the hash of the newest
    fault: Fault | None = None  # what is wrong with the first row that is not as it was written; None: nothing
    seq: int = 0  # that row's number


def note(
    session: Session,
    by: Principal,
    action: str,
    about: str,
    *,
    tenant_id: str | None = None,
    changes: Sequence[FieldChange] = (),
) -> None:
    """Leave a row on what this transaction does, which ``link`` appends to the chain.

    Args:
        session: writes; the row is there if and only if the deed is.
        by: who does it.
        action: noun and verb, such as ``job.cancel``.
        about: id of what it is done to.
        tenant_id: whose that is, who reads of it in the own log; None: the doer's tenant's.
        changes: what it changes, see ``changes_between``.
    """
    repository.add(
        session, tenant_id=tenant_id or by.tenant_id, actor=by.actor, action=action, object=about,
        request_id=by.request_id, address=by.address, changes=kept(changes),
    )  # fmt: skip


def names(database: Database, tenant_id: str, ids: Sequence[str]) -> dict[str, str]:
    """What a tenant's objects of entries are called, by id, where that is known."""
    with database.read() as session:
        return repository.names(session, tenant_id, ids)


def link(database: Database) -> int:
    """Append the rows of deeds to the chain, unless somebody does so at this moment; returns how many."""
    with database.read() as session:
        if not repository.any_new(session):
            return 0
    with database.write() as session:
        end = repository.hold_ends(session)
        found = [] if end is None else repository.take_new(session)
        links: list[Link] = []
        for seq, (*told, changes) in enumerate(found, start=1 if end is None else end.seq + 1):
            previous = links[-1].hash if links else end.hash if end is not None else BEGINNING
            made = Link._make((seq, *told, previous, "", changes))
            links.append(made._replace(hash=hash_of(made)))
        if links:
            repository.append(session, links)
    return len(links)


def link_if_possible(database: Database) -> None:
    """Append as ``link`` does; where nothing can be written now, what is chained can still be read."""
    try:
        link(database)
    except (DBAPIError, PoolTimeoutError) as error:
        log.warning("audit.not_linked error=%s", type(error).__name__)


def hash_of(link: Link) -> str:
    """SHA-256 over the row's columns but its own hash, as a JSON array: 64 hexadecimal digits.

    Changes stand last, and only where there are some: rows of before they were recorded have the hash that they had.
    """
    covered = [*link[:-2]] if link.changes is None else [*link[:-2], link.changes]
    return hashlib.sha256(json.dumps(covered, ensure_ascii=True).encode()).hexdigest()


def verify(session: Session) -> Verdict:
    """Go through all rows of the chain, and tell of the first that is not as it was written.

    Best in a session of its own: its statements are to see the same rows, whoever appends or forgets some meanwhile.
    """
    if session.get_bind().dialect.name == "postgresql" and not session.in_transaction():
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    known = repository.ends(session)
    seq, previous = known.first_seq, known.first_hash
    for link in repository.links(session):
        fault = _fault(link, seq + 1, previous)
        if fault is not None:
            return Verdict(seq - known.first_seq, previous, fault, link.seq)
        seq, previous = link.seq, link.hash
    if (known.seq, known.hash) != (seq, previous):
        return Verdict(seq - known.first_seq, previous, "cut-off", seq + 1)
    return Verdict(seq - known.first_seq, previous)


def _fault(link: Link, seq: int, previous: str) -> Fault | None:
    if link.seq != seq:
        return "missing"
    if link.hash != hash_of(link):
        return "changed"
    return None if link.previous_hash == previous else "moved"


def list_page(
    database: Database,
    tenant_id: str | None,
    *,
    before: int | None,
    limit: int,
    filters: AuditFilters = EVERYTHING,
) -> tuple[list[AuditEvent], bool]:
    """Rows, the newest first, and whether there are more.

    Args:
        database: where they are.
        tenant_id: of this tenant alone; None: of all.
        before: only rows with numbers below this.
        limit: most of them.
        filters: which of them.
    """
    link_if_possible(database)
    with database.read() as session:
        rows = repository.page(session, tenant_id=tenant_id, before=before, limit=limit + 1, filters=filters)
    return rows[:limit], len(rows) > limit


def verify_all(database: Database) -> Verdict:
    """Append what is new, then go through all rows, of all tenants."""
    link_if_possible(database)
    with database.read() as session:
        return verify(session)
