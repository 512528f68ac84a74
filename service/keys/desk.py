"""Keys of the asker's own tenant, at the desk: seen, made, replaced, ended. None may do more than the asker may."""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from sqlalchemy.orm import Session

from service.deps import Desk
from service.keys import repository, service
from service.keys.errors import KeyNotFoundError, ScopeMissingError
from service.keys.schemas import KeyCreate
from service.keys.service import MadeKey, pepper_of
from service.principal import Principal, Scope
from service.tables import ApiKey

KeyState = Literal["good", "expired", "revoked"]


class SeenKey(NamedTuple):
    """A key, and whether it is good at this moment."""

    row: ApiKey
    state: KeyState


def list_keys(desk: Desk, tenant_id: str) -> list[SeenKey]:
    """All keys of the tenant, the newest first; those that have ended, too."""
    with desk.database.read() as session:
        rows, now = repository.list_all(session, tenant_id), repository.datetime_now(session)
    found: list[SeenKey] = []
    for row in rows:
        expired = row.expires_at is not None and row.expires_at <= now
        found.append(SeenKey(row, "revoked" if row.revoked_at is not None else "expired" if expired else "good"))
    return found


def create(desk: Desk, by: Principal, body: KeyCreate) -> MadeKey:
    """Make a key of the asker's tenant.

    Raises:
        ScopeMissingError: it would do more than the asker may.
        PepperMissingError: the hosts of this installation share no pepper.
    """
    _require(by, body.scope)
    pepper = pepper_of(desk.settings)
    with desk.database.write() as session:
        return service.create(
            session, pepper, by, tenant_id=by.tenant_id, name=body.name, scope=body.scope, days=body.days
        )


def rotate(desk: Desk, by: Principal, key_id: str, *, grace_seconds: float) -> MadeKey:
    """A new key in place of one of the tenant's, which stays good for the grace.

    Raises:
        KeyNotFoundError: the tenant has no such key that is good.
        ScopeMissingError: it does more than the asker may.
        PepperMissingError: the hosts of this installation share no pepper.
    """
    pepper = pepper_of(desk.settings)
    with desk.database.write() as session:
        _own(session, by, key_id)
        return service.rotate(session, pepper, by, key_id, grace_seconds=grace_seconds)


def revoke(desk: Desk, by: Principal, key_id: str) -> None:
    """End a key of the tenant at once.

    Raises:
        KeyNotFoundError: the tenant has no such key that is good.
        ScopeMissingError: it does more than the asker may.
    """
    with desk.database.write() as session:
        _own(session, by, key_id)
        service.revoke(session, by, key_id)


def _own(session: Session, by: Principal, key_id: str) -> None:
    """Let nobody touch a key of another tenant, or one that does more than they may."""
    row = repository.of_tenant(session, by.tenant_id, key_id)
    if row is None:
        raise KeyNotFoundError(f"There is no key {key_id!r}.", hint="The list of keys shows those that there are.")
    _require(by, cast(Scope, row.scope))


def _require(by: Principal, scope: Scope) -> None:
    if not by.may(scope):
        raise ScopeMissingError(
            f"A key of scope {scope!r} takes one of the same scope to make or end, and this one has {by.scope!r}.",
            hint="Use another key.",
        )
