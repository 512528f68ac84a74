"""Tables of tenants and keys, workers, the audit log, and idempotency keys."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Double, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from service.principal import PEPPER_ID_LENGTH, SCOPES
from service.tables.base import Base, Document, Id, Moment, Name, Owned, Sha256, Tenant, Word, one_of


class TenantRow(Base):
    """One tenant; made when it first needs a row. ``quota`` is a Quota without what the installation's default says.

    Whoever counts against a quota holds the row until the commit.
    """

    __tablename__ = "tenants"

    id: Mapped[Tenant] = mapped_column(primary_key=True)
    quota: Mapped[Document]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]


class TenantUsage(Base):
    """CPU time of a tenant's jobs in one day of UTC, ``YYYY-MM-DD``."""

    __tablename__ = "tenant_usage"

    tenant_id: Mapped[Tenant] = mapped_column(primary_key=True)
    day: Mapped[Word] = mapped_column(primary_key=True)
    cpu_seconds: Mapped[float] = mapped_column(Double)


class DeletedJob(Owned):
    """A quantize or evaluate job that was deleted within a day of its submission: it counts as submitted until then."""

    __tablename__ = "deleted_jobs"
    __table_args__ = (Index("ix_deleted_jobs_tenant_id_created_at", "tenant_id", "created_at"),)

    job_id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    created_at: Mapped[Moment]


class ApiKey(Base):
    """One key. ``secret_hash`` is the HMAC-SHA256 of its secret by the installation's pepper, whose id is beside it."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint(one_of("scope", SCOPES), name="scope"),
        Index("ix_api_keys_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    name: Mapped[Name]
    scope: Mapped[Word]
    secret_hash: Mapped[Sha256]
    pepper_id: Mapped[str] = mapped_column(String(PEPPER_ID_LENGTH))
    # The secret's last characters, by which people tell keys apart.
    last4: Mapped[str] = mapped_column(String(4))
    created_at: Mapped[Moment]
    expires_at: Mapped[Moment | None]
    last_used_at: Mapped[Moment | None]
    revoked_at: Mapped[Moment | None]


class Worker(Base):
    """One worker process, by queue that it takes jobs of: a row each.

    ``deaf_since`` is set while no message reaches it although jobs wait.
    """

    __tablename__ = "workers"

    id: Mapped[Name] = mapped_column(primary_key=True)
    queue: Mapped[Name] = mapped_column(primary_key=True)
    slots: Mapped[int] = mapped_column(server_default=text("1"))
    # Of these, those that are kept for short jobs.
    short_slots: Mapped[int] = mapped_column(server_default=text("0"))
    seen_at: Mapped[Moment]
    deaf_since: Mapped[Moment | None]


class LeaseRound(Base):
    """When a reconciler, whichever, has last looked for leases that ran out: a row for all of them.

    ``spared_at`` is when leases were last made good again for an absence that nobody saw, until they had the time to
    end after it.
    """

    __tablename__ = "lease_rounds"

    name: Mapped[Word] = mapped_column(primary_key=True)
    served_at: Mapped[Moment]
    spared_at: Mapped[Moment | None]


ROUTE_LENGTH = 64


class IdempotencyKey(Owned):
    """A key is unique per tenant and route; ``status`` and ``body`` are replayed to an equal request."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("ix_idempotency_keys_created_at", "created_at"),)

    tenant_id: Mapped[Tenant] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(String(ROUTE_LENGTH), primary_key=True)
    key: Mapped[Name] = mapped_column(primary_key=True)
    # Of what was sent, null in rows that older code has written; and of what it meant, with its defaults.
    sent_sha256: Mapped[Sha256 | None]
    request_sha256: Mapped[Sha256]
    status: Mapped[int]
    headers: Mapped[Document]
    body: Mapped[Document]
    created_at: Mapped[Moment]


class NewAuditEvent(Base):
    """One deed, written in the transaction that did it; soon an AuditEvent."""

    __tablename__ = "new_audit_events"

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    actor: Mapped[Name]
    action: Mapped[Name]
    object: Mapped[Name]
    request_id: Mapped[Name]
    address: Mapped[Name]
    at: Mapped[Moment]
    changes: Mapped[str | None] = mapped_column(Text)


class AuditEvent(Base):
    """One deed in the chain. ``hash`` covers all other columns and the hash before.

    A deed leaves its row unchained, so that no request waits for another one's; rows are chained once they are
    committed.
    """

    __tablename__ = "audit_events"
    __table_args__ = (Index("ix_audit_events_tenant_id_seq", "tenant_id", "seq"),)

    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    tenant_id: Mapped[Tenant]
    actor: Mapped[Name]
    action: Mapped[Name]
    object: Mapped[Name]
    request_id: Mapped[Name]
    address: Mapped[Name]
    at: Mapped[Moment]
    previous_hash: Mapped[Sha256]
    hash: Mapped[Sha256]
    changes: Mapped[str | None] = mapped_column(Text)


class AuditHead(Base):
    """Where the chain ends, and where it begins: the row that whoever appends or forgets holds until the commit.

    ``first_seq`` and ``first_hash`` are those of the newest row that was forgotten for its age; null: none was.
    """

    __tablename__ = "audit_heads"
    __table_args__ = (CheckConstraint("name = 'audit'", name="one"),)

    name: Mapped[Word] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[Sha256]
    first_seq: Mapped[int | None] = mapped_column(BigInteger)
    first_hash: Mapped[Sha256 | None]
