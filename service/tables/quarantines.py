"""Models that have killed a runner, by their bytes: under suspicion, or in quarantine."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Id, Moment, Name, Sha256, Tenant


class Quarantine(Base):
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
