"""What verification found in the store: damaged files, and how far it has come."""

from __future__ import annotations

from sqlalchemy import CheckConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Bytes, Moment, Sha256, Word, one_of

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
