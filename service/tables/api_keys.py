"""Keys of tenants: who may ask. The secret itself is nowhere, only what it can be checked against."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.principal import SCOPES
from service.tables.base import Base, Id, Moment, Name, Sha256, Tenant, Word, one_of

PEPPER_ID_LENGTH = 16


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
