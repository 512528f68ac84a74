"""Artifacts: files that a job produced. A file without a row is garbage."""

from __future__ import annotations

from sqlalchemy import ForeignKeyConstraint, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Bytes, Id, Moment, Name, Sha256, Tenant, Word, of_own_tenant


class Artifact(Base):
    """One file in the content-addressed store; it comes and goes with the report of the attempt that made it."""

    __tablename__ = "artifacts"
    __table_args__ = (
        UniqueConstraint("job_id", "kind"),
        of_own_tenant("artifacts", "job_id", "jobs"),
        ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["reports.job_id", "reports.attempt"],
            name="fk_artifacts_job_id_attempt_reports",
            deferrable=True,
            initially="DEFERRED",
        ),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id]
    attempt: Mapped[int]
    kind: Mapped[Word]
    filename: Mapped[Name]
    media_type: Mapped[Name]
    sha256: Mapped[Sha256]
    size_bytes: Mapped[Bytes]
    created_at: Mapped[Moment]
