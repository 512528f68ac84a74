"""Keys: create, list, revoke, rotate; and their views."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from service.audit.service import note
from service.keys import repository
from service.keys.files import PEPPER_FILE, own_secret
from service.keys.schemas import KeyMade, KeyNotFoundError, KeyOut, KeyState, PepperMissingError
from service.keys.secrets import hash_of, make_key, pepper_id
from service.principal import Principal, Scope
from service.settings import Settings
from service.tables import ApiKey
from service.tables.base import record_of


@dataclass(frozen=True)
class MadeKey:
    """A new key; ``text`` is shown once and kept nowhere."""

    row: ApiKey
    text: str = field(repr=False)


def pepper_of(settings: Settings) -> str:
    """The pepper of this installation; one on a single host makes its own.

    Raises:
        PepperMissingError: hosts that share a database need one that they share.
    """
    if settings.key_pepper is not None:
        return settings.key_pepper.get_secret_value()
    if not settings.embedded_database:
        raise PepperMissingError(
            "Keys in a database that several hosts use require a pepper that is the same on each host.",
            hint="Set QUANTMILL_KEY_PEPPER to the same random text on every host: openssl rand -hex 32.",
        )
    settings.make_folders()
    return own_secret(settings.data_dir / PEPPER_FILE)


def create(
    session: Session, pepper: str, by: Principal, *, tenant_id: str, name: str, scope: Scope, days: float | None
) -> MadeKey:
    """Make a key of a tenant.

    Args:
        session: writes.
        pepper: see ``pepper_of``.
        by: who does it.
        tenant_id: whose resources the key sees.
        name: what people call it.
        scope: the highest of what it may do.
        days: until it expires; None: never.
    """
    made = add(session, pepper, tenant_id=tenant_id, name=name, scope=scope, days=days)
    note(session, by, "key.create", made.row.id, tenant_id=tenant_id)
    return made


def add(session: Session, pepper: str, *, tenant_id: str, name: str, scope: Scope, days: float | None) -> MadeKey:
    """As ``create``, for whoever notes it in the audit."""
    made = make_key()
    now = repository.datetime_now(session)
    row = ApiKey(
        id=made.id,
        tenant_id=tenant_id,
        name=name,
        scope=scope,
        secret_hash=hash_of(made.secret, pepper),
        pepper_id=pepper_id(pepper),
        last4=made.secret[-4:],
        created_at=now,
        expires_at=None if days is None else now + timedelta(days=days),
    )
    repository.add(session, row)
    return MadeKey(row, made.text)


def revoke(session: Session, by: Principal, key_id: str) -> None:
    """End a key at once.

    Raises:
        KeyNotFoundError: there is none of this id that is good.
    """
    tenant_id = repository.revoke(session, key_id)
    if tenant_id is None:
        raise KeyNotFoundError(key_id, good=True)
    note(session, by, "key.revoke", key_id, tenant_id=tenant_id)


def rotate(session: Session, pepper: str, by: Principal, key_id: str, *, grace_seconds: float) -> MadeKey:
    """A new key in place of one, which stays good for some time: its users are given the new one meanwhile.

    Raises:
        KeyNotFoundError: there is none of this id that is good.
    """
    old = repository.live(session, key_id)
    if old is None or not repository.revoke(session, key_id, after_seconds=grace_seconds):
        raise KeyNotFoundError(key_id, good=True)
    days = None if old.expires_at is None else (old.expires_at - old.created_at) / timedelta(days=1)
    scope: Scope = old.scope  # type: ignore[assignment] # the table allows no other
    made = add(session, pepper, tenant_id=old.tenant_id, name=old.name, scope=scope, days=days)
    note(session, by, "key.rotate", f"{key_id}@{made.row.id}", tenant_id=old.tenant_id)
    return made


# What keys look like from outside.


def location(key_id: str) -> str:
    """Where the key is told of."""
    return f"/v1/keys/{key_id}"


def key_out(row: ApiKey, now: datetime) -> KeyOut:
    """The key as it is shown."""
    return record_of(row, KeyOut, tenant=row.tenant_id, state=_state(row, now))


def key_made(made: MadeKey, now: datetime) -> KeyMade:
    """The same with its text."""
    return KeyMade(**dict(key_out(made.row, now)), key=made.text)


def _state(row: ApiKey, now: datetime) -> KeyState:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "good"
