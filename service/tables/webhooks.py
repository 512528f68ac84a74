"""Webhooks: where a tenant wants to be told of events, and what was, or is to be, told there."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.api_keys import PEPPER_ID_LENGTH
from service.tables.base import Base, Document, Id, Moment, Name, Tenant, Word, of_own_tenant, one_of

EXCERPT_LENGTH = 1024
SEALED_LENGTH = 255
DISABLED_REASONS = ("gone", "failing", "client")
DELIVERY_STATES = ("waiting", "delivered", "failed")
# Conditions of the partial indexes; statements repeat them word for word.
IS_WAITING = "state = 'waiting'"
IS_LEASED = "lease_until IS NOT NULL"


class WebhookEndpoint(Base):
    """A URL of a tenant's. Its secrets are there encrypted alone, by a key that the database does not know.

    ``previous_sealed`` is the secret before the last rotation, which signs beside the new one until
    ``previous_ends_at``. ``failing_since`` is the first failure since the last success.
    """

    __tablename__ = "webhook_endpoints"
    __table_args__ = (
        CheckConstraint(one_of("disabled_reason", DISABLED_REASONS), name="disabled_reason"),
        CheckConstraint("enabled = (disabled_reason IS NULL)", name="disabled_has_reason"),
        CheckConstraint("enabled = (disabled_at IS NULL)", name="disabled_has_time"),
        CheckConstraint("(previous_sealed IS NULL) = (previous_ends_at IS NULL)", name="previous_ends"),
        UniqueConstraint("tenant_id", "id"),
        Index("ix_webhook_endpoints_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    url: Mapped[str] = mapped_column(Text)
    event_types: Mapped[Document]
    description: Mapped[Name | None]
    enabled: Mapped[bool]
    disabled_reason: Mapped[Word | None]
    disabled_at: Mapped[Moment | None]
    failing_since: Mapped[Moment | None]
    # Events that were not kept for it, because as many were waiting as may.
    dropped_events: Mapped[int]
    sealed: Mapped[str] = mapped_column(String(SEALED_LENGTH))
    previous_sealed: Mapped[str | None] = mapped_column(String(SEALED_LENGTH))
    previous_ends_at: Mapped[Moment | None]
    pepper_id: Mapped[str] = mapped_column(String(PEPPER_ID_LENGTH))
    row_version: Mapped[int]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]


class WebhookDelivery(Base):
    """One event for one endpoint: the outbox, written in the transaction that the event tells of.

    ``attempts`` counts claims and is the fencing token. A waiting delivery without ``next_attempt_at`` is held until
    its endpoint is enabled again.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        CheckConstraint(one_of("state", DELIVERY_STATES), name="state"),
        CheckConstraint("(state = 'waiting') = (finished_at IS NULL)", name="finished_has_time"),
        CheckConstraint(
            "state = 'waiting' OR (lease_until IS NULL AND next_attempt_at IS NULL)", name="finished_rests"
        ),
        UniqueConstraint("tenant_id", "id"),
        UniqueConstraint("endpoint_id", "event_id"),
        of_own_tenant("webhook_deliveries", "endpoint_id", "webhook_endpoints"),
        Index("ix_webhook_deliveries_endpoint_id_created_at_id", "endpoint_id", "created_at", "id"),
        Index("ix_webhook_deliveries_created_at", "created_at"),
        Index(
            "ix_webhook_deliveries_waiting",
            "endpoint_id",
            "next_attempt_at",
            sqlite_where=text(IS_WAITING),
            postgresql_where=text(IS_WAITING),
        ),
        Index(
            "ix_webhook_deliveries_due",
            "next_attempt_at",
            "endpoint_id",
            "tenant_id",
            sqlite_where=text(IS_WAITING),
            postgresql_where=text(IS_WAITING),
        ),
        Index(
            "ix_webhook_deliveries_leased",
            "lease_until",
            "endpoint_id",
            sqlite_where=text(IS_LEASED),
            postgresql_where=text(IS_LEASED),
        ),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    endpoint_id: Mapped[Id]
    event_id: Mapped[Id]
    type: Mapped[Word]
    # Exactly what is signed and sent.
    payload: Mapped[str] = mapped_column(Text)
    state: Mapped[Word]
    attempts: Mapped[int]
    next_attempt_at: Mapped[Moment | None]
    lease_until: Mapped[Moment | None]
    last_attempt_at: Mapped[Moment | None]
    last_status: Mapped[int | None]
    last_error: Mapped[Name | None]
    response_excerpt: Mapped[str | None] = mapped_column(String(EXCERPT_LENGTH))
    created_at: Mapped[Moment]
    finished_at: Mapped[Moment | None]
