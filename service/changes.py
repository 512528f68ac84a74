"""Tells that something was committed, by whichever process: PostgreSQL says what, SQLite is asked whether.

One thread listens, for as long as anybody subscribes, on a connection of its own. Where nothing can be heard, because
the database is away or a pooler stands before it, subscribers are told now and then that anything may have changed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Engine

from service.db import Database

# (table, id) of rows that have changed; None: any may have.
Changed = frozenset[tuple[str, str]] | None
Callback = Callable[[Changed], object]
_Heard = Generator[Changed, None, None]
# Between two questions to SQLite.
POLL_SECONDS = 0.05
# Between two calls while nothing can be heard.
DEAF_SECONDS = 0.5
# First and longest pause before it is tried again to listen.
RETRY_SECONDS = (0.1, 30.0)
_NOTHING: frozenset[tuple[str, str]] = frozenset()
log = logging.getLogger(__name__)


class Changes:
    """What is committed to one database.

    Args:
        database: its own connections are left to others.
    """

    def __init__(self, database: Database) -> None:
        self._engine = database.engine
        self._lock = threading.RLock()
        self._callbacks: list[Callback] = []
        self._thread: threading.Thread | None = None

    @contextmanager
    def subscribe(self, callback: Callback) -> Iterator[None]:
        """Have ``callback`` called for the length of the block; none of its calls outlasts it.

        It is called with what has changed, in a thread that all subscribers share: it must not block. Whoever looks at
        the database after the beginning of the block misses nothing: what was committed before anything could be heard
        is made up for by a call with None.

        Raises:
            RuntimeError: the process may have no more threads.
        """
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="changes", daemon=True)
                thread.start()
                self._thread = thread
            self._callbacks.append(callback)
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)

    def _run(self) -> None:
        first, longest = RETRY_SECONDS
        pause, deaf = first, False
        while True:
            try:
                with closing(_heard(self._engine)) as heard:
                    for changed in heard:
                        if deaf:
                            log.info("changes.hears_again")
                        pause, deaf = first, False
                        if not self._tell(changed):
                            return
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may go deaf by it
                if not deaf:
                    log.warning("changes.deaf: looks every %g s instead: %r", DEAF_SECONDS, error)
                deaf = True
            if not self._pause(pause):
                return
            pause = min(longest, 2 * pause)

    def _pause(self, seconds: float) -> bool:
        """Wait to try again; False if nobody subscribes any more."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, DEAF_SECONDS))
            if not self._tell(None):
                return False
        return True

    def _tell(self, changed: Changed) -> bool:
        """Call all subscribers, if there is anything to tell; False if there are none: the thread has to end."""
        with self._lock:
            if not self._callbacks:
                self._thread = None
                return False
            for callback in tuple(self._callbacks) if changed is None or changed else ():
                try:
                    callback(changed)
                except Exception:  # one that fails must not keep the news from the others
                    log.exception("changes.callback_failed")
            return True


def _heard(engine: Engine) -> _Heard:
    """None once nothing that is committed goes unheard any more; then what is, and now and then that nothing was."""
    if engine.dialect.name == "sqlite":
        return _polled(engine)
    from service.postgres import notices

    return _listened(notices(engine))


def _listened(notices: Iterator[list[str]]) -> _Heard:
    next(notices)
    yield None
    for payloads in notices:
        told = (payload.partition(":") for payload in payloads)
        yield frozenset((table, row_id) for table, _, row_id in told if row_id)


def _polled(engine: Engine) -> _Heard:
    """The number changes with every commit of another connection, of this process or of any."""
    arguments, options = engine.dialect.create_connect_args(engine.url)
    connection: Any = engine.dialect.connect(*arguments, **options)
    with closing(connection):
        seen = None
        while True:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            yield _NOTHING if version == seen else None
            seen = version
            time.sleep(POLL_SECONDS)
