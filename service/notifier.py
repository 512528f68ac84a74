"""Notices of what was committed, and whoever waits for them.

One thread listens, for as long as anybody subscribes, on a connection of its own. Where nothing can be heard, because
the database is away or a pooler stands before it, subscribers are told now and then that anything may have changed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.db import Database
from service.repository import Version, versions
from service.tables import Batch, Dataset, InspectionRow, Job, Model
from service.threads import ServiceBusyError, Threads

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


class ChangeFeed:
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


Watched = type[Job] | type[Model] | type[Dataset] | type[InspectionRow] | type[Batch]
Key = tuple[Watched, str]
_TABLES: dict[str, Watched] = {table.__tablename__: table for table in (Job, Model, Dataset, InspectionRow, Batch)}
# Between two looks; what is told meanwhile is looked at together.
LOOK_SECONDS = 0.08
# After it all rows are looked at, whatever was told.
SAFETY_SECONDS = 5.0
# So many of those who wait for one row are woken at a time, and so long after them the next.
WOKEN, WOKEN_SECONDS = 20, 0.004
# After the database did not answer.
AWAY_SECONDS = 1.0
_Got = TypeVar("_Got")


class ChangeWatch:
    """One row that somebody waits for; made by ``Notifier.watching``."""

    def __init__(self, reads: Threads) -> None:
        self.watchers = 0
        self.version: Version | None = None
        self.released = False
        self._reads = reads
        self._waiting: set[asyncio.Future[None]] = set()
        self._results: dict[Hashable, asyncio.Task[Any]] = {}

    async def beyond(self, seen: Version, timeout_seconds: float) -> bool:
        """Wait until the row is known to have moved on from the version ``seen``.

        False if the time is over first, or if nobody is to wait any longer.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_seconds
        while not self._is_beyond(seen):
            left = ends - loop.time()
            if left <= 0 or self.released:
                return False
            future = loop.create_future()
            self._waiting.add(future)
            over = loop.call_later(left, _settle, future)
            try:
                await future
            finally:
                over.cancel()
                self._waiting.discard(future)
        return True

    async def shared(self, key: Hashable, look: Callable[[], _Got]) -> _Got:
        """The result of ``look`` (in a thread), one for all who ask by the same key about the same version."""
        task = self._results.get(key)
        if task is None:
            task = self._results[key] = asyncio.create_task(self._reads.run(look))
            task.add_done_callback(lambda done: self._forget_failed(key, done))
        # one who goes away must not end it for the others
        result: _Got = await asyncio.shield(task)
        return result

    def tell(self, version: Version | None) -> None:
        """Note the version, and wake everybody if it is another."""
        if version == self.version:
            return
        self.version = version
        self._results.clear()
        self._wake(list(self._waiting))

    def release(self) -> None:
        """Nobody waits any longer: the process is about to end."""
        self.released = True
        for future in self._waiting:
            _settle(future)

    def _wake(self, sleepers: list[asyncio.Future[None]]) -> None:
        """Some now, the rest a moment later: requests of others do not wait until a whole crowd has been answered."""
        for future in sleepers[:WOKEN]:
            _settle(future)
        if len(sleepers) > WOKEN:
            asyncio.get_running_loop().call_later(WOKEN_SECONDS, self._wake, sleepers[WOKEN:])

    def _is_beyond(self, seen: Version) -> bool:
        return self.version is not None and any(now > then for now, then in zip(self.version, seen, strict=True))

    def _forget_failed(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if failed and self._results.get(key) is task:
            del self._results[key]


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Notifier:
    """Watches rows of one database for the coroutines of one event loop.

    Args:
        changes: of the database.
        database: where the rows are.
        reads: threads for what is read on behalf of those who wait.
    """

    def __init__(self, changes: ChangeFeed, database: Database, reads: Threads) -> None:
        self._changes = changes
        self._database = database
        self._reads = reads
        # one of its own: news must not wait for their turn behind the requests
        self._own = Threads(1, math.inf)
        self._watches: dict[Key, ChangeWatch] = {}
        # what is to be looked at
        self._due: set[Key] = set()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._released = False

    def release(self) -> None:
        """Send everybody away with what they have seen so far; who comes now does not wait. In the event loop only."""
        self._released = True
        for watch in self._watches.values():
            watch.release()

    @contextmanager
    def watching(self, table: Watched, noun_id: str) -> Iterator[ChangeWatch]:
        """Watch a row for the length of the block. Within the event loop only."""
        key = (table, noun_id)
        if self._task is None or self._task.done():
            self._news = asyncio.Event()
            self._task = asyncio.create_task(self._run())
        if key not in self._watches:
            self._watches[key] = ChangeWatch(self._reads)
            self._mark({key})
        watch = self._watches[key]
        watch.released = self._released
        watch.watchers += 1
        try:
            yield watch
        finally:
            watch.watchers -= 1
            if not watch.watchers and self._watches.get(key) is watch:
                del self._watches[key]

    def _mark(self, keys: Iterable[Key]) -> None:
        self._due.update(keys)
        if self._due:
            self._news.set()

    def _note(self, changed: Changed) -> None:
        """Have those of the watched rows looked at that may be others now; None: all."""
        if changed is None:
            self._mark(self._watches)
            return
        keys = {(_TABLES[name], noun_id) for name, noun_id in changed if name in _TABLES}
        if any(table is Job for table, _ in keys):  # the version of a batch follows from its jobs
            keys |= {key for key in self._watches if key[0] is Batch}
        self._mark(self._watches.keys() & keys)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with self._changes.subscribe(lambda changed: loop.call_soon_threadsafe(self._note, changed)):
            while self._watches:
                pause = LOOK_SECONDS
                try:
                    await self._look()
                except (SQLAlchemyError, ServiceBusyError) as error:
                    log.warning("notifier.database_away: %s", error)
                    self._note(None)
                    pause = AWAY_SECONDS
                await asyncio.sleep(pause)
                try:
                    await asyncio.wait_for(self._news.wait(), SAFETY_SECONDS)
                except TimeoutError:
                    self._note(None)

    async def _look(self) -> None:
        """Ask for the versions of the rows that are due, and wake those who wait for them."""
        due, self._due = self._due, set()
        self._news.clear()
        found = await self._own.run(lambda: self._versions(due))
        for key in due:
            if (watch := self._watches.get(key)) is not None:
                watch.tell(found.get(key))

    def _versions(self, keys: Iterable[Key]) -> dict[Key, Version]:
        wanted: dict[Watched, list[str]] = {}
        for table, noun_id in keys:
            wanted.setdefault(table, []).append(noun_id)
        found: dict[Key, Version] = {}
        with self._database.read() as session:
            for table, ids in wanted.items():
                told = versions(session, table, ids)
                found |= {(table, noun_id): version for noun_id, version in told.items()}
        return found
