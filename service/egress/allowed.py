"""What an operator allows beyond the public internet (``QUANTMILL_EGRESS_ALLOWED``).

Entries, by commas:

- a network, ``10.1.0.0/16``, or one address: hosts with addresses in it are reached, by https;
- a host, ``hooks.corp.example`` or ``hooks.corp.example:9443``: it is reached by https whatever its addresses are, and
  on this port, too;
- ``http://hooks.corp.example:8080``: as a host, and by plain http on exactly this port (80 where none is given).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from service.egress.addresses import Address, Network, is_public, may_be_a_host

# What https is served on; others only where a setting says so.
HTTPS_PORTS = frozenset({443, 8443})
_HOST = re.compile(
    r"(?P<plain>http://)?(?P<host>[a-z0-9_.-]{1,253}|\[[0-9a-f:.]+\])(:(?P<port>\d{1,5}))?", re.IGNORECASE
)
_PORT_MAX = 65535


@dataclass(frozen=True)
class Allowed:
    """The allow-list, taken apart.

    Attributes:
        networks: their addresses are reached.
        hosts: lower-case names whose addresses are reached.
        ports: host and port that is reached by https beside the usual ones.
        plain: host and port that is reached by http.
    """

    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()
    ports: frozenset[tuple[str, int]] = frozenset()
    plain: frozenset[tuple[str, int]] = frozenset()

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
            raise ValueError(f"entry {number} is neither a network, nor HOST, HOST:PORT or http://HOST:PORT")
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
                f"entry {number} is no network: give its first address and its length, such as 10.1.0.0/16"
            ) from None
        return None
