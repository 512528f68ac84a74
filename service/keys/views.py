"""What keys look like from outside."""

from __future__ import annotations

from datetime import datetime

from service.keys.schemas import KeyMade, KeyOut, KeyState
from service.keys.service import MadeKey
from service.tables import ApiKey


def location(key_id: str) -> str:
    """Where the key is told of."""
    return f"/v1/keys/{key_id}"


def key_out(row: ApiKey, now: datetime) -> KeyOut:
    """The key as it is shown."""
    return KeyOut(
        id=row.id,
        tenant=row.tenant_id,
        name=row.name,
        scope=row.scope,
        state=_state(row, now),
        last4=row.last4,
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )


def key_made(made: MadeKey, now: datetime) -> KeyMade:
    """The same with its text."""
    return KeyMade(**dict(key_out(made.row, now)), key=made.text)


def _state(row: ApiKey, now: datetime) -> KeyState:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "good"
