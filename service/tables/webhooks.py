"""Tables of outgoing data: webhook events and hand-overs."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.principal import PEPPER_ID_LENGTH
from service.tables.base import (
    Document,
    Id,
    Moment,
    Name,
    Owned,
    Tenant,
    TraceContext,
    Word,
    of_own_tenant,
    one_of,
    partial_index,
)

EXCERPT_LENGTH = 1024
SEALED_LENGTH = 255
DISABLED_REASONS = ("gone", "failing", "client")
DELIVERY_STATES = ("waiting", "delivered", "failed")
# Conditions of the partial indexes; statements repeat them word for word.
IS_WAITING = "state = 'waiting'"
IS_LEASED = "lease_until IS NOT NULL"


class WebhookEndpoint(Owned):
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


class WebhookDelivery(Owned):
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
        partial_index("ix_webhook_deliveries_waiting", "endpoint_id", "next_attempt_at", where=IS_WAITING),
        partial_index("ix_webhook_deliveries_due", "next_attempt_at", "endpoint_id", "tenant_id", where=IS_WAITING),
        partial_index("ix_webhook_deliveries_leased", "lease_until", "endpoint_id", where=IS_LEASED),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    endpoint_id: Mapped[Id]
    event_id: Mapped[Id]
    type: Mapped[Word]
    # Exactly what is signed and sent.
    payload: Mapped[str] = mapped_column(Text)
    # Of what it tells of.
    trace_context: Mapped[TraceContext | None]
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


KINDS = ("put", "post")
CONDITIONS = ("pass", "success")
OPEN_STATES = ("waiting", "pending")
STATES = (*OPEN_STATES, "done", "skipped", "failed")
DETAIL_LENGTH = 255
# Conditions of the partial indexes; statements repeat them word for word.
IS_PENDING = "state = 'pending'"
_IS_OPEN = one_of("state", OPEN_STATES)


class HandOver(Owned):
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
        partial_index("ix_hand_overs_due", "next_attempt_at", "tenant_id", where=IS_PENDING),
        partial_index("ix_hand_overs_leased", "lease_until", "tenant_id", where=IS_LEASED),
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
    # Of the end of its job.
    trace_context: Mapped[TraceContext | None]
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
