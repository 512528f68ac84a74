"""Releases and sends the jobs that live workers can take, in a thread that is woken or runs periodically."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from service import failpoints
from service.contracts.quota import Quota
from service.db import Database
from service.dispatch.release import Released, release
from service.dispatch.repository import next_due
from service.dispatch.slots import FreeSlots
from service.jobs import transitions
from service.jobs.errors import DispatchError
from service.monitoring.declarations import MESSAGES_LOST
from service.repository import alone
from service.settings import Settings
from service.tracing import Attributes, SpanKind, remote, span

log = logging.getLogger(__name__)

# How long a broker that failed is left alone; and before a round is tried again that failed otherwise.
PAUSE_SECONDS = 3.0
_AGAIN_SECONDS = 1.0
CLOSE_SECONDS = 2.0
# Changes after which there may be something to release: what waits, and who takes it.
_TABLES = frozenset({"queues", "workers"})
# Between the beginnings of two rounds, however often they are asked for.
_BETWEEN_SECONDS = 0.02
# Longer than it takes to release a job right after its submission.
_DEFER_SECONDS = 0.1
# Of those who release, one at a time; any number that every process agrees on.
_LOCK = 0x7175616E746D7264
_AWAY = (OperationalError, InterfaceError, PoolTimeoutError)


class Carrier(Protocol):
    """Takes released jobs to where they run: a broker, or the pool of this very process."""

    def free(self, session: Session) -> FreeSlots:
        """Slots that a job could be released for now."""

    def send(self, job: Released) -> None:
        """Hand one over.

        Raises:
            DispatchError: it was not taken, or nobody knows.
        """

    def ping(self) -> None:
        """Whether anything could be handed over.

        Raises:
            DispatchError: it could not.
        """

    def close(self) -> None:
        """Let go of what it holds."""


class Dispatcher:
    """Releases jobs; any number of processes may do so beside each other.

    Args:
        database: where jobs are.
        carrier: takes them to where they run.
        quota: of tenants that have no limits of their own.
        lost_seconds: after which a job that was released and is not claimed counts as one whose message was lost.
        period_seconds: between two rounds that nobody has asked for; None: there are none.
        defer_seconds: between a change that was heard of and the round that it is worth, for whoever made the change
            releases at once, and two at a time are slower than one.
    """

    def __init__(
        self,
        database: Database,
        carrier: Carrier,
        quota: Quota,
        *,
        lost_seconds: float,
        period_seconds: float | None = None,
        defer_seconds: float = 0.0,
    ) -> None:
        self._database = database
        self._carrier = carrier
        self._quota = quota
        self._lost_seconds = lost_seconds
        self._period = period_seconds
        self._defer = defer_seconds
        self._paused_until = 0.0
        self._look_at = 0.0
        self._has_failed = False
        self._woken = threading.Event()
        # There is most likely something to release: no look beforehand, which would take as long as the release.
        self._sure = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def wake(self) -> None:
        """Have a round soon, for a job was just submitted or has ended here; never waits and never fails."""
        self._sure.set()
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        with self._lock:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # this process may have no more threads; the next call tries again
                log.warning("dispatch.no_thread: %s", error)
            else:
                self._thread = thread

    def heard(self, changed: frozenset[tuple[str, str]] | None) -> None:
        """Have a round soon if it may be of use; see ``service.notifier``."""
        if changed is None or any(table in _TABLES for table, _ in changed):
            self._wake()

    def close(self) -> None:
        """End the thread, with what it is just doing if that is quickly done."""
        with self._lock:
            thread, self._closed = self._thread, True
        self._woken.set()
        if thread is not None:
            thread.join(CLOSE_SECONDS)
        self._carrier.close()

    def ping(self) -> None:
        """Whether jobs could be handed over.

        Raises:
            DispatchError: they could not.
        """
        self._carrier.ping()

    def round(self) -> int:
        """Release and send what there are free slots for; returns how many jobs.

        Raises:
            SQLAlchemyError: the database is away.
        """
        now = time.monotonic()
        if now < self._paused_until:
            return 0
        look = now >= self._look_at
        if look:
            self._look_at = now + self._lost_seconds / 10
        if not self._sure.is_set() and not self._anything(look):
            return 0
        self._sure.clear()
        with self._database.write() as session:
            alone(session, _LOCK)
            lost = transitions.take_back(session, lost_seconds=self._lost_seconds) if look else 0
            jobs = release(session, self._carrier.free(session), self._quota)
        if lost:
            MESSAGES_LOST.inc(lost)
            log.warning("dispatch.lost jobs=%d: no worker has taken them", lost)
        if jobs:
            failpoints.reach("after_release")
        return self._send(jobs)

    def _anything(self, look_for_lost: bool) -> bool:
        """Whether there is something to do, by a look that writes nothing."""
        with self._database.read() as session:
            if look_for_lost and transitions.any_lost(session, lost_seconds=self._lost_seconds):
                return True
            queues = self._carrier.free(session).queues()
            return bool(queues) and next_due(session, queues) is not None

    def _send(self, jobs: Sequence[Released]) -> int:
        for number, job in enumerate(jobs):
            try:
                told: Attributes = {"job_id": job.id, "attempt": job.attempt, "queue": job.queue}
                with span("job.dispatch", told, parent=remote(job.trace_context), kind=SpanKind.PRODUCER):
                    self._carrier.send(job)
            except DispatchError as error:
                self._paused_until = time.monotonic() + PAUSE_SECONDS
                log.warning("dispatch.failed jobs=%d: %s", len(jobs) - number, error.detail)
                with self._database.write() as session:
                    transitions.not_sent(session, [(one.id, one.attempt) for one in jobs[number:]])
                return number
        if jobs:
            failpoints.reach("after_publish")
        return len(jobs)

    def _run(self) -> None:
        begun_at = 0.0
        while not self._closed:
            if self._woken.wait(self._pause()):
                self._sure.wait(self._defer)
            time.sleep(max(0.0, begun_at + _BETWEEN_SECONDS - time.monotonic()))
            begun_at = time.monotonic()
            self._woken.clear()
            if self._closed:
                return
            self._has_failed = True
            try:
                self.round()
            except _AWAY as error:
                log.warning("dispatch.database_away: %s", error)
            except Exception:  # no fault may end the thread; it is logged whole, and the next round tries again
                log.exception("dispatch.failed")
            else:
                self._has_failed = False

    def _pause(self) -> float | None:
        paused = self._paused_until - time.monotonic()
        if self._has_failed:
            paused = max(paused, _AGAIN_SECONDS)
        if paused <= 0:
            return self._period
        return paused if self._period is None else min(paused, self._period)


def open_dispatcher(
    settings: Settings, database: Database, *, period_seconds: float | None = None
) -> Dispatcher | None:
    """Sends jobs to the broker; None: there is none, and workers release jobs for themselves.

    Args:
        settings: name the broker.
        database: where jobs are.
        period_seconds: between two rounds that nobody has asked for; None: so long that they cost nothing, and jobs
            start all the same while no reconciler runs.
    """
    if not settings.broker_url:
        return None
    from service.dispatch.broker import TaskSender  # Celery takes long to import

    return Dispatcher(
        database,
        TaskSender(settings),
        settings.quota,
        lost_seconds=settings.redispatch_seconds,
        period_seconds=settings.redispatch_seconds if period_seconds is None else period_seconds,
        defer_seconds=_DEFER_SECONDS,
    )
