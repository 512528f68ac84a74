"""Keys: get, create, rotate and revoke; of the own tenant, or of any tenant for operators.

None may do more than the asker may.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from sqlalchemy.orm import Session

from service import sealing
from service.deps import AppState
from service.idempotency.answers import Answer
from service.idempotency.requests import KeyedRequest
from service.idempotency.service import submit_once
from service.keys import repository, service
from service.keys.schemas import (
    KeyCreate,
    KeyMade,
    KeyNotFoundError,
    KeyOut,
    PepperMissingError,
    ScopeMissingError,
    TooManyKeysError,
)
from service.keys.scopes import seen_tenant
from service.keys.service import key_made, key_out, location, pepper_of
from service.pagination import Position
from service.principal import Principal, Scope
from service.quotas import repository as quotas
from service.tables import ApiKey

# Of one tenant, that are good: each is a secret that may leak.
MOST_KEYS = 100


class ApiKeyVault(sealing.Vault):
    """Keeps the text of a new key for as long as its answer is remembered."""

    purpose = b"quantmill new keys v1"
    about = "New keys are"
    unavailable = PepperMissingError


def list_keys(app: AppState, tenant_id: str) -> list[KeyOut]:
    """All keys of the tenant, the newest first; those that have ended, too."""
    with app.database.read() as session:
        rows, now = repository.list_all(session, tenant_id), repository.datetime_now(session)
    return [key_out(row, now) for row in rows]


def list_page(
    app: AppState, tenant_id: str | None, *, after: Position | None, limit: int
) -> tuple[list[KeyOut], Position | None]:
    """One page of keys of a tenant or of all, the newest first, and the position to go on from."""
    with app.database.read() as session:
        now = repository.datetime_now(session)
        rows, last = repository.list_page(session, tenant_id, after, limit)
    return [key_out(row, now) for row in rows], last


def get(app: AppState, by: Principal, key_id: str) -> KeyOut:
    """One key.

    Raises:
        KeyNotFoundError: the asker sees none of this id.
    """
    with app.database.read() as session:
        return key_out(_seen(session, by, key_id), repository.datetime_now(session))


def create(app: AppState, by: Principal, body: KeyCreate, key: str | None = None) -> Answer:
    """Make a key; the answer has its text, and is remembered with the text sealed.

    Raises:
        ScopeMissingError: it would do more than the asker may, or for another tenant.
        PepperMissingError: the hosts of this installation share no pepper, or another than when it was made.
        TooManyKeysError: the tenant has as many as it may.
    """
    _require(by, body.scope)
    tenant_id = seen_tenant(by, body.tenant) or by.tenant_id
    pepper, vault = pepper_of(app.settings), ApiKeyVault.of(app.settings)

    def work(_: None, session: Session) -> tuple[Answer, None]:
        _make_room(session, tenant_id)
        made = service.add(session, pepper, tenant_id=tenant_id, name=body.name, scope=body.scope, days=body.days)
        shown = key_made(made, repository.datetime_now(session))
        sealed = shown.model_copy(update={"key": vault.sealer.seal(made.row.id, made.text)})
        headers = {"Location": location(made.row.id), "Cache-Control": "no-store"}
        return Answer(201, sealed.model_dump(mode="json"), headers), None

    kept = submit_once(app, by, KeyedRequest.of("POST /v1/keys", key, body), None, work, tenant_id=tenant_id)
    try:
        text = vault.sealer.open(kept.body["id"], kept.body["key"])
    except sealing.SealBrokenError:
        raise PepperMissingError(
            f"Key {kept.body['id']} was created with a different QUANTMILL_KEY_PEPPER.",
            hint="Create a new key with POST /v1/keys.",
        ) from None
    return replace(kept, body={**kept.body, "key": text})


def rotate(app: AppState, by: Principal, key_id: str, *, grace_seconds: float) -> KeyMade:
    """A new key in place of one, which stays good for the grace.

    Raises:
        KeyNotFoundError: the asker sees no such key that is good.
        ScopeMissingError: it does more than the asker may.
        PepperMissingError: the hosts of this installation share no pepper.
        TooManyKeysError: both would be good, and the tenant has as many as it may.
    """
    pepper = pepper_of(app.settings)
    with app.database.write() as session:
        old = _own(session, by, key_id)
        if grace_seconds:
            _make_room(session, old.tenant_id)
        made = service.rotate(session, pepper, by, key_id, grace_seconds=grace_seconds)
        return key_made(made, repository.datetime_now(session))


def revoke(app: AppState, by: Principal, key_id: str) -> KeyOut:
    """End a key at once.

    Raises:
        KeyNotFoundError: the asker sees no such key that is good.
        ScopeMissingError: it does more than the asker may.
    """
    with app.database.write() as session:
        row = _own(session, by, key_id)
        service.revoke(session, by, key_id)
        session.refresh(row)
        return key_out(row, repository.datetime_now(session))


def _make_room(session: Session, tenant_id: str) -> None:
    quotas.hold(session, tenant_id)  # nobody else makes one meanwhile
    if repository.count_live(session, tenant_id) >= MOST_KEYS:
        raise TooManyKeysError(MOST_KEYS)


def _seen(session: Session, by: Principal, key_id: str) -> ApiKey:
    row = repository.get(session, seen_tenant(by, None), key_id)
    if row is None:
        raise KeyNotFoundError(key_id)
    return row


def _own(session: Session, by: Principal, key_id: str) -> ApiKey:
    """Let nobody touch a key of another tenant, or one that does more than they may."""
    row = _seen(session, by, key_id)
    _require(by, cast(Scope, row.scope))
    return row


def _require(by: Principal, scope: Scope) -> None:
    if not by.may(scope):
        raise ScopeMissingError(
            f"Creating or revoking a key of scope {scope!r} requires a key with at least this scope; this "
            f"key has scope {by.scope!r}.",
            hint="Use a key with a higher scope.",
        )
