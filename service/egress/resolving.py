"""Resolves host names and checks all their addresses; checks URLs given by clients. Loads no network stack."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from service.egress.addresses import Address, Allowed
from service.egress.errors import AddressNotAllowedError, EgressError, HostUnresolvedError
from service.egress.urls import MOST_CHARACTERS, Destination, check_url

# Of a host and the seconds there are: every address of it, as text.
Resolver = Callable[[str, float], Sequence[str]]
# A name with more is not looked at: each would be judged and perhaps tried.
MOST_ADDRESSES = 32
_THREADS = 4
# The system's resolver takes no deadline: a name that hangs keeps a thread of these, and nobody else.
_POOL = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")


def system_resolver(host: str, seconds: float) -> Sequence[str]:
    """Every address of ``host``, as the system resolves it.

    Raises:
        OSError: it has none, or did not say so in time (TimeoutError).
    """
    asked = _POOL.submit(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    found = asked.result(timeout=max(0.0, seconds))
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def checked_addresses(
    destination: Destination, allowed: Allowed, resolver: Resolver, seconds: float
) -> tuple[Address, ...]:
    """All addresses of a destination, if every one of them may be connected to.

    One that may not refuses them all: a name that answers with a public and a private address is meant to deceive.

    Raises:
        HostUnresolvedError: there is none.
        AddressNotAllowedError: one of them may not.
    """
    literal = destination.literal
    addresses = (literal,) if literal is not None else _resolved(destination.host, resolver, seconds)
    for address in addresses:
        if not allowed.reaches(destination.host, address):
            # which address it is stays untold: whoever gives URLs learns nothing of the names in our network
            raise AddressNotAllowedError(
                f"The host {destination.host} has an address that is not on the public internet.",
                hint="Use a host on the public internet. An operator can allow this host with the setting "
                "QUANTMILL_EGRESS_ALLOWED=https://HOST:PORT.",
                host=destination.host,
            )
    return addresses


def _resolved(host: str, resolver: Resolver, seconds: float) -> tuple[Address, ...]:
    try:
        told = resolver(host, seconds)
        addresses = tuple(ipaddress.ip_address(text) for text in told)
    except (OSError, UnicodeError, ValueError):
        addresses = ()
    if not 0 < len(addresses) <= MOST_ADDRESSES:
        raise HostUnresolvedError(
            f"The host name {host} has no address, or more than {MOST_ADDRESSES}.",
            hint="Check the host name.",
            host=host,
        )
    return addresses


# A URL judged when a client names it: sending judges it again, but whoever is told at once need not wait for that.


def refuse_destination(
    url: str,
    allowed: Allowed,
    resolver: Resolver | None,
    seconds: float,
    *,
    pointer: str,
    most_characters: int = MOST_CHARACTERS,
) -> Destination:
    """Let nobody name a URL that nothing is sent to, as far as it can be told now.

    Args:
        url: as it was given.
        allowed: what may be reached beyond the public internet.
        resolver: tells a name's addresses; None: addresses alone are judged, not names.
        seconds: for the resolver.
        pointer: where the URL stands in the request.
        most_characters: of the URL.

    Returns:
        The URL taken apart. A name that has no address now may have one once something is sent.

    Raises:
        EgressError: of its form, or of an address of its host; carries the pointer.
    """
    try:
        destination = check_url(url, allowed, most_characters=most_characters)
        if resolver is None and destination.literal is None:
            return destination
        try:
            checked_addresses(destination, allowed, resolver or _nobody, seconds)
        except HostUnresolvedError:
            return destination
    except EgressError as error:
        raise type(error)(error.detail, hint=error.hint, pointer=pointer, **error.where) from None
    return destination


def _nobody(_host: str, _seconds: float) -> list[str]:
    return []
