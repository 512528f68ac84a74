"""Job events: the append-only log of a job, numbered from 1 without gaps."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Document, Id, Moment, Word

EVENT_TYPES = ("state", "progress", "log", "metric")


class JobEvent(Base):
    """One entry of a job's log; ``attempt`` is the claim it belongs to, 0 before the first."""

    __tablename__ = "job_events"
    __table_args__ = (
        CheckConstraint("seq >= 1 AND attempt >= 0", name="numbers"),
        # what retention drops is found without reading what it keeps
        Index(
            "ix_job_events_progress",
            "job_id",
            sqlite_where=text("type = 'progress'"),
            postgresql_where=text("type = 'progress'"),
        ),
    )

    job_id: Mapped[Id] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int]
    type: Mapped[Word]
    data: Mapped[Document]
    created_at: Mapped[Moment]
