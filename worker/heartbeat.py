"""Says now and then that this worker is alive, so that a job that nobody will take can say so."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from sqlalchemy.exc import SQLAlchemyError

from service.db import Database
from service.workers import repository
from worker.lease import DATABASE_AWAY

log = logging.getLogger(__name__)


class Heartbeat:
    """A thread that announces a worker in short transactions of its own; a context manager.

    Args:
        database: where workers are noted; while it is away nothing is, which is all that follows.
        worker_id: name of this process.
        queues: that it takes jobs of.
        slots: jobs that it runs at a time.
        period_seconds: between two announcements.
    """

    def __init__(
        self,
        database: Database,
        worker_id: str,
        queues: tuple[str, ...],
        *,
        slots: int = 1,
        period_seconds: float = repository.ANNOUNCE_SECONDS,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._queues = queues
        self._slots = slots
        self._period = period_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while True:
            try:
                with self._database.write() as session:
                    repository.announce(session, self._worker_id, self._queues, slots=self._slots)
            except DATABASE_AWAY as error:
                log.warning("heartbeat.database_away: %s", error)
            except SQLAlchemyError:  # such as a database that takes no writes for a while: the next beat may succeed
                log.exception("heartbeat.failed")
            if self._stop.wait(self._period):
                return
