"""Limits invalid keys per address, in all API processes; remembers, in this one, which need not be looked up again.

Whoever is right is not to suffer from who guesses behind the same address (NAT, a proxy that nobody trusts): a right
key costs nothing, and where an address has spent its guesses, a key whose id exists has guesses of its own left.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict

from service.keys.schemas import TooManyWrongKeysError
from service.quotas.buckets import Bucket, SharedTokens, Taken

# Of one address: so many at once, and so many a second from then on.
GUESSES_AT_ONCE = 30.0
GUESSES_PER_SECOND = 0.5
# For so long a wrong key is known to be wrong: the same one again is no guess, and needs no look.
MISS_SECONDS = 60.0
# Addresses, and wrong keys; about 200 bytes each.
REMEMBERED = 10_000


class Guesses:
    """The wrong keys of one API process; any thread may use it, but not the event loop.

    Args:
        tokens: where guesses of all processes are counted; None: this process is the only one.
    """

    def __init__(self, tokens: SharedTokens | None = None) -> None:
        self._tokens = tokens
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
            wait_seconds = bucket.take()
        taken = None if wait_seconds else self._take_shared(place, 1)
        if taken is None:
            return wait_seconds
        with self._lock:
            bucket.level(taken.left)
        return 0.0 if taken.granted else max(0.0, 1.0 - taken.left) / GUESSES_PER_SECOND

    def was_right(self, place: str) -> None:
        """What was counted was no guess."""
        with self._lock:
            if place in self._buckets:
                self._buckets[place].owe(-1.0)
        self._take_shared(place, -1)

    def was_wrong(self, digest: bytes) -> None:
        """Remember a wrong key."""
        with self._lock:
            self._misses[digest] = time.monotonic()
            self._misses.move_to_end(digest)
            _shorten(self._misses)

    def _take_shared(self, place: str, count: int) -> Taken | None:
        if self._tokens is None:
            return None
        return self._tokens.take(f"guess {place}", GUESSES_PER_SECOND, GUESSES_AT_ONCE, count)


def _shorten(remembered: OrderedDict[str, Bucket] | OrderedDict[bytes, float]) -> None:
    if len(remembered) > REMEMBERED:
        remembered.popitem(last=False)


def refusal(wait_seconds: float) -> TooManyWrongKeysError:
    """What an address without guesses is told."""
    return TooManyWrongKeysError(
        "Too many invalid keys were sent from this address.",
        hint="Send a valid key. Remove revoked and expired keys from the clients that use them.",
        header="Authorization",
        retry_after_seconds=max(1, math.ceil(wait_seconds)),
    )
