"""Sends the messages of submitted jobs behind the back of the requests: a client never waits for the broker.

What cannot be sent is left to the reconciler, which sends the message of every queued job that has none.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress
from itertools import chain

from sqlalchemy.exc import SQLAlchemyError

from service import failpoints
from service.db import Database
from service.jobs import transitions
from service.jobs.dispatch import Dispatcher
from service.jobs.errors import DispatchError

WAITING = 1000
# Messages whose sending is noted in one transaction.
_BATCH = 50
PAUSE_SECONDS = 3.0
CLOSE_SECONDS = 2.0
log = logging.getLogger(__name__)


class Publisher:
    """A bounded queue of messages and the one thread that sends them.

    After a message that the broker did not take, none is sent for ``pause_seconds``; then the next one is the probe.

    Args:
        dispatcher: sends, within a fixed time.
        database: where it is noted what was sent.
        pause_seconds: how long a broker that failed is left alone.
    """

    def __init__(self, dispatcher: Dispatcher, database: Database, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._dispatcher = dispatcher
        self._database = database
        self._pause_seconds = pause_seconds
        self._paused_until = 0.0
        self._queue: queue.Queue[tuple[str, str] | None] = queue.Queue(WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, job_id: str, queue_name: str) -> None:
        """Have the message of a committed job sent soon; never waits and never fails."""
        self._start()
        try:
            self._queue.put_nowait((job_id, queue_name))
        except queue.Full:
            log.warning("dispatch.left_to_reconciler job_id=%s: too many messages wait", job_id)

    def close(self) -> None:
        """Send what waits if that is quickly done, and end the thread."""
        with self._lock:
            thread, self._thread, self._closed = self._thread, None, True
        if thread is None:
            return
        with suppress(queue.Full):  # then the thread sees the flag instead
            self._queue.put_nowait(None)
        thread.join(CLOSE_SECONDS)

    def _start(self) -> None:
        with self._lock:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            thread = threading.Thread(target=self._run, name="publisher", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # this process may have no more threads; the next message tries again
                log.warning("dispatch.left_to_reconciler: no thread to send messages: %s", error)
            else:
                self._thread = thread

    def _run(self) -> None:
        ended = False
        while not ended:
            first = self._queue.get()
            batch, ended = self._gather(first)
            try:
                self._deliver(batch)
            except Exception:  # no message may end the thread; the reconciler sends what this one has not
                log.exception("dispatch.left_to_reconciler count=%d", len(batch))

    def _deliver(self, batch: list[tuple[str, str]]) -> None:
        sent = [job_id for job_id, queue_name in batch if self._send(job_id, queue_name)]
        if sent:
            failpoints.reach("after_publish")
            self._note(sent)

    def _gather(self, first: tuple[str, str] | None) -> tuple[list[tuple[str, str]], bool]:
        """What waits, at most a batch of it; and whether the thread is to end after it."""
        rest = (self._queue.get_nowait() for _ in range(min(_BATCH - 1, self._queue.qsize())))
        found = list(chain([first], rest))
        return [message for message in found if message is not None], self._closed and self._queue.empty()

    def _send(self, job_id: str, queue_name: str) -> bool:
        if time.monotonic() < self._paused_until:
            log.info("dispatch.left_to_reconciler job_id=%s: the broker failed a moment ago", job_id)
            return False
        try:
            self._dispatcher.publish(job_id, queue_name)
        except DispatchError as error:
            self._paused_until = time.monotonic() + self._pause_seconds
            log.warning("dispatch.failed job_id=%s: %s", job_id, error.detail)
            return False
        return True

    def _note(self, sent: list[str]) -> None:
        try:
            with self._database.write() as session:
                for job_id in sorted(sent):  # in the order in which all hold jobs
                    transitions.mark_dispatched(session, job_id)
        except SQLAlchemyError as error:
            log.warning("dispatch.not_noted count=%d: %s", len(sent), error)
