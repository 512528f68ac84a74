"""Which addresses are on the public internet.

``ipaddress``'s ``is_global`` is not enough: it is true for multicast, for the relays of 6to4, for site-local addresses,
and, depending on the version of Python (CVE-2024-4032), for addresses that carry a private IPv4 address in them: mapped
(::ffff:10.0.0.1), compatible (::10.0.0.1), 6to4 (2002::/16), NAT64 (64:ff9b::/96). Here IPv6 is public only within
the block that is given out for it, 2000::/3, where nothing of the kind lies but what is listed.

Sources: IANA's registries of special-purpose IPv4 and IPv6 addresses (RFC 6890, RFC 8190), RFC 6598 (shared address
space of carriers), RFC 3056 and 7526 (6to4), RFC 6052 (NAT64), RFC 9637 (documentation), RFC 4291 (multicast, mapped).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

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
