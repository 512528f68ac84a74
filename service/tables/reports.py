"""Reports: one per succeeded quantize job, written in the transaction that makes it succeed."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Document, Id, Moment, Word, one_of

VERDICTS = ("pass", "fail", "none")


class ReportRow(Base):
    """The report of a job, as JSON; the key makes a second one impossible."""

    __tablename__ = "reports"
    __table_args__ = (CheckConstraint(one_of("verdict", VERDICTS), name="verdict"),)

    job_id: Mapped[Id] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int]
    verdict: Mapped[Word]
    body: Mapped[Document]
    created_at: Mapped[Moment]
