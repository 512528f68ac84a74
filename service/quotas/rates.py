"""Rate limits of a tenant: its requests in all API processes, its streams and incoming bytes in this one; and its
storage left for files.

The headers are those of draft-ietf-httpapi-ratelimit-headers.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from service.contracts.quota import Quota
from service.quotas.buckets import Bucket, SharedBucket, SharedTokens
from service.quotas.schemas import LargerThanQuotaError, QuotaError, RateError

# How many bytes a tenant may store beside those that it has, for files whose size nobody knows beforehand.

# When to ask again for bytes: what becomes free does so at no time that is known.
RETRY_SECONDS = 3600.0


@dataclass(frozen=True)
class Room:
    """What the tenant's limits were when it was looked at, and how many bytes were stored."""

    quota: Quota
    used_bytes: int

    def refuse_beyond(self, size_bytes: int, together_bytes: int | None = None) -> None:
        """See whether one file more of so many bytes fits in.

        Args:
            size_bytes: of the file.
            together_bytes: of it and others that are not stored yet. Default: of it alone.

        Raises:
            LargerThanQuotaError: the file alone is larger than one may be, or than all together.
            QuotaError: of bytes stored.
        """
        limits = {"upload_bytes": self.quota.upload_bytes, "stored_bytes": self.quota.stored_bytes}
        for name, limit in limits.items():
            if limit is not None and size_bytes > limit:
                raise LargerThanQuotaError(name, limit, size_bytes)
        limit, wanted = self.quota.stored_bytes, size_bytes if together_bytes is None else together_bytes
        if limit is not None and self.used_bytes + wanted > limit:
            raise QuotaError("stored_bytes", limit, self.used_bytes, wanted, retry_after_seconds=RETRY_SECONDS)

    def refuse_form(self, form_bytes: int) -> None:
        """See whether the files of a form, which is so long without its fields, fit in; each is seen to as it comes.

        Raises:
            LargerThanQuotaError: they are more than may be stored.
            QuotaError: of bytes stored.
        """
        Room(Quota(stored_bytes=self.quota.stored_bytes), self.used_bytes).refuse_beyond(form_bytes)


# For so long the limits of a tenant are taken as they were read.
KNOWN_SECONDS = 5.0
_STREAM_RETRY_SECONDS = 5.0


class RateMeter:
    """What one tenant does, in this process unless said otherwise; used by the event loop alone.

    Args:
        quota: its limits.
        tenant_id: whose they are.
        tokens: where requests of all processes are counted; None: this process is the only one.
    """

    def __init__(self, quota: Quota, tenant_id: str = "", tokens: SharedTokens | None = None) -> None:
        self.quota = quota
        self._tenant_id = tenant_id
        self._tokens = tokens
        self.read_at = time.monotonic()
        self.streams = 0
        self.arriving_bytes = 0
        self._limit()

    def known(self) -> bool:
        """Whether the limits need not be read again yet."""
        return time.monotonic() - self.read_at < KNOWN_SECONDS

    def update(self, quota: Quota) -> None:
        """The limits were read again."""
        self.read_at = time.monotonic()
        if quota != self.quota:
            self.quota = quota
            self._limit()

    def _limit(self) -> None:
        requests, upload_bytes = self.quota.requests_per_second, self.quota.upload_bytes_per_second
        self._requests = None if requests is None else SharedBucket(f"tenant {self._tenant_id}", requests, self._tokens)
        self._bytes = None if upload_bytes is None else Bucket.of(upload_bytes)

    async def request(self) -> dict[str, str]:
        """Count a request; the headers that tell how many may follow.

        Raises:
            RateError: there were too many.
        """
        if self._requests is None:
            return {}
        wait = await self._requests.take()
        bucket = self._requests.own
        if wait:
            raise RateError(
                f"More than {bucket.rate:g} requests per second on average.",
                hint="Send fewer requests: use ?wait= or event streams instead of polling.",
                retry_after_seconds=wait,
                quota="requests_per_second",
                limit=bucket.rate,
            )
        left, full = math.floor(bucket.tokens), math.ceil(bucket.full_in_seconds())
        return {
            "RateLimit-Policy": f'"requests";q={math.floor(bucket.depth)};w={math.ceil(bucket.depth / bucket.rate)}',
            "RateLimit": f'"requests";r={left};t={full}',
        }

    def upload_pause_seconds(self, size_bytes: int) -> float:
        """For how long to read no more after so many bytes."""
        return 0.0 if self._bytes is None else self._bytes.owe(size_bytes)

    @contextmanager
    def arrival(self) -> Iterator[Arrival]:
        """Files arrive whose size nobody has declared: until that is reserved, they are counted here."""
        arrival = Arrival(self)
        try:
            yield arrival
        finally:
            self.arriving_bytes -= arrival.size_bytes

    @contextmanager
    def stream(self) -> Iterator[None]:
        """An event stream is open.

        Raises:
            QuotaError: as many are open as may be.
        """
        limit = self.quota.open_streams
        if limit is not None and self.streams >= limit:
            raise QuotaError("open_streams", limit, self.streams, retry_after_seconds=_STREAM_RETRY_SECONDS)
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1


class Arrival:
    """Files whose size was not declared, as far as they have come."""

    def __init__(self, meter: RateMeter) -> None:
        self.size_bytes = 0
        self._meter = meter

    def add(self, room: Room, file_bytes: int, more_bytes: int) -> None:
        """Count what has come of a file, which has so many bytes by now, with other such files of the tenant.

        Raises:
            LargerThanQuotaError: the file is larger than one may be.
            QuotaError: there is no room.
        """
        self.size_bytes += more_bytes
        self._meter.arriving_bytes += more_bytes
        room.refuse_beyond(file_bytes, self._meter.arriving_bytes)

    async def within(self, room: Room, blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The blocks of one file, as long as they may come; see ``add``."""
        file_bytes = 0
        async for block in blocks:
            file_bytes += len(block)
            self.add(room, file_bytes, len(block))
            yield block
