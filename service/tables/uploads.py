"""Uploads: bytes on their way in. The bytes received so far are a file; its size is the offset."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Bytes, Id, Moment, Name, Sha256, Tenant, Word, one_of

UPLOAD_STATES = ("open", "complete")


class Upload(Base):
    """One file sent by a client. ``expected_*`` is what the client declared, the rest is what arrived."""

    __tablename__ = "uploads"
    __table_args__ = (
        CheckConstraint(one_of("state", UPLOAD_STATES), name="state"),
        CheckConstraint("(state = 'complete') = (sha256 IS NOT NULL)", name="complete_has_digest"),
        CheckConstraint("(state = 'complete') = (size_bytes IS NOT NULL)", name="complete_has_size"),
        Index("ix_uploads_state_expires_at", "state", "expires_at"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    filename: Mapped[Name]
    kind: Mapped[Word | None]
    state: Mapped[Word]
    expected_size_bytes: Mapped[Bytes | None]
    expected_sha256: Mapped[Sha256 | None]
    size_bytes: Mapped[Bytes | None]
    sha256: Mapped[Sha256 | None]
    created_at: Mapped[Moment]
    completed_at: Mapped[Moment | None]
    expires_at: Mapped[Moment]
