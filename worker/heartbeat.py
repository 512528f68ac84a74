"""Says now and then that this worker is alive and what it takes: jobs are released by it, and one that nobody will take
can say so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from sqlalchemy.exc import SQLAlchemyError

from service.db import Database
from service.workers import repository
from worker.lease import DATABASE_AWAY

log = logging.getLogger(__name__)

# Between two looks whether there is news to tell before its time.
_LOOK_SECONDS = 0.5


class Heartbeat:
    """A thread that announces a worker in short transactions of its own; a context manager.

    Args:
        database: where workers are noted; while it is away nothing is, which is all that follows.
        worker_id: name of this process.
        offers: tells how many jobs it runs at a time, by queue that it takes jobs of.
        short_slots: of these, those that are kept for short jobs.
        period_seconds: between two announcements without news.
    """

    def __init__(
        self,
        database: Database,
        worker_id: str,
        offers: Callable[[], Mapping[str, int]],
        *,
        short_slots: int = 0,
        period_seconds: float = repository.ANNOUNCE_SECONDS,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._offers = offers
        self._short_slots = short_slots
        self._period = period_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._announce({})

    def _run(self) -> None:
        told: Mapping[str, int] | None = None
        due_at = 0.0
        while True:
            offers, now = self._offers(), time.monotonic()
            if offers != told or now >= due_at:
                told = offers if self._announce(offers) else None
                due_at = now + self._period
            if self._stop.wait(min(_LOOK_SECONDS, self._period)):
                return

    def _announce(self, offers: Mapping[str, int]) -> bool:
        try:
            with self._database.write() as session:
                repository.announce(session, self._worker_id, offers, short_slots=self._short_slots)
        except DATABASE_AWAY as error:
            log.warning("heartbeat.database_away: %s", error)
        except SQLAlchemyError:  # such as a database that takes no writes for a while: the next beat may succeed
            log.exception("heartbeat.failed")
        else:
            return True
        return False
