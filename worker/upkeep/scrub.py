"""Verifies that stored files still have the bytes that their names say; what does not is flagged and not served.

A pass goes through every file that rows name, in the order of the digests, and is resumed where it stopped: the
position is in the database. Names are read some hundred at a time, since no index has them in that order. A file that
is first named behind the position may have to wait for the next pass; it was verified when it was stored.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.db import Database
from service.files import repository as files
from service.files.repository import NamedFile
from service.settings import Settings
from service.storage import BLOCK_BYTES, FileStore, Identity, StoredFileMissingError, identity_of, is_unreadable

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
        store: FileStore,
        *,
        period_seconds: float,
        pause: Callable[[int], None] = lambda count: None,
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
        damage, identity = self._look(found)
        with self._database.write() as session:
            self._note(session, found, damage, identity)
            files.advance_pass(session, found.sha256, found.size_bytes or 0)
        return found

    def _next(self, session: Session, position: str) -> NamedFile | None:
        """The first named file behind ``position``, which another process may have moved either way."""
        while self._page and self._page[0].sha256 <= position:
            self._after = self._page.popleft().sha256
        if not self._page or position < self._after:
            self._after, self._page = position, deque(files.list_named(session, after=position, limit=PAGE))
        return self._page[0] if self._page else None

    def _look(self, file: NamedFile) -> tuple[str | None, Identity | None]:
        """What is wrong with a file, if anything, and which file that was."""
        try:
            stream = self._store.open(file.sha256)
        except StoredFileMissingError:
            return "missing", None
        digest = hashlib.sha256()
        with stream:
            identity = identity_of(stream)
            try:
                while block := stream.read(BLOCK_BYTES):
                    digest.update(block)
                    self._pause(len(block))
            except OSError as error:
                if is_unreadable(error):
                    return "unreadable", identity
                raise  # the disk is away: that says nothing of the file
        return None if digest.hexdigest() == file.sha256 else "digest", identity

    def _note(self, session: Session, file: NamedFile, damage: str | None, identity: Identity | None) -> None:
        if damage is None:
            files.clear_damaged(session, [file.sha256])
        elif files.note_damage(session, self._store, file.sha256, damage, identity):
            log.error("scrub.damaged sha256=%s damage=%s", file.sha256, damage)
        # else it was replaced or forgotten meanwhile: the next pass looks at what is there then


class _StoppingError(Exception):
    """The process ends: a file that is being read stays unjudged."""


class ScrubThread:
    """Verification in the background of a process, at a bounded pace; a context manager.

    Args:
        settings: pace and period; a pace of 0 means none.
        database: see ``Scrubber``.
        store: see ``Scrubber``.
    """

    def __init__(self, settings: Settings, database: Database, store: FileStore) -> None:
        self._pace = settings.scrub_bytes_per_second
        self._stop = threading.Event()
        self._scrubber = Scrubber(database, store, period_seconds=settings.scrub_period_seconds, pause=self._pause)
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)

    def __enter__(self) -> ScrubThread:
        if self._pace:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._pace:
            self._thread.join()

    def _pause(self, count: int) -> None:
        if self._stop.wait(count / self._pace):
            raise _StoppingError  # the rest of the file may be gigabytes; whoever comes next begins it anew

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._scrubber.step() is not None:
                    continue
            except _StoppingError:
                return
            except (SQLAlchemyError, OSError) as error:
                log.warning("scrub.failed: %s", error)
            self._stop.wait(_IDLE_SECONDS)
