"""Which service a client talks to, and by which key: what it was told, what the environment says, or the user's own."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from service.client.driving import Place
from service.client.errors import ServiceNotFoundError
from service.keys import local

SERVER_VARIABLE = "QUANTMILL_SERVER"
KEY_VARIABLE = "QUANTMILL_API_KEY"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def find_service(url: str | None = None, key: str | None = None) -> Place:
    """The service at ``url``; without one, that of QUANTMILL_SERVER; without that, what this user runs on this host.

    The key is the one given, else that of QUANTMILL_API_KEY, else the one that the user's own service has noted. A
    service that was found by its note takes the key of its note: that of the environment is for another.

    Raises:
        ServiceNotFoundError: nothing says which service is meant.
    """
    told = url or os.environ.get(SERVER_VARIABLE)
    address = (told or own_service()).rstrip("/")
    found = key or (os.environ.get(KEY_VARIABLE) if told else None) or local.key_for(address)
    return Place(
        address,
        # a proxy from the environment must not come between this host and itself
        trust_environment=urlsplit(address).hostname not in _LOOPBACK,
        headers={"Authorization": f"Bearer {found}"} if found else {},
    )


def own_service() -> str:
    """The address of the one service that this user runs on this host.

    Raises:
        ServiceNotFoundError: there is none, or there are several.
    """
    found = local.own_services()
    if len(found) == 1:
        return found[0]
    if found:
        raise ServiceNotFoundError(
            f"You run several services on this host: {', '.join(found)}.", hint=f"Say which by {SERVER_VARIABLE}."
        )
    raise ServiceNotFoundError(
        "No address of a service is given, and you run none on this host.",
        hint=f"Give the address, set {SERVER_VARIABLE}, or start one: quantmill up.",
    )
