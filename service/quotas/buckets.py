"""Token buckets: of this process, and of all API processes together."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

# So much of its rate one may save up.
BURST_SECONDS = 10.0
# For so long a process takes tokens ahead: most requests then ask nobody.
AHEAD_SECONDS = 0.1


@dataclass
class Bucket:
    """A token bucket: ``rate`` tokens come in per second, and ``depth`` of them fit in."""

    rate: float
    depth: float
    tokens: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self.tokens, self._at = self.depth, time.monotonic()

    @classmethod
    def of(cls, rate: float) -> Bucket:
        """One that holds ``BURST_SECONDS`` of its rate."""
        return cls(rate, max(1.0, rate * BURST_SECONDS))

    def take(self, count: float = 1.0) -> float:
        """Take tokens if they are there; for how many seconds one has to wait for them otherwise."""
        self._fill()
        if self.tokens >= count:
            self.tokens -= count
            return 0.0
        return (count - self.tokens) / self.rate

    def owe(self, count: float) -> float:
        """Take tokens that may not be there yet; after how many seconds they will be."""
        self._fill()
        self.tokens -= count
        return max(0.0, -self.tokens / self.rate)

    def level(self, tokens: float) -> None:
        """So many are there now."""
        self._fill()
        self.tokens = min(self.depth, tokens)

    def full_in_seconds(self) -> float:
        """When all tokens are there again."""
        return (self.depth - self.tokens) / self.rate

    def _fill(self) -> None:
        now = time.monotonic()
        self.tokens = min(self.depth, self.tokens + (now - self._at) * self.rate)
        self._at = now


class Taken(NamedTuple):
    """What was taken of a bucket of all processes."""

    granted: int
    left: float  # tokens in the bucket after that


class SharedTokens(Protocol):
    """Where the buckets of all processes are."""

    def take(self, name: str, rate: float, depth: float, most: int = 1) -> Taken | None:
        """Take up to ``most`` tokens of a bucket, or give back with a number below 0. Not in the event loop.

        Returns:
            What was taken, which may be nothing; None: nobody answers, and every process counts for itself.
        """

    async def take_soon(self, name: str, rate: float, depth: float, most: int = 1) -> Taken | None:
        """As ``take``, in a thread."""

    def close(self) -> None:
        """Let go of connections."""


class SharedBucket:
    """A bucket of all processes, seen from one; used by the event loop alone.

    ``own`` is what this process knows of it: how full it was at the last look, and what this process has taken since.
    Where that is empty, so is the shared one, and nobody needs to be asked; where nobody answers, it is the limit.

    Args:
        name: of the shared bucket.
        rate: tokens per second.
        tokens: where it is; None: this process is the only one.
    """

    def __init__(self, name: str, rate: float, tokens: SharedTokens | None) -> None:
        self.own = Bucket.of(rate)
        self._name = name
        self._tokens = tokens
        self._ahead = max(1, int(rate * AHEAD_SECONDS))
        self._held = 0  # taken of the shared bucket, and not used yet
        self._asking = asyncio.Lock()

    async def take(self) -> float:
        """Take one token; for how many seconds one has to wait for it, if there is none."""
        if self._tokens is None:
            return self.own.take()
        async with self._asking:  # who comes meanwhile may use what the first one gets
            wait_seconds = self.own.take()
            if wait_seconds:
                return wait_seconds
            if self._held:
                self._held -= 1
                return 0.0
            taken = await self._tokens.take_soon(self._name, self.own.rate, self.own.depth, self._ahead)
            if taken is None:
                return 0.0
            self._held = max(0, taken.granted - 1)
            self.own.level(taken.left + self._held)
            return 0.0 if taken.granted else max(0.0, 1.0 - taken.left) / self.own.rate
