"""What those who send for an outbox have in common: some at a time, each under a lease, noted whatever happens.

What is sent is claimed under a lease that outlasts its request, or is renewed while that lasts: nobody else sends it
meanwhile. If this process dies between the request and the note of what became of it, it is sent once more, under the
same id.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Lock
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy.orm import Session

from service.contracts.errors import QuantmillError
from service.db import Database
from service.egress.answers import Answer
from worker.lease import DATABASE_AWAY

log = logging.getLogger(__name__)

# Between two attempts to note what became of something, while the database is away.
_AWAY_SECONDS = 0.5
_Claimed = TypeVar("_Claimed")
_Noted = TypeVar("_Noted")


class Sender(Protocol):
    """Sends what is due for one outbox."""

    def round(self) -> int:
        """Begin with what is due, as far as there is room; returns with how much."""

    def interrupt(self) -> None:
        """Have what is under way end soon; what would last is broken off, and left to another process."""

    def close(self) -> None:
        """Wait for the end of what is under way, which is bounded."""


class Pool(Generic[_Claimed]):
    """Requests of one process, some at a time.

    Args:
        name: of what is sent, for logs and threads.
        slots: how many at a time.
        claim: takes up to so many that are due.
        send: sends one and notes what became of it; is told the moment before the claim, of the monotonic clock.
        on_end: called, in any thread, whenever one has come to its end and there is room for another.
    """

    def __init__(
        self,
        name: str,
        slots: int,
        claim: Callable[[int], Sequence[_Claimed]],
        send: Callable[[_Claimed, float], None],
        on_end: Callable[[], None],
    ) -> None:
        self._name = name
        self._slots = slots
        self._claim = claim
        self._send = send
        self._on_end = on_end
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix=name)
        self._lock = Lock()
        self._under_way = 0
        self._interrupted = Event()

    @property
    def interrupted(self) -> bool:
        """Whether what would last is to be broken off."""
        return self._interrupted.is_set()

    def round(self) -> int:
        """Begin with what is due, as far as there is room; returns with how much."""
        with self._lock:
            free = self._slots - self._under_way
        if free <= 0:
            return 0
        began = time.monotonic()
        claimed = self._claim(free)
        for one in claimed:
            with self._lock:
                self._under_way += 1
            self._threads.submit(self._send, one, began).add_done_callback(self._ended)
        return len(claimed)

    def interrupt(self) -> None:
        """Have what is under way end soon."""
        self._interrupted.set()

    def close(self) -> None:
        """Wait for the end of what is under way, which is bounded."""
        self._threads.shutdown(wait=True)

    def _ended(self, done: Future[None]) -> None:
        with self._lock:
            self._under_way -= 1
        error = done.exception()
        if error is not None:  # it is claimed again once its lease is over
            log.error("%s.broken", self._name, exc_info=error)
        self._on_end()


def answered(send: Callable[[], Answer], about: str, *, passing: tuple[type[Exception], ...] = ()) -> Answer:
    """What an attempt met with. A fault of ours is an attempt like any other: it is not tried without end.

    Args:
        send: makes the attempt.
        about: what it is, for logs.
        passing: are no faults, and raised.
    """
    try:
        return send()
    except passing:
        raise
    except Exception:
        log.exception("%s.fault", about)
        return Answer(None, "internal-error", "A fault of the service, which its log tells.")


def note_while_leased(
    database: Database, note: Callable[[Session], _Noted], *, began: float, lease_seconds: float, about: str
) -> _Noted:
    """Note what became of something, as long as it is ours to note, also if the database is away for a moment.

    Args:
        database: where the outbox is.
        note: writes.
        began: when that was known, of the monotonic clock.
        lease_seconds: of the claim.
        about: what it is, for logs.
    """
    while True:
        try:
            with database.write() as session:
                return note(session)
        except DATABASE_AWAY as error:
            if time.monotonic() - began > lease_seconds:
                raise
            log.warning("%s.database_away: %s", about, error)
            time.sleep(_AWAY_SECONDS)


def words_of(error: QuantmillError) -> str:
    """What was wrong, and what to do."""
    return f"{error.detail} {error.hint}" if error.hint else error.detail


class PooledSender:
    """A sender by a pool, which its subclass makes."""

    _pool: Pool[Any]

    def round(self) -> int:
        """Begin with what is due, as far as there is room; returns with how much."""
        return self._pool.round()

    def interrupt(self) -> None:
        """Have what is under way end soon; what would last is broken off, and left to another process."""
        self._pool.interrupt()

    def close(self) -> None:
        """Wait for the end of what is under way, which is bounded."""
        self._pool.close()
