"""Ends a worker that receives no messages although jobs were released to it; it is restarted with a new connection.

A connection to a broker may be open and carry nothing, and the client's library may not notice. The database knows: a
job that was released lies there unclaimed, beside a free slot. What runs is never ended for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from service.queues import repository
from worker.lease import DATABASE_AWAY
from worker.node import Node
from worker.repository import any_released

log = logging.getLogger(__name__)

# A failure that a new start may mend (EX_TEMPFAIL of sysexits.h).
EXIT_DEAF = 75
# A message takes milliseconds.
_TRAVEL_SECONDS = 1.0
_LOOK_SECONDS = 2.0


class Watchdog:
    """A thread that looks every few seconds.

    Args:
        node: this process.
        deaf_seconds: how long jobs lie there, and no message comes, before the process ends.
        clock: seconds that only grow.
        end: ends this process; the main thread may hang in the broker's library, so nobody is asked to stop.
    """

    def __init__(
        self,
        node: Node,
        *,
        deaf_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[], None] = lambda: os._exit(EXIT_DEAF),
    ) -> None:
        self._node = node
        self._deaf_seconds = deaf_seconds
        self._clock = clock
        self._end = end
        self._since: float | None = None
        self._noted = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def heard(self) -> None:
        """A message has come."""
        self._since = None

    def look(self) -> None:
        """Look once, and do what is to be done.

        Raises:
            SQLAlchemyError: the database is away; the next look goes on from here.
        """
        now = self._clock()
        if not self._jobs_lie_there():
            self._since = None
            self._note(deaf=False)
            return
        if self._since is None:
            self._since = now
            self._note(deaf=False)
        since = self._since
        if now - since >= self._deaf_seconds / 2:
            self._note(deaf=True)
        if now - since >= self._deaf_seconds and self._node.slots.idle():
            log.error("worker.deaf_ends exit_code=%d: jobs were released and no message arrives", EXIT_DEAF)
            self._end()

    def _jobs_lie_there(self) -> bool:
        """Jobs that were released to a queue of this worker, beside a free slot."""
        queues = [queue for queue, slots in self._node.offers().items() if slots]
        if not queues or not self._node.slots.free():
            return False
        with self._node.database.read() as session:
            return any_released(session, queues, seconds_ago=_TRAVEL_SECONDS)

    def _note(self, *, deaf: bool) -> None:
        if deaf != self._noted:
            with self._node.database.write() as session:
                repository.note_deaf(session, self._node.id, deaf=deaf)
            self._noted = deaf

    def _watch(self) -> None:
        while not self._stop.wait(min(_LOOK_SECONDS, self._deaf_seconds / 4)):
            try:
                self.look()
            except DATABASE_AWAY as error:
                log.warning("watchdog.database_away: %s", error)
            except Exception:  # the next look may succeed
                log.exception("watchdog.failed")
