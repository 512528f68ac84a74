"""Hand-overs: which results of a job go where, and how far that has come."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.api_keys import PEPPER_ID_LENGTH
from service.tables.base import Base, Id, Moment, Name, Tenant, Word, of_own_tenant, one_of

KINDS = ("put", "post")
CONDITIONS = ("pass", "success")
OPEN_STATES = ("waiting", "pending")
STATES = (*OPEN_STATES, "done", "skipped", "failed")
DETAIL_LENGTH = 255
# Conditions of the partial indexes; statements repeat them word for word.
IS_PENDING = "state = 'pending'"
IS_LEASED = "lease_until IS NOT NULL"
_IS_OPEN = one_of("state", OPEN_STATES)


class HandOver(Base):
    """One target of a job: the outbox, made due in the transaction that ends the job.

    ``attempts`` counts claims and is the fencing token. ``sealed`` are URL and headers, encrypted by a key that the
    database does not know; they are forgotten with the end. ``payload`` is what a POST carries, from the job's end on.
    """

    __tablename__ = "hand_overs"
    __table_args__ = (
        CheckConstraint(one_of("kind", KINDS), name="kind"),
        CheckConstraint(one_of("condition", CONDITIONS), name="condition"),
        CheckConstraint(one_of("state", STATES), name="state"),
        CheckConstraint("(kind = 'put') = (artifact IS NOT NULL)", name="put_alone_has_artifact"),
        CheckConstraint(f"({_IS_OPEN}) = (sealed IS NOT NULL)", name="open_alone_has_secret"),
        CheckConstraint(f"({_IS_OPEN}) = (finished_at IS NULL)", name="finished_has_time"),
        CheckConstraint(f"({IS_PENDING}) = (next_attempt_at IS NOT NULL)", name="pending_is_due"),
        CheckConstraint(f"{IS_PENDING} OR lease_until IS NULL", name="pending_alone_is_leased"),
        UniqueConstraint("tenant_id", "id"),
        of_own_tenant("hand_overs", "job_id", "jobs"),
        Index("ix_hand_overs_job_id_id", "job_id", "id"),
        Index(
            "ix_hand_overs_due",
            "next_attempt_at",
            "tenant_id",
            sqlite_where=text(IS_PENDING),
            postgresql_where=text(IS_PENDING),
        ),
        Index(
            "ix_hand_overs_leased",
            "lease_until",
            "tenant_id",
            sqlite_where=text(IS_LEASED),
            postgresql_where=text(IS_LEASED),
        ),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id]
    kind: Mapped[Word]
    artifact: Mapped[Word | None]
    condition: Mapped[Word]
    host: Mapped[str] = mapped_column(String(262))
    sealed: Mapped[str | None] = mapped_column(Text)
    pepper_id: Mapped[str] = mapped_column(String(PEPPER_ID_LENGTH))
    payload: Mapped[str | None] = mapped_column(Text)
    state: Mapped[Word]
    reason: Mapped[Word | None]
    detail: Mapped[Name | None]
    attempts: Mapped[int]
    next_attempt_at: Mapped[Moment | None]
    lease_until: Mapped[Moment | None]
    last_attempt_at: Mapped[Moment | None]
    last_status: Mapped[int | None]
    created_at: Mapped[Moment]
    finished_at: Mapped[Moment | None]
