"""Reports: one per succeeded quantize or evaluate job, written in the transaction that makes it succeed."""

from __future__ import annotations

from typing import get_args

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.contracts.report import Verdict
from service.tables.base import Base, Document, Id, Moment, Tenant, Word, of_own_tenant, one_of

VERDICTS = get_args(Verdict)
# Condition of the partial index; statements repeat it word for word.
IS_UNATTESTED = "attested_at IS NULL"


class ReportRow(Base):
    """The report of a job, as JSON; the key makes a second one impossible, and one of a job that has not succeeded."""

    __tablename__ = "reports"
    __table_args__ = (
        CheckConstraint(one_of("verdict", VERDICTS), name="verdict"),
        UniqueConstraint("job_id", "attempt", name="uq_reports_job_id_attempt"),
        of_own_tenant("reports", "job_id", "jobs"),
        ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["jobs.report_job_id", "jobs.attempt"],
            name="fk_reports_job_id_attempt_jobs",
            deferrable=True,
            initially="DEFERRED",
        ),
        Index(
            "ix_reports_unattested",
            "created_at",
            "job_id",
            sqlite_where=text(IS_UNATTESTED),
            postgresql_where=text(IS_UNATTESTED),
        ),
    )

    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    verdict: Mapped[Word]
    # Which model is returned where the planned one was too slow; null: no other was looked for, or older code wrote it.
    fallback: Mapped[Word | None]
    body: Mapped[Document]
    # What lists tell of it; null in rows that older code has written.
    outline: Mapped[Document | None]
    created_at: Mapped[Moment]
    # When its job was attested; null: not yet. Of an evaluation, which makes no model, nothing is: its own moment.
    attested_at: Mapped[Moment | None]
