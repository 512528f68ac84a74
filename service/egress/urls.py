"""Checks the form of URLs given by clients, before any name is resolved.

One parser takes a URL apart here, and the request is put together of its parts: what was judged is what is asked.
Forms in which others have written an address so that a check did not see it (decimal, octal, hexadecimal, fewer than
four numbers, full-width digits, dots of other scripts) are no hosts. Source: WHATWG URL, "ends in a number checker".
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import idna

from service.egress.addresses import HTTPS_PORTS, Address, Allowed
from service.egress.errors import UrlNotAllowedError

MOST_CHARACTERS = 2048
_DEFAULT_PORTS = {"https": 443, "http": 80}
# What may stand in a path and a query (RFC 3986); all else comes percent-encoded.
_TARGET = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")
# Some parsers drop these, others do not.
# What is surely no secret; a URL may hold a password or a signature.
_TELLABLE = re.compile(r"[\w.:/-]{1,60}")
_UNSEEN = re.compile(r"[\x00-\x20\x7f]")
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@%\\]+)(:[0-9]{1,5})?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")


@dataclass(frozen=True)
class Destination:
    """Where a request goes."""

    scheme: str  # ``https``, or ``http`` where that is allowed
    host: str  # in ASCII and lower case, without brackets
    port: int  # always a number
    target: str  # path and query

    @property
    def literal(self) -> Address | None:
        """The address, if the host is one."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        """As it stands in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def check_url(url: str, allowed: Allowed | None = None, *, most_characters: int = MOST_CHARACTERS) -> Destination:
    """Take a URL apart, if the service may call it as far as its form tells.

    Raises:
        UrlNotAllowedError: it may not; ``where`` names the part.
    """
    allowed = allowed or Allowed()
    if len(url) > most_characters:
        raise _refused("url", f"The URL has more than {most_characters} characters.")
    if _UNSEEN.search(url):
        raise _refused("url", "The URL contains a space or a control character.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused("url", "The URL is not valid.") from None
    if parts.scheme not in _DEFAULT_PORTS:
        told = repr(url) if _TELLABLE.fullmatch(url) else "This"
        raise _refused(
            "scheme",
            "Only https URLs are allowed."
            if "://" in url
            else f"{told} is not a URL: a URL starts with https://, such as https://example.com/hook.",
        )
    if not parts.netloc:
        raise _refused("host", "The URL has no host.")
    if not _AUTHORITY.fullmatch(parts.netloc):
        raise _refused("authority", "The host must not contain a user, a password or escapes.")
    host = _host(parts.hostname or "")
    chosen = _DEFAULT_PORTS[parts.scheme] if port is None else port
    if not allowed.takes(parts.scheme, host, chosen):
        if parts.scheme == "http":
            raise _refused("scheme", "Only https URLs are allowed.")
        ports = " and ".join(map(str, sorted(HTTPS_PORTS)))
        raise _refused("port", f"Only the ports {ports} are allowed.")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _TARGET.fullmatch(target):
        raise _refused("path", "The path or the query contains a character that must be percent-encoded.")
    return Destination(parts.scheme, host, chosen, target)


def _host(given: str) -> str:
    """The host in ASCII.

    Raises:
        UrlNotAllowedError: it is none, or written so that others may take it for another.
    """
    if ":" in given:
        try:
            return str(ipaddress.IPv6Address(given))
        except ValueError:
            raise _refused("host", "The host is not a valid IPv6 address.") from None
    try:
        name = idna.encode(given, uts46=True, std3_rules=True).decode("ascii").casefold().removesuffix(".")
    except idna.IDNAError:
        raise _refused("host", "The host name is not valid.") from None
    if not _NUMBER.fullmatch(name.rpartition(".")[2]):
        return name
    try:
        return str(ipaddress.IPv4Address(name))
    except ValueError:
        raise _refused("host", "The IPv4 address must have four decimal numbers without leading zeros.") from None


def _refused(part: str, detail: str) -> UrlNotAllowedError:
    return UrlNotAllowedError(
        detail,
        hint="Give an https URL of a host on the public internet. An operator can allow another host with "
        "the setting QUANTMILL_EGRESS_ALLOWED=http://HOST:PORT.",
        part=part,
    )
