"""Readiness checks, one per dependency of the service."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from anyio import CapacityLimiter, to_thread
from sqlalchemy.exc import SQLAlchemyError

from service.db import Database
from service.dispatch.dispatcher import Dispatcher
from service.files import repository as stored_files
from service.jobs.errors import DispatchError
from service.schema import SchemaAheadError, SchemaBehindError, require_current
from service.settings import Settings
from service.storage import StorageAwayError, Store

Outcome = Literal["ok", "degraded", "failed"]
# What was found a moment ago is told again: probes come from many sides.
FRESH_SECONDS = 1.0
ANSWER_SECONDS = 3.0
log = logging.getLogger(__name__)


class NotReadyError(Exception):
    """A check found something that keeps the service from working."""


@dataclass(frozen=True)
class Check:
    """One thing looked at. ``degraded`` does not keep the service from taking work."""

    name: str
    outcome: Outcome
    detail: str


class _Probe:
    """One look at a time, in a thread of its own, however many ask; a look that hangs is told of, not waited for."""

    def __init__(self, name: str, look: Callable[[], Check], unanswered: Check) -> None:
        self.name = name
        self._look = look
        self._unanswered = unanswered
        self._thread = CapacityLimiter(1)
        self._task: asyncio.Task[Check] | None = None
        self._begun_at = 0.0

    async def check(self) -> Check:
        """What was found, at most ``FRESH_SECONDS`` ago."""
        old = time.monotonic() - self._begun_at > FRESH_SECONDS
        if self._task is None or (self._task.done() and old) or self._task.get_loop() is not asyncio.get_running_loop():
            self._begun_at = time.monotonic()
            self._task = asyncio.create_task(to_thread.run_sync(self._look, limiter=self._thread))
        done, _ = await asyncio.wait((self._task,), timeout=ANSWER_SECONDS)
        if done:
            return self._task.result()
        log.warning("readiness.no_answer check=%s", self.name)
        return self._unanswered


class ReadinessProbe:
    """Looks at everything that the service needs; never raises for what it looks for, and answers in a bounded time.

    Args:
        settings: the disk's floor.
        database: whether it answers, and with the right schema.
        store: whether it takes files.
        dispatcher: whether the broker is there; None: there is none.
    """

    def __init__(self, settings: Settings, database: Database, store: Store, dispatcher: Dispatcher | None) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._dispatcher = dispatcher
        looks = {"database": self._schema, "storage": self._storage, "disk": self._disk}
        self._probes = [_probe(name, look) for name, look in looks.items()]
        away = Check("broker", "degraded", "unreachable: jobs are accepted, and sent to workers when it is back")
        self._probes.append(_Probe("files", self._files, Check("files", "degraded", "unknown: see the database")))
        self._probes.append(_Probe("broker", lambda: self._broker(away), away))

    async def check_all(self) -> list[Check]:
        """Look at everything at once."""
        return list(await asyncio.gather(*(probe.check() for probe in self._probes)))

    def _schema(self) -> str:
        return f"schema {require_current(self._database)}"

    def _storage(self) -> str:
        return self._store.probe()

    def _disk(self) -> str:
        # no number: how much an upload has taken would tell whether its bytes were there before
        least = self._settings.min_free_bytes
        if self._store.local_free_bytes() < least:
            raise NotReadyError(f"fewer than {least} bytes free")
        return f"at least {least} bytes free"

    def _files(self) -> Check:
        """Stored files that verification found damaged; they are refused one by one, everything else is served."""
        try:
            with self._database.read() as session:
                count = len(stored_files.damaged(session))
        except SQLAlchemyError:
            return Check("files", "degraded", "unknown: see the database")
        if count:
            return Check("files", "degraded", f"{count} damaged or missing: run `quantmill scrub`")
        return Check("files", "ok", "no damaged files known")

    def _broker(self, away: Check) -> Check:
        if self._dispatcher is None:
            return Check("broker", "ok", "none: workers poll the database")
        try:
            self._dispatcher.ping()
        except DispatchError as error:
            log.warning("readiness.degraded check=broker: %s", error.detail)
            return away
        return Check("broker", "ok", "reachable")


def _probe(name: str, look: Callable[[], str]) -> _Probe:
    unanswered = Check(name, "failed", f"no response within {ANSWER_SECONDS:g} s")
    return _Probe(name, lambda: _check(name, look), unanswered)


def _check(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except SchemaAheadError as error:
        return Check(name, "degraded", str(error))
    except (NotReadyError, SchemaBehindError, StorageAwayError, SQLAlchemyError, OSError) as error:
        log.warning("readiness.failed check=%s: %s", name, error)
        # what a driver says may name hosts and users; only our own words go out
        own = isinstance(error, NotReadyError | SchemaBehindError | StorageAwayError)
        return Check(name, "failed", str(error) if own else f"{type(error).__name__}; see the log")
