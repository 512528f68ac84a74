"""Attestations of jobs, and the keys of the installation that sign them."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.api_keys import PEPPER_ID_LENGTH
from service.tables.base import Base, Id, Moment, Tenant, Word, of_own_tenant

# Conditions of the partial index; statements repeat it word for word.
IS_CURRENT = "retired_at IS NULL"
SIGNING_KEY = "ed25519"


class SigningKeyRow(Base):
    """A key by which the installation signs. The secret half is there encrypted alone, as secrets of webhooks are.

    One is current; those that were retired stay, so that what they signed can be verified.
    """

    __tablename__ = "signing_keys"
    __table_args__ = (
        CheckConstraint(f"algorithm = '{SIGNING_KEY}'", name="algorithm"),
        Index(
            "uq_signing_keys_current",
            "algorithm",
            unique=True,
            sqlite_where=text(IS_CURRENT),
            postgresql_where=text(IS_CURRENT),
        ),
    )

    id: Mapped[Word] = mapped_column(primary_key=True)
    algorithm: Mapped[Word]
    # 32 bytes in base64.
    public_key: Mapped[str] = mapped_column(String(64))
    sealed: Mapped[str] = mapped_column(String(255))
    pepper_id: Mapped[str] = mapped_column(String(PEPPER_ID_LENGTH))
    created_at: Mapped[Moment]
    retired_at: Mapped[Moment | None]


class Attestation(Base):
    """What was signed of a job that succeeded: a DSSE envelope as one line of JSON. It is written once."""

    __tablename__ = "attestations"
    __table_args__ = (of_own_tenant("attestations", "job_id", "jobs"),)

    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    key_id: Mapped[Word]
    envelope: Mapped[str] = mapped_column(Text)
    created_at: Mapped[Moment]
