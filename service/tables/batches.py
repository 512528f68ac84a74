"""Batches: jobs that were asked for as one, and which of them belong to it."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.contracts.references import MOST_REFERENCE_CHARS
from service.tables.base import Base, Document, Id, Moment, Name, Tenant, of_own_tenant

# Condition of the index by which summaries are made; statements repeat it word for word.
IS_CURRENT = "superseded = false"


class Batch(Base):
    """A grid of jobs, or a list of them. How it stands follows from its jobs, and is not stored.

    ``grid`` is what was multiplied: models and presets as they were given, and the number of configs; null for a list.
    """

    __tablename__ = "batches"
    __table_args__ = (
        UniqueConstraint("tenant_id", "id"),
        Index("ix_batches_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    name: Mapped[Name | None]
    labels: Mapped[Document]
    grid: Mapped[Document | None]
    row_version: Mapped[int]
    request_id: Mapped[Name | None]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]


class BatchMember(Base):
    """One job of a batch.

    ``position`` counts the batch's jobs from 0 in the order in which they came to it, those of retries, too, and never
    changes; ``member`` is the place in the request, whose job is that of the one row that is not superseded. The job
    may be another's that was reused, and may be gone.
    """

    __tablename__ = "batch_members"
    __table_args__ = (
        CheckConstraint("position >= 0 AND member >= 0 AND position >= member", name="numbers"),
        of_own_tenant("batch_members", "batch_id", "batches"),
        Index(
            "ix_batch_members_current",
            "batch_id",
            "member",
            unique=True,
            sqlite_where=text(IS_CURRENT),
            postgresql_where=text(IS_CURRENT),
        ),
        Index("ix_batch_members_job_id", "job_id"),
    )

    tenant_id: Mapped[Tenant]
    batch_id: Mapped[Id] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    member: Mapped[int]
    job_id: Mapped[Id]
    superseded: Mapped[bool]
    # That job was there already.
    reused: Mapped[bool]
    # As the request has them.
    model: Mapped[str] = mapped_column(String(MOST_REFERENCE_CHARS))
    preset: Mapped[Name | None]
    config: Mapped[int | None]
