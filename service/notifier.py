"""Tells those who wait for a row that it has changed: one look at the database serves all of them.

Every long poll and every event stream of the process watches its row here. While anybody does, one cheap statement per
table asks for the versions of all watched rows, some times a second, and wakes those whose row has moved on. What has
changed is read once, too: see ``Watch.shared``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from service.db import Database
from service.repository import Version, versions
from service.tables import Batch, Dataset, InspectionRow, Job, Model
from service.threads import ServiceBusyError, Threads

Watched = type[Job] | type[Model] | type[Dataset] | type[InspectionRow] | type[Batch]
# Between two looks: after a change, and after a while without one.
LOOK_SECONDS = (0.08, 0.25)
# So many of those who wait for one row are woken at a time, and so long after them the next.
WOKEN, WOKEN_SECONDS = 20, 0.004
# After the database did not answer.
AWAY_SECONDS = 1.0
log = logging.getLogger(__name__)
_Got = TypeVar("_Got")


class Watch:
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

    def tell(self, version: Version | None) -> bool:
        """Note the version, and wake everybody if it is another; returns whether it was."""
        if version == self.version:
            return False
        self.version = version
        self._results.clear()
        self._wake(list(self._waiting))
        return True

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
        database: where the rows are.
        reads: threads for what is read on behalf of those who wait.
    """

    def __init__(self, database: Database, reads: Threads) -> None:
        self._database = database
        self._reads = reads
        # one of its own: news must not wait for their turn behind the requests
        self._own = Threads(1, math.inf)
        self._watches: dict[tuple[Watched, str], Watch] = {}
        self._task: asyncio.Task[None] | None = None
        self._released = False

    def release(self) -> None:
        """Send everybody away with what they have seen so far; who comes now does not wait. In the event loop only."""
        self._released = True
        for watch in self._watches.values():
            watch.release()

    @contextmanager
    def watching(self, table: Watched, noun_id: str) -> Iterator[Watch]:
        """Watch a row for the length of the block. Within the event loop only."""
        key = (table, noun_id)
        watch = self._watches.setdefault(key, Watch(self._reads))
        watch.released = self._released
        watch.watchers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield watch
        finally:
            watch.watchers -= 1
            if not watch.watchers and self._watches.get(key) is watch:
                del self._watches[key]

    async def _run(self) -> None:
        quickest, slowest = LOOK_SECONDS
        pause = quickest
        while self._watches:
            try:
                changed = await self._look()
            except (SQLAlchemyError, ServiceBusyError) as error:
                log.warning("notifier.database_away: %s", error)
                pause = AWAY_SECONDS
            else:
                pause = quickest if changed else min(slowest, pause * 1.25)
            await asyncio.sleep(pause)

    async def _look(self) -> int:
        """Ask for the versions of all watched rows and wake those who wait; returns how many have changed."""
        wanted: dict[Watched, list[str]] = {}
        for table, noun_id in self._watches:
            wanted.setdefault(table, []).append(noun_id)
        found = await self._own.run(lambda: self._versions(wanted))
        return sum(watch.tell(found.get(key)) for key, watch in self._watches.items())

    def _versions(self, wanted: Mapping[Watched, Sequence[str]]) -> dict[tuple[Watched, str], Version]:
        found: dict[tuple[Watched, str], Version] = {}
        with self._database.read() as session:
            for table, ids in wanted.items():
                told = versions(session, table, ids)
                found |= {(table, noun_id): version for noun_id, version in told.items()}
        return found
