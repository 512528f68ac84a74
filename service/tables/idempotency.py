"""Idempotency keys: the answer to a request, kept in the transaction that did the work."""

from __future__ import annotations

from sqlalchemy import Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Document, Moment, Name, Sha256, Tenant

ROUTE_LENGTH = 64


class IdempotencyKey(Base):
    """A key is unique per tenant and route; ``status`` and ``body`` are replayed to an equal request."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("ix_idempotency_keys_created_at", "created_at"),)

    tenant_id: Mapped[Tenant] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(String(ROUTE_LENGTH), primary_key=True)
    key: Mapped[Name] = mapped_column(primary_key=True)
    # Of what was sent, null in rows that older code has written; and of what it meant, with its defaults.
    sent_sha256: Mapped[Sha256 | None]
    request_sha256: Mapped[Sha256]
    status: Mapped[int]
    headers: Mapped[Document]
    body: Mapped[Document]
    created_at: Mapped[Moment]
