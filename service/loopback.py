"""Which addresses only this machine can reach."""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a listener on ``host``: every address that it stands for is loopback."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)  # noqa: S104 - what "" means
    except OSError:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)
