"""Verifies that stored files match their digests; damaged files are flagged and not served.

A pass goes through every file that rows name, in the order of the digests, and is resumed where it stopped: the
position is in the database. Names are read some hundred at a time, since no index has them in that order. A file that
is first named behind the position may have to wait for the next pass; it was verified when it was stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.db import Database
from service.files import repository as files
from service.files.repository import NamedFile
from service.settings import Settings
from service.storage import StorageAwayError, Store

log = logging.getLogger(__name__)

_IDLE_SECONDS = 60.0
PAGE = 500


class Scrubber:
    """One file by ``step``.

    Args:
        database: which files there are, and what was found.
        store: where they lie.
        period_seconds: from the beginning of one pass to that of the next.
        pause: called with the bytes just read; may sleep.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        *,
        period_seconds: float,
        pause: Callable[[bytes], None] = lambda block: None,
    ) -> None:
        self._database = database
        self._store = store
        self._period = period_seconds
        self._pause = pause
        # The next files behind the position ``_after``.
        self._after = ""
        self._page: deque[NamedFile] = deque()

    def begin_anew(self) -> None:
        """Let the next step be the first of a new pass."""
        with self._database.write() as session:
            files.begin_pass(session)

    def step(self) -> NamedFile | None:
        """Verify the next file of the pass and note what was found; None if the pass is over and no other is due."""
        with self._database.write() as session:
            position = files.open_pass(session, period_seconds=self._period)
            if position is None:
                return None
            found = self._next(session, position)
            if found is None:
                files.end_pass(session)
                return None
        read = self._store.read_through(found.sha256, self._pause)
        with self._database.write() as session:
            if read.damage is None:
                files.clear_damaged(session, [found.sha256])
            elif files.note_damage(session, self._store, found.sha256, read.damage, read.identity):
                log.error("scrub.damaged sha256=%s damage=%s", found.sha256, read.damage)
            # else it was replaced or forgotten meanwhile: the next pass looks at what is there then
            files.advance_pass(session, found.sha256, found.size_bytes or 0)
        return found

    def _next(self, session: Session, position: str) -> NamedFile | None:
        """The first named file behind ``position``, which another process may have moved either way."""
        while self._page and self._page[0].sha256 <= position:
            self._after = self._page.popleft().sha256
        if not self._page or position < self._after:
            self._after, self._page = position, deque(files.list_named(session, after=position, limit=PAGE))
        return self._page[0] if self._page else None


class _StoppingError(Exception):
    """The process ends: a file that is being read stays unjudged."""


@contextmanager
def scrubbing(settings: Settings, database: Database, store: Store) -> Iterator[None]:
    """Verify in the background while the block runs, at the pace of the settings; a pace of 0 means not at all."""
    pace = settings.scrub_bytes_per_second
    if not pace:
        yield
        return
    stop = Event()

    def pause(block: bytes) -> None:
        if stop.wait(len(block) / pace):
            raise _StoppingError  # the rest of the file may be gigabytes; whoever comes next begins it anew

    scrubber = Scrubber(database, store, period_seconds=settings.scrub_period_seconds, pause=pause)
    thread = Thread(target=_run, args=(scrubber, stop), name="scrub", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _run(scrubber: Scrubber, stop: Event) -> None:
    while not stop.is_set():
        try:
            if scrubber.step() is not None:
                continue
        except _StoppingError:
            return
        except (SQLAlchemyError, OSError, StorageAwayError) as error:
            log.warning("scrub.failed: %s", error)
        stop.wait(_IDLE_SECONDS)
