"""A URL judged when a client names it: sending judges it again, but whoever is told at once need not wait for that."""

from __future__ import annotations

from service.egress.allowed import Allowed
from service.egress.errors import EgressError, HostUnresolvedError
from service.egress.resolving import Resolver, checked_addresses
from service.egress.urls import MOST_CHARACTERS, Destination, check_url


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
