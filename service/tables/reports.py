"""Reports: one per succeeded quantize job, written in the transaction that makes it succeed."""

from __future__ import annotations

from typing import get_args

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.contracts.report import Verdict
from service.tables.base import Base, Document, Id, Moment, Word, one_of

VERDICTS = get_args(Verdict)


class ReportRow(Base):
    """The report of a job, as JSON; the key makes a second one impossible, and one of a job that has not succeeded."""

    __tablename__ = "reports"
    __table_args__ = (
        CheckConstraint(one_of("verdict", VERDICTS), name="verdict"),
        UniqueConstraint("job_id", "attempt", name="uq_reports_job_id_attempt"),
        ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["jobs.report_job_id", "jobs.attempt"],
            name="fk_reports_job_id_attempt_jobs",
            deferrable=True,
            initially="DEFERRED",
        ),
    )

    job_id: Mapped[Id] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int]
    verdict: Mapped[Word]
    body: Mapped[Document]
    created_at: Mapped[Moment]
