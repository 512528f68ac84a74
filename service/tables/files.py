"""Tables of files: uploads, damaged files, verification."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Bytes, Id, Moment, Name, Owned, Sha256, Tenant, Word, one_of

FILE_DAMAGES = ("missing", "size", "digest", "unreadable")


class DamagedFile(Base):
    """A stored file that rows name and that is not what it was; gone once the file is whole again."""

    __tablename__ = "damaged_files"
    __table_args__ = (CheckConstraint(one_of("damage", FILE_DAMAGES), name="damage"),)

    sha256: Mapped[Sha256] = mapped_column(primary_key=True)
    damage: Mapped[Word]
    found_at: Mapped[Moment]


class ScrubPass(Base):
    """The pass of verification over all files, in the order of their digests; one row.

    ``position`` is the digest of the last file that was verified, "" at the beginning.
    """

    __tablename__ = "scrub_passes"

    name: Mapped[Word] = mapped_column(primary_key=True)
    position: Mapped[Sha256]
    files: Mapped[int]
    size_bytes: Mapped[Bytes]
    started_at: Mapped[Moment]
    finished_at: Mapped[Moment | None]


UPLOAD_STATES = ("open", "complete")


class Upload(Owned):
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


class UploadPart(Base):
    """Bytes of an open upload in a bucket, from ``begin_bytes`` on: the object that one request has written."""

    __tablename__ = "upload_parts"

    upload_id: Mapped[Id] = mapped_column(primary_key=True)
    begin_bytes: Mapped[Bytes] = mapped_column(primary_key=True)
    size_bytes: Mapped[Bytes]
    name: Mapped[Name]


class Quarantine(Owned):
    """The bytes of a tenant's model that killed a runner; ``quarantined_at`` once they did so too often in a row."""

    __tablename__ = "quarantines"

    tenant_id: Mapped[Tenant] = mapped_column(primary_key=True)
    digest: Mapped[Sha256] = mapped_column(primary_key=True)
    crashes: Mapped[int]
    reason: Mapped[Name]
    model_id: Mapped[Id]
    job_id: Mapped[Id]
    quarantined_at: Mapped[Moment | None]
    updated_at: Mapped[Moment]
