"""The audit: one row per deed, chained by hashes, so that a row that was changed, taken or moved is found.

A deed leaves its row unchained, so that no request waits for another one's; rows are chained once they are committed.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Index
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Id, Moment, Name, Sha256, Tenant, Word


class NewAuditEvent(Base):
    """One deed, written in the transaction that did it; soon an AuditEvent."""

    __tablename__ = "new_audit_events"

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    actor: Mapped[Name]
    action: Mapped[Name]
    object: Mapped[Name]
    request_id: Mapped[Name]
    address: Mapped[Name]
    at: Mapped[Moment]


class AuditEvent(Base):
    """One deed in the chain. ``hash`` covers all other columns and the hash before."""

    __tablename__ = "audit_events"
    __table_args__ = (Index("ix_audit_events_tenant_id_seq", "tenant_id", "seq"),)

    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    tenant_id: Mapped[Tenant]
    actor: Mapped[Name]
    action: Mapped[Name]
    object: Mapped[Name]
    request_id: Mapped[Name]
    address: Mapped[Name]
    at: Mapped[Moment]
    previous_hash: Mapped[Sha256]
    hash: Mapped[Sha256]


class AuditHead(Base):
    """Where the chain ends, and where it begins: the row that whoever appends or forgets holds until the commit.

    ``first_seq`` and ``first_hash`` are those of the newest row that was forgotten for its age; null: none was.
    """

    __tablename__ = "audit_heads"
    __table_args__ = (CheckConstraint("name = 'audit'", name="one"),)

    name: Mapped[Word] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[Sha256]
    first_seq: Mapped[int | None] = mapped_column(BigInteger)
    first_hash: Mapped[Sha256 | None]
