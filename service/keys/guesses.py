"""Limits invalid keys per address; remembers which need not be looked up again. State per API process.

Whoever is right is not to suffer from who guesses behind the same address (NAT, a proxy that nobody trusts): a right
key costs nothing, and where an address has spent its guesses, a key whose id exists has guesses of its own left.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import OrderedDict

from service.keys.schemas import TooManyWrongKeysError
from service.quotas.rates import Bucket

# Of one address: so many at once, and so many a second from then on.
GUESSES_AT_ONCE = 30.0
GUESSES_PER_SECOND = 0.5
# For so long a wrong key is known to be wrong: the same one again is no guess, and needs no look.
MISS_SECONDS = 60.0
# Addresses, and wrong keys; about 200 bytes each.
REMEMBERED = 10_000
# The network that one customer of a provider has, RFC 6177.
_IPV6_BITS = 64


class Guesses:
    """The wrong keys of one API process; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._misses: OrderedDict[bytes, float] = OrderedDict()

    def known(self, digest: bytes) -> bool:
        """Whether a key of this digest was wrong a moment ago."""
        with self._lock:
            return time.monotonic() - self._misses.get(digest, -math.inf) < MISS_SECONDS

    def take(self, place: str) -> float:
        """Count a guess; for how many seconds the place has to wait for one, if it has none left."""
        with self._lock:
            bucket = self._buckets.setdefault(place, Bucket(GUESSES_PER_SECOND, GUESSES_AT_ONCE))
            self._buckets.move_to_end(place)
            _shorten(self._buckets)
            return bucket.take()

    def was_right(self, place: str) -> None:
        """What was counted was no guess."""
        with self._lock:
            if place in self._buckets:
                self._buckets[place].owe(-1.0)

    def was_wrong(self, digest: bytes) -> None:
        """Remember a wrong key."""
        with self._lock:
            self._misses[digest] = time.monotonic()
            self._misses.move_to_end(digest)
            _shorten(self._misses)


def _shorten(remembered: OrderedDict[str, Bucket] | OrderedDict[bytes, float]) -> None:
    if len(remembered) > REMEMBERED:
        remembered.popitem(last=False)


def place_of(address: str) -> str:
    """What counts as one address: of IPv6, a whole network."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _IPV6_BITS), strict=False))


def refusal(wait_seconds: float) -> TooManyWrongKeysError:
    """What an address without guesses is told."""
    return TooManyWrongKeysError(
        "Too many invalid keys were sent from this address.",
        hint="Send a valid key. Remove revoked and expired keys from the clients that use them.",
        header="Authorization",
        retry_after_seconds=max(1, math.ceil(wait_seconds)),
    )
