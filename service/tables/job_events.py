"""Job events: the append-only log of a job, numbered from 1 without gaps."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Document, Id, Moment, Tenant, Word, of_own_tenant

EVENT_TYPES = ("state", "progress", "log", "metric")


class JobEvent(Base):
    """One entry of a job's log; ``attempt`` is the claim it belongs to, 0 before the first."""

    __tablename__ = "job_events"
    __table_args__ = (
        CheckConstraint("seq >= 1 AND attempt >= 0", name="numbers"),
        of_own_tenant("job_events", "job_id", "jobs"),
        # what retention drops is found without reading what it keeps
        Index(
            "ix_job_events_progress",
            "job_id",
            sqlite_where=text("type = 'progress'"),
            postgresql_where=text("type = 'progress'"),
        ),
    )

    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int]
    type: Mapped[Word]
    data: Mapped[Document]
    created_at: Mapped[Moment]
