"""Rates of client addresses: of requests that no key vouches for."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from functools import lru_cache

from service.quotas.buckets import SharedBucket, SharedTokens
from service.quotas.schemas import AddressRateError

# Addresses that a process knows; less than a kilobyte each.
REMEMBERED = 10_000
# The network that one customer of a provider has, RFC 6177.
_IPV6_BITS = 64


@lru_cache(REMEMBERED)
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


class AddressRates:
    """Requests without a valid key, by address; used by the event loop alone.

    Args:
        rate: requests per second of one address; 0: any.
        tokens: where all processes count; None: this process is the only one.
    """

    def __init__(self, rate: float, tokens: SharedTokens | None) -> None:
        self._rate = rate
        self._tokens = tokens
        self._buckets: OrderedDict[str, SharedBucket] = OrderedDict()

    async def count(self, address: str) -> None:
        """Count a request; one whose client has no address, as through a local socket, is not counted.

        Raises:
            AddressRateError: there were too many.
        """
        if not self._rate or not address:
            return
        wait_seconds = await self._bucket(place_of(address)).take()
        if wait_seconds:
            raise AddressRateError(
                f"More than {self._rate:g} requests per second on average from this address, without a valid key.",
                hint="Send fewer requests, or a valid key with each.",
                retry_after_seconds=wait_seconds,
                limit=self._rate,
            )

    def _bucket(self, place: str) -> SharedBucket:
        bucket = self._buckets.get(place)
        if bucket is None:
            bucket = self._buckets[place] = SharedBucket(f"address {place}", self._rate, self._tokens)
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(place)
        return bucket
