"""Notices that no messages arrive although jobs wait, and sees to it that they are run all the same.

A connection to the broker may be open and carry nothing, and messages may be lost; neither tells the worker anything.
But messages only wake: the database says what there is to do. So a worker with a free slot beside which jobs wait looks
for them itself. If messages then still pile up in the broker and none arrives, the process ends while it runs nothing,
and its keeper starts one with a new connection.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from service.db import Database
from service.jobs.errors import DispatchError
from service.workers import repository
from worker.lease import DATABASE_AWAY
from worker.slots import Slots

log = logging.getLogger(__name__)

# A failure that a new start may mend, as in sysexits.h.
EXIT_DEAF = 75
_LONGEST_LOOK_SECONDS = 5.0
_LOOKS = 4


class Depths(Protocol):
    """Tells how many messages wait: ``worker.broker.QueueDepths``."""

    def waiting(self, queue: str) -> int:
        """Messages in ``queue`` that no worker has taken."""


@dataclass(frozen=True)
class Seams:
    """What a test may put in the place of the world.

    Attributes:
        clock: seconds that only grow.
        end: ends this process.
    """

    clock: Callable[[], float] = time.monotonic
    # The main thread may hang in the broker's library, so nobody is asked to stop. There is nothing to lose.
    end: Callable[[], None] = lambda: os._exit(EXIT_DEAF)


class Deafness:
    """A thread that looks every few seconds whether jobs wait that no message told of; a context manager.

    Args:
        database: where jobs and workers are.
        worker_id: name of this process.
        queues: that it takes jobs of.
        slots: run the jobs.
        received: messages that have come so far.
        depths: messages that wait in the broker.
        deaf_seconds: how long jobs wait beside a free slot before they are looked for, and how long messages then pile
            up before the process ends.
        seams: for tests.
    """

    def __init__(
        self,
        database: Database,
        worker_id: str,
        queues: Collection[str],
        slots: Slots,
        *,
        received: Callable[[], int],
        depths: Depths,
        deaf_seconds: float,
        seams: Seams | None = None,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._queues = tuple(queues)
        self._slots = slots
        self._received = received
        self._depths = depths
        self._patience = deaf_seconds
        self._seams = seams or Seams()
        self._heard = received()
        self._waiting_since: float | None = None
        self._deaf_since: float | None = None
        self._piled_since: float | None = None
        self._workers: list[threading.Thread] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="deafness", daemon=True)

    def __enter__(self) -> Deafness:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.join()

    def join(self) -> None:
        """Wait for the jobs that were taken without a message; a worker that stops has put them back."""
        for thread in self._workers:
            thread.join()

    def look(self) -> None:
        """Look once, and do what is to be done.

        Raises:
            SQLAlchemyError: the database is away; the next look goes on from here.
        """
        now, heard = self._seams.clock(), self._received()
        if heard != self._heard:
            self._recover("messages arrive")
            self._heard, self._waiting_since = heard, None
            return
        self._help(now)
        if self._deaf_since is not None:
            self._listen(now, self._deaf_since)

    def _help(self, now: float) -> None:
        """Take jobs that have waited beside a free slot for too long."""
        if not self._slots.could_start():
            self._waiting_since = None
            return
        if self._waiting_since is None:
            self._waiting_since = now
        if self._deaf_since is None:
            if now - self._waiting_since < self._patience:
                return
            self._note(deaf=True)
            self._deaf_since, self._piled_since = now, None
            log.warning("worker.deaf queues=%s: jobs wait and no message comes", ",".join(self._queues))
        self._workers = [thread for thread in self._workers if thread.is_alive()]
        for _ in range(self._slots.free):
            thread = threading.Thread(target=self._work, name="unwoken")
            thread.start()
            self._workers.append(thread)

    def _listen(self, now: float, deaf_since: float) -> None:
        """End the process if messages pile up that it does not hear; it is not deaf if there are none."""
        if not self._messages_wait():
            self._piled_since = None
            if now - deaf_since >= self._patience:
                self._recover("no messages wait")
            return
        if self._piled_since is None:
            self._piled_since = now
        if now - self._piled_since >= self._patience and self._slots.retire():
            log.error("worker.deaf_ends exit_code=%d: messages wait and none arrives", EXIT_DEAF)
            self._seams.end()

    def _messages_wait(self) -> bool:
        try:
            return any(self._depths.waiting(queue) for queue in self._queues)
        except DispatchError as error:  # a new connection would carry nothing either
            log.warning("worker.deaf_broker_away: %s", error)
            return False

    def _recover(self, words: str) -> None:
        if self._deaf_since is not None:
            self._note(deaf=False)
            self._deaf_since = self._piled_since = None
            log.info("worker.hears_again: %s", words)

    def _note(self, *, deaf: bool) -> None:
        with self._database.write() as session:
            repository.note_deaf(session, self._worker_id, deaf=deaf)

    def _work(self) -> None:
        try:
            self._slots.work()
        except DATABASE_AWAY as error:
            log.warning("worker.database_away: %s", error)

    def _watch(self) -> None:
        while not self._stop.wait(min(_LONGEST_LOOK_SECONDS, self._patience / _LOOKS)):
            try:
                self.look()
            except DATABASE_AWAY as error:
                log.warning("deafness.database_away: %s", error)
            except Exception:  # such as a process that may have no more threads for a while: the next look may succeed
                log.exception("deafness.failed")
