"""Datasets: arrays, pictures or sounds in one file, with the way they become model inputs."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Bytes, Document, Id, Moment, Name, Sha256, Tenant, Text, Word, one_of
from service.tables.models import NOUN_STATUSES

DATASET_FORMATS = ("npz", "safetensors", "tar", "tar.gz", "zip")


class Dataset(Base):
    """An uploaded dataset. ``summary`` is a DatasetSummary once ready, ``problems`` a list of Problem once rejected.

    ``version`` counts the datasets of its tenant and name. ``thumbnails_sha256`` names the stored sheet of small
    pictures, where the dataset holds pictures. A deleted one names no file: its ``sha256`` is empty.
    """

    __tablename__ = "datasets"
    __table_args__ = (
        CheckConstraint(one_of("status", NOUN_STATUSES), name="status"),
        CheckConstraint(one_of("format", DATASET_FORMATS), name="format"),
        CheckConstraint("(status = 'ready') = (summary IS NOT NULL)", name="ready_has_summary"),
        CheckConstraint("(status = 'rejected') = (problems IS NOT NULL)", name="rejected_has_problems"),
        CheckConstraint("version >= 1", name="version"),
        CheckConstraint("(deleted_at IS NULL) = (sha256 <> '')", name="deleted_has_no_file"),
        UniqueConstraint("tenant_id", "id"),
        UniqueConstraint("tenant_id", "name", "version"),
        Index("ix_datasets_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    name: Mapped[Name]
    version: Mapped[int] = mapped_column(server_default=text("1"))
    format: Mapped[Word]
    status: Mapped[Word]
    tags: Mapped[Document] = mapped_column(server_default=text("'{}'"))
    description: Mapped[Text | None]
    sha256: Mapped[Sha256]
    size_bytes: Mapped[Bytes]
    preprocessing: Mapped[Document]
    summary: Mapped[Document | None]
    # The summary without what grows with the data, for lists; null in rows that older code has written.
    outline: Mapped[Document | None]
    problems: Mapped[Document | None]
    # Why the installation keeps it in validation: code, message, hint.
    waiting: Mapped[Document | None]
    thumbnails_sha256: Mapped[Sha256 | None]
    row_version: Mapped[int]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]
    deleted_at: Mapped[Moment | None]
