"""Addresses on the public internet, and others that an operator allows (``QUANTMILL_EGRESS_ALLOWED``).

``ipaddress``'s ``is_global`` is not enough: it is true for multicast, for the relays of 6to4, for site-local addresses,
and, depending on the version of Python (CVE-2024-4032), for addresses that carry a private IPv4 address in them: mapped
(::ffff:10.0.0.1), compatible (::10.0.0.1), 6to4 (2002::/16), NAT64 (64:ff9b::/96). Here IPv6 is public only within
the block that is given out for it, 2000::/3, where nothing of the kind lies but what is listed.

Sources: IANA's registries of special-purpose IPv4 and IPv6 addresses (RFC 6890, RFC 8190), RFC 6598 (shared address
space of carriers), RFC 3056 and 7526 (6to4), RFC 6052 (NAT64), RFC 9637 (documentation), RFC 4291 (multicast, mapped).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NOT_PUBLIC_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by a carrier's customers (CGNAT)
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, where clouds serve their credentials
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, AMT, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address in another coat
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
# Never meant by the name of a host, even of one that a setting allows; a network that a setting names may hold them.
_NO_HOSTS: tuple[Network, ...] = (
    *(ipaddress.IPv4Network(text) for text in ("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")),
    *(ipaddress.IPv6Network(text) for text in ("::/128", "fe80::/10", "fec0::/10", "ff00::/8")),
)


def is_public(address: Address) -> bool:
    """True if the address belongs to a host on the public internet, and carries no other address within it."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not _within(address, _NOT_PUBLIC_V4)
    return address in _PUBLIC_V6 and not _within(address, _NOT_PUBLIC_V6)


def may_be_a_host(address: Address) -> bool:
    """False for what no allowed host is: this network, link-local, multicast, reserved, also as a mapped address."""
    carried = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return not _within(carried or address, _NO_HOSTS)


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


# What an operator allows beyond the public internet (``QUANTMILL_EGRESS_ALLOWED``).
#
# Entries, by commas:
#
# - a network, ``10.1.0.0/16``, or one address: hosts with addresses in it are reached, by https;
# - a host, ``hooks.corp.example`` or ``hooks.corp.example:9443``: it is reached by https whatever its addresses are,
# and
#   on this port, too;
# - ``http://hooks.corp.example:8080``: as a host, and by plain http on exactly this port (80 where none is given).

# What https is served on; others only where a setting says so.
HTTPS_PORTS = frozenset({443, 8443})
_HOST = re.compile(
    r"(?P<plain>http://)?(?P<host>[a-z0-9_.-]{1,253}|\[[0-9a-f:.]+\])(:(?P<port>\d{1,5}))?", re.IGNORECASE
)
_PORT_MAX = 65535


@dataclass(frozen=True)
class Allowed:
    """The allow-list, taken apart."""

    networks: tuple[Network, ...] = ()  # their addresses are reached
    hosts: frozenset[str] = frozenset()  # lower-case names whose addresses are reached
    ports: frozenset[tuple[str, int]] = frozenset()  # host and port that is reached by https beside the usual ones
    plain: frozenset[tuple[str, int]] = frozenset()  # host and port that is reached by http

    def takes(self, scheme: str, host: str, port: int) -> bool:
        """True if ``host`` may be asked by this scheme on this port; its addresses are another question."""
        if scheme == "http":
            return (host, port) in self.plain
        return scheme == "https" and (port in HTTPS_PORTS or (host, port) in self.ports)

    def reaches(self, host: str, address: Address) -> bool:
        """True if a connection to ``address`` may be made because ``host`` was named."""
        if is_public(address) or any(address.version == one.version and address in one for one in self.networks):
            return True
        return host in self.hosts and may_be_a_host(address)


def parse_allowed(text: str) -> Allowed:
    """The allow-list that a setting holds.

    Raises:
        ValueError: an entry is neither a network nor a host.
    """
    networks: list[Network] = []
    hosts: set[str] = set()
    ports: set[tuple[str, int]] = set()
    plain: set[tuple[str, int]] = set()
    for number, entry in enumerate(filter(None, map(str.strip, text.split(","))), start=1):
        network = _network(entry, number)
        if network is not None:
            networks.append(network)
            continue
        match = _HOST.fullmatch(entry)
        port = int((match and match["port"]) or 0)
        if match is None or port > _PORT_MAX or (match["port"] and not port):
            # not shown: whoever mixes up two variables may have put a key here
            raise ValueError(f"entry {number} is not a network, HOST, HOST:PORT or http://HOST:PORT")
        host = match["host"].casefold().strip("[]").rstrip(".")
        hosts.add(host)
        if match["plain"]:
            plain.add((host, port or 80))
        elif port:
            ports.add((host, port))
    return Allowed(tuple(networks), frozenset(hosts), frozenset(ports), frozenset(plain))


def _network(text: str, number: int) -> Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        if "/" in text and not text.startswith("http://"):
            raise ValueError(
                f"entry {number} is not a network: give its first address and its prefix length, such as 10.1.0.0/16"
            ) from None
        return None
