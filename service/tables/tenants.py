"""Tenants whose limits are not those of the installation; and what tenants have used."""

from __future__ import annotations

from sqlalchemy import Double, Index
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Document, Id, Moment, Tenant, Word


class TenantRow(Base):
    """One tenant; made when it first needs a row. ``quota`` is a Quota without what the installation's default says.

    Whoever counts against a quota holds the row until the commit.
    """

    __tablename__ = "tenants"

    id: Mapped[Tenant] = mapped_column(primary_key=True)
    quota: Mapped[Document]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]


class TenantUsage(Base):
    """CPU time of a tenant's jobs in one day of UTC, ``YYYY-MM-DD``."""

    __tablename__ = "tenant_usage"

    tenant_id: Mapped[Tenant] = mapped_column(primary_key=True)
    day: Mapped[Word] = mapped_column(primary_key=True)
    cpu_seconds: Mapped[float] = mapped_column(Double)


class DeletedJob(Base):
    """A quantize or evaluate job that was deleted within a day of its submission: it counts as submitted until then."""

    __tablename__ = "deleted_jobs"
    __table_args__ = (Index("ix_deleted_jobs_tenant_id_created_at", "tenant_id", "created_at"),)

    job_id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    created_at: Mapped[Moment]
