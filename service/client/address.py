"""Which service a client talks to, and by which key: what it was told, what the environment says, or the user's own."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from service.client.driving import Place
from service.client.errors import ServiceNotFoundError
from service.contracts.command_errors import InvalidServerError
from service.keys import local

SERVER_VARIABLE = "QUANTMILL_SERVER"
KEY_VARIABLE = "QUANTMILL_API_KEY"
# User and password of an address, which are not told again.
_USER = re.compile(r"//[^/@]*@")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def find_service(url: str | None = None, key: str | None = None) -> Place:
    """The service at ``url``; without one, that of QUANTMILL_SERVER; without that, what this user runs on this host.

    The key is the one given, else that of QUANTMILL_API_KEY, else the one that the user's own service has noted. A
    service that was found by its note takes the key of its note: that of the environment is for another.

    Raises:
        InvalidServerError: what was told is no address.
        ServiceNotFoundError: nothing says which service is meant.
    """
    told = url or os.environ.get(SERVER_VARIABLE)
    address = checked_address(told or own_service())
    found = key or (os.environ.get(KEY_VARIABLE) if told else None) or local.key_for(address)
    return Place(
        address,
        # a proxy from the environment must not come between this host and itself
        trust_environment=urlsplit(address).hostname not in _LOOPBACK,
        headers={"Authorization": f"Bearer {found}"} if found else {},
    )


def checked_address(server: str) -> str:
    """The address of a service without a trailing slash.

    Raises:
        InvalidServerError: it is no http or https URL.
    """
    address = server.strip()
    shown = _USER.sub("//***@", address)
    hint = "An address looks like http://127.0.0.1:8000."
    if "://" not in address:
        raise InvalidServerError(
            f"{shown!r} does not start with http:// or https://.", hint=f"Did you mean http://{shown}?"
        )
    try:
        parts = urlsplit(address)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half a bracket
        raise InvalidServerError(f"{shown!r} is not an address.", hint=hint) from None
    if not usable:
        raise InvalidServerError(f"{shown!r} is not the http or https address of a host.", hint=hint)
    return address.rstrip("/")


def own_service() -> str:
    """The address of the one service that this user runs on this host; of several, of the one that was started here.

    Raises:
        ServiceNotFoundError: there is none, or there are several, and none or more than one was started here.
    """
    found = local.own_services()
    here = [address for address, folder in found.items() if folder is not None and folder.parent == Path.cwd()]
    for addresses in (list(found), here):
        if len(addresses) == 1:
            return addresses[0]
    if found:
        told = ", ".join(f"{address} ({folder})" for address, folder in found.items())
        raise ServiceNotFoundError(
            f"You run several services on this host: {told}.",
            hint=f"Say which by {SERVER_VARIABLE}, or be in the folder where it was started.",
        )
    raise ServiceNotFoundError(
        "No address of a service is given, and you run none on this host.",
        hint=f"Give the address, set {SERVER_VARIABLE}, or start one: quantmill up.",
    )
