"""Inspections: what a target would make of a model, once per model and config."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Document, Id, Moment, Sha256, Tenant, Word, of_own_tenant, one_of

INSPECTION_STATUSES = ("running", "ready", "failed")


class InspectionRow(Base):
    """One inspection. ``result`` is an Inspection once ready, ``problem`` a Problem once failed."""

    __tablename__ = "inspections"
    __table_args__ = (
        CheckConstraint(one_of("status", INSPECTION_STATUSES), name="status"),
        CheckConstraint("(status = 'ready') = (result IS NOT NULL)", name="ready_has_result"),
        CheckConstraint("(status = 'failed') = (problem IS NOT NULL)", name="failed_has_problem"),
        of_own_tenant("inspections", "model_id", "models"),
        of_own_tenant("inspections", "job_id", "jobs"),
        # a failed one may be tried again
        Index(
            "uq_inspections_model_id_config_sha256",
            "model_id",
            "config_sha256",
            unique=True,
            sqlite_where=text("status <> 'failed'"),
            postgresql_where=text("status <> 'failed'"),
        ),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    model_id: Mapped[Id]
    job_id: Mapped[Id] = mapped_column(unique=True)
    config: Mapped[Document]
    config_sha256: Mapped[Sha256]
    status: Mapped[Word]
    result: Mapped[Document | None]
    problem: Mapped[Document | None]
    row_version: Mapped[int]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]
