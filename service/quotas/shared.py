"""Token buckets that all API processes share, in the broker's Redis.

A bucket is one key: the time at which it will be full again (the generic cell rate algorithm, ITU-T I.371), by the
clock of Redis, so that hosts need not agree on the time. It expires then: a bucket that is full needs no key.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time

import anyio
from anyio import CapacityLimiter, to_thread
from redis import Redis
from redis.exceptions import RedisError

from service.monitoring.declarations import SHARED_LIMITS
from service.quotas.buckets import Taken

# How long Redis has for a step of an answer, and for all of it.
STEP_SECONDS, ANSWER_SECONDS = 0.05, 0.1
# After a failure Redis is left alone for so long; then one request tries again.
PAUSE_SECONDS = 2.0
# Requests that wait for an answer at a time.
_THREADS = 4
_PREFIX = "quantmill:rate:"
# Takes up to ARGV[3] whole tokens, or gives back; times in microseconds. A thousandth of a token forgives rounding.
_TAKE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local each, depth, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local full_at = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
local left = depth - (full_at - now) / each
local got = math.max(math.min(most, 0), math.min(most, math.floor(left + 0.001)))
full_at = full_at + got * each
if full_at > now then
  redis.call('SET', KEYS[1], string.format('%.3f', full_at), 'PX', math.ceil((full_at - now) / 1000))
else
  redis.call('DEL', KEYS[1])
end
return {got, math.floor((left - got) * 1000)}
"""
log = logging.getLogger(__name__)


class RedisTokens:
    """Buckets in Redis. One that does not answer is left alone for a while, and processes count for themselves.

    Args:
        client: to Redis, with timeouts.
        secret: of the installation: names of keys are made with it, and tell neither tenants nor addresses.
    """

    def __init__(self, client: Redis, secret: str) -> None:
        self._client = client
        self._take = client.register_script(_TAKE)
        self._secret = hashlib.sha256(secret.encode()).digest()
        self._threads = CapacityLimiter(_THREADS)
        self._lock = threading.Lock()
        self._away = False
        self._paused_until = 0.0

    def take(self, name: str, rate: float, depth: float, most: int = 1) -> Taken | None:
        """Take up to ``most`` tokens of a bucket, or give back with a number below 0.

        Returns:
            What was taken, which may be nothing; None: Redis does not answer.
        """
        if not self._may_ask():
            SHARED_LIMITS.labels("skipped").inc()
            return None
        try:
            got, left = self._take(keys=[self.key_of(name)], args=[1_000_000 / rate, depth, most])
        except RedisError as error:
            self._note_away(error)
            return None
        self._note_back()
        return Taken(int(got), min(depth, int(left) / 1000))

    async def take_soon(self, name: str, rate: float, depth: float, most: int = 1) -> Taken | None:
        """As ``take``, in a thread, which is not waited for where a name is resolved for seconds."""
        if time.monotonic() < self._paused_until:
            SHARED_LIMITS.labels("skipped").inc()
            return None
        with anyio.move_on_after(ANSWER_SECONDS):
            return await to_thread.run_sync(
                lambda: self.take(name, rate, depth, most), limiter=self._threads, abandon_on_cancel=True
            )
        self._note_away(TimeoutError(f"no answer within {ANSWER_SECONDS:g} s"))
        return None

    def key_of(self, name: str) -> str:
        """The key of a bucket."""
        return _PREFIX + hashlib.blake2b(name.encode(), key=self._secret, digest_size=16).hexdigest()

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def _may_ask(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if now < self._paused_until:
                return False
            if self._away:  # this one tries; the others go on without
                self._paused_until = now + PAUSE_SECONDS
            return True

    def _note_away(self, error: Exception) -> None:
        SHARED_LIMITS.labels("failed").inc()
        with self._lock:
            is_news, self._away = not self._away, True
            self._paused_until = time.monotonic() + PAUSE_SECONDS
        if is_news:
            log.warning("limits.not_shared: each process limits by itself: %s: %s", type(error).__name__, error)

    def _note_back(self) -> None:
        SHARED_LIMITS.labels("answered").inc()
        if self._away:
            with self._lock:
                self._away, self._paused_until = False, 0.0
            log.info("limits.shared_again")
