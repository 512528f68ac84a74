"""Writing and verifying the audit.

Each row's hash covers its columns and the hash of the row before (a hash chain, as in RFC 6962's forerunners and in
Schneier and Kelsey, "Secure audit logs", 1999), so that no row can be changed, taken out or moved without changing all
that follow. Whoever can write the database could make a whole new chain: the head that ``verify`` prints, kept
elsewhere, shows that too.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.orm import Session

from service.audit import repository
from service.audit.repository import BEGINNING, Link
from service.principal import Principal
from service.tables import AuditEvent

Fault = Literal["changed", "missing", "moved", "cut-off"]


@dataclass(frozen=True)
class Verdict:
    """What verification found.

    Attributes:
        rows: how many there are.
        head: the hash of the newest.
        fault: what is wrong with the first row that is not as it was written; None: nothing.
        seq: that row's number.
    """

    rows: int
    head: str
    fault: Fault | None = None
    seq: int = 0


def note(session: Session, by: Principal, action: str, about: str) -> None:
    """Append a row on what this transaction does; as late in it as can be, for others wait for its end to append.

    Args:
        session: writes; the row is there if and only if the deed is.
        by: who does it.
        action: noun and verb, such as ``job.cancel``.
        about: id of what it is done to.
    """
    seq, previous, now = repository.hold_head(session)
    link = Link(
        seq + 1, by.tenant_id, by.actor, action, about, by.request_id, by.address,
        now, previous, "",
    )  # fmt: skip
    repository.append(session, link._replace(hash=hash_of(link)))


def page(session: Session, *, tenant_id: str | None, before: int | None, limit: int) -> list[AuditEvent]:
    """Rows, the newest first: of one tenant or of all, with numbers below ``before``."""
    return repository.page(session, tenant_id=tenant_id, before=before, limit=limit)


def hash_of(link: Link) -> str:
    """SHA-256 over the row's columns but its own hash, as a JSON array: 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(link[:-1], ensure_ascii=True).encode()).hexdigest()


def verify(session: Session) -> Verdict:
    """Go through all rows, and tell of the first that is not as it was written."""
    rows, previous = 0, BEGINNING
    for link in repository.links(session):
        fault = _fault(link, rows + 1, previous)
        if fault is not None:
            return Verdict(rows, previous, fault, link.seq)
        rows, previous = rows + 1, link.hash
    if repository.head(session) != (rows, previous):
        return Verdict(rows, previous, "cut-off", rows + 1)
    return Verdict(rows, previous)


def _fault(link: Link, seq: int, previous: str) -> Fault | None:
    if link.seq != seq:
        return "missing"
    if link.hash != hash_of(link):
        return "changed"
    return None if link.previous_hash == previous else "moved"
