"""What a request needs: by its route, as data. What is not named here reads or submits, by its method."""

from __future__ import annotations

from service.principal import Scope

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
# Routes that need another scope than their method says; admins alone see what concerns all tenants.
_NEEDED: dict[tuple[str, str], Scope] = {
    ("POST", "/v1/jobs:validate"): "read",
    ("DELETE", "/v1/quarantine/{digest}"): "manage",
    ("GET", "/v1/audit"): "admin",
    ("GET", "/v1/tenants/{tenant}"): "admin",
    ("PUT", "/v1/tenants/{tenant}/quota"): "admin",
}


def needed(method: str, path: str) -> Scope:
    """The scope that a request to the route ``path`` needs."""
    return _NEEDED.get((method, path)) or ("read" if method in _READING else "submit")
