"""Keys and sessions of a service that wants one of everybody."""

from __future__ import annotations

from service.keys import service as keys
from service.keys.cookies import COOKIE
from service.keys.service import MadeKey
from service.principal import COMMAND_LINE, DEFAULT_TENANT, Principal, Scope
from tests.support.front import Front

BY = Principal(DEFAULT_TENANT, COMMAND_LINE, "operator")


def new_key(front: Front, scope: Scope = "submit", *, tenant: str = DEFAULT_TENANT, name: str = "page") -> MadeKey:
    """A key that has no end."""
    pepper = keys.pepper_of(front.app.settings)
    with front.app.database.write() as session:
        return keys.create(session, pepper, BY, tenant_id=tenant, name=name, scope=scope, days=None)


def sign_in(front: Front, scope: Scope = "submit") -> str:
    """Sign in with a new key; returns the guard of the session's forms."""
    assert front.http.post("/sign-in", data={"key": new_key(front, scope).text}).status_code == 303
    return front.app.keyring.guard(front.http.cookies[COOKIE])
