"""What jobs will take, and what earlier ones took."""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, Index
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Document, Id, Moment, Sha256, Tenant, Word, of_own_tenant


class JobEstimate(Base):
    """What a job was expected to take when it was stored.

    ``told`` is what is said of it; ``prior`` is what its graph, data and config alone made one expect.
    """

    __tablename__ = "job_estimates"
    __table_args__ = (of_own_tenant("job_estimates", "job_id", "jobs"),)

    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id] = mapped_column(primary_key=True)
    model_sha256: Mapped[Sha256]
    recipe: Mapped[Word]
    seconds: Mapped[float] = mapped_column(Double)
    told: Mapped[Document]
    prior: Mapped[Document]


class JobTiming(Base):
    """What a job took that has succeeded at its first attempt. Its id is the job's, which may be gone: this stays."""

    __tablename__ = "job_timings"
    __table_args__ = (Index("ix_job_timings_tenant_id_model_sha256_id", "tenant_id", "model_sha256", "id"),)

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    model_sha256: Mapped[Sha256]
    recipe: Mapped[Word]
    prior: Mapped[Document]
    # Seconds by stage, with those of its start.
    stages: Mapped[Document]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[Moment]


class EstimateFit(Base):
    """Nothing reads or writes it any more; processes of the version before still do while a service is updated."""

    __tablename__ = "estimate_fits"

    name: Mapped[Word] = mapped_column(primary_key=True)
    fit: Mapped[Document]
    newest_timing: Mapped[Id]
    fitted_at: Mapped[Moment]
