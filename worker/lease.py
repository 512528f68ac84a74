"""The lease of one attempt, renewed by a thread from the claim to the commit of the attempt's end.

The thread renews the lease, learns of cancels, and writes what the runner told. All of it may hang for as long as the
database does: whoever must act at the lease's end (see ``worker.attempt``) asks ``over()``, which looks at this
machine's clock alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from service.contracts.runner import LogLine, MetricLine, ProgressLine
from service.db import Database
from service.jobs import events, repository, transitions
from service.monitoring.declarations import LEASES_LOST
from service.tables import Job
from worker.runner_input import boot_seconds

log = logging.getLogger(__name__)

# The database cannot be reached just now, or has no room; what was asked of it may be asked again.
DATABASE_AWAY = (OperationalError, InterfaceError, PoolTimeoutError)
# The thread's own pause between looks at what is due.
_TICK_SECONDS = 0.25
LOG_CHARS = 4000


@dataclass(frozen=True)
class Timing:
    """Periods of an attempt, in seconds."""

    lease: float = 60.0  # for how long a renewal is good
    renew: float = 10.0  # time between renewals while nothing else is written
    look: float = 1.0  # time between looks at the job's row, for a cancel
    flush: float = 0.5  # shortest time between two writes of progress; grows to a hundredth of the attempt's age
    flush_max: float = 5.0  # longest time between two writes of progress
    stall: float = 3600.0  # silence after which the runner counts as stalled
    cancel_grace: float = 5.0  # time that a canceled runner has before it is killed
    # time that an interrupted runner, or a publication under way, has before it is cut off
    shutdown_grace: float = 10.0
    again: float = 0.5  # time between two tries while the database is away
    frozen: float = 300.0  # time for which a runner without a lease is kept, stopped, in the hope of another one
    # from the number of attempts, the delay before the next one
    backoff: Callable[[int], float] = transitions.backoff_seconds


class Lease:
    """The right to write for one attempt; use it as a context, the thread lives inside.

    Args:
        database: where the job is.
        job: as claimed.
        timing: see Timing.
        claimed_at: when the claim was sent, by ``boot_seconds``.

    Attributes:
        timing: see Timing.
    """

    def __init__(self, database: Database, job: Job, timing: Timing, *, claimed_at: float) -> None:
        self._database = database
        self._job = job
        self.timing = timing
        self._claimed_at = claimed_at
        self._renewed_at = claimed_at
        self._looked_at = self._tried_at = claimed_at
        self._flushed_at: float | None = None  # what is told first is written at once
        self._lapsed_at: float | None = None
        self._lost = False
        self._cancel_requested = False
        self._failure: BaseException | None = None
        self._lines = UnwrittenLines(job.id, job.attempt)
        # Held while something is written, so that what the runner told is written once, and before the end.
        self._writing = threading.Lock()
        self._ending = threading.Event()
        self._wake = threading.Event()
        keep = partial(copy_context().run, self._keep)  # its log lines carry the ids of the attempt
        self._thread = threading.Thread(target=keep, name=f"lease-{job.id}.{job.attempt}", daemon=True)

    def __enter__(self) -> Lease:
        try:
            self._thread.start()
        except RuntimeError as error:  # this process may have no more threads
            self._failure = error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._wake.set()
        # A call to the database may hang; nothing is lost if it ends after the attempt.
        if self._thread.ident is not None:
            self._thread.join(timeout=_TICK_SECONDS)

    @property
    def lost(self) -> bool:
        """True once the database has said that the job is no longer this attempt's: write nothing more."""
        return self._lost

    @property
    def cancel_requested(self) -> bool:
        """True once the owner has asked to stop."""
        return self._cancel_requested

    @property
    def ends_at(self) -> float:
        """When the lease runs out, by ``boot_seconds``; the database, which started its clock later, says no sooner."""
        return self._renewed_at + self.timing.lease

    def over(self) -> bool:
        """True while the lease has run out and was not taken back: nothing may be computed meanwhile."""
        return boot_seconds() > self.ends_at

    def lapsed(self, within_seconds: float) -> bool:
        """True if the lease is over, or was taken back not longer ago than that."""
        return self.over() or (self._lapsed_at is not None and boot_seconds() - self._lapsed_at <= within_seconds)

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    def tell(self, line: ProgressLine | MetricLine | LogLine) -> None:
        """Take a line of the runner, to be written soon."""
        self._lines.add(line)
        if self._flushed_at is None:
            self._wake.set()

    def conclude(self, transition: Callable[[Session], bool]) -> bool:
        """End the attempt: what was told and not yet written, and the transition, in one transaction.

        Returns:
            What ``transition`` did; False if the job is no longer this attempt's.

        Raises:
            OperationalError, InterfaceError, TimeoutError: the database is away or full (DATABASE_AWAY).
        """
        if self._lost:
            return False
        if not self._writing.acquire(timeout=self.timing.lease):
            raise PoolTimeoutError("a call to the database does not come back")
        try:
            with self._database.write() as session:
                renewal = self._renew_in(session)
                return renewal.alive and transition(session)
        finally:
            self._writing.release()

    def _keep(self) -> None:
        try:
            while not self._lost:
                self._wake.wait(self._pause())
                if self._ending.is_set():
                    return
                self._wake.clear()
                self._act(boot_seconds())
        except BaseException as error:  # noqa: BLE001 - handed to the attempt's own thread, which raises it
            self._failure = error

    def _pause(self) -> float:
        timing = self.timing
        return min(_TICK_SECONDS, timing.renew / 4, timing.look, timing.flush_max, timing.again)

    def _act(self, now: float) -> None:
        timing = self.timing
        period = min(max(timing.flush, (now - self._claimed_at) / 100), timing.flush_max)
        if self._tried_at > self._renewed_at:  # the last try failed
            if now - self._tried_at >= timing.again:
                self._write()
        elif self._lines.waiting and (self._flushed_at is None or now - self._flushed_at >= period):
            self._flushed_at = now
            self._write()
        elif now - self._renewed_at >= timing.renew:
            self._write()
        elif now - self._looked_at >= timing.look:
            self._looked_at = now
            self._look()

    def _write(self) -> None:
        """Renew the lease and write what was told, in one transaction."""
        with self._writing:
            if self._ending.is_set():
                return
            started = self._tried_at = boot_seconds()
            try:
                with self._database.write() as session:
                    renewal = self._renew_in(session)
            except DATABASE_AWAY as error:
                log.warning("lease.database_away job_id=%s attempt=%d: %s", self._job.id, self._job.attempt, error)
                self._tried_at = boot_seconds()
                return
            if renewal.alive:
                self._lines.settle()
                if self.over():
                    self._lapsed_at = boot_seconds()
                self._renewed_at = started
            self._lost = not renewal.alive
            LEASES_LOST.inc(self._lost)
            self._cancel_requested = renewal.cancel_requested

    def _renew_in(self, session: Session) -> transitions.Renewal:
        renewal = transitions.renew(session, self._job.id, self._job.attempt, lease_seconds=self.timing.lease)
        if renewal.alive:
            self._lines.write(session)
        return renewal

    def _look(self) -> None:
        """Learn of a cancel (or of the loss of the job) without writing."""
        try:
            with self._database.read() as session:
                now = repository.attempt_status(session, self._job.id)
        except DATABASE_AWAY:
            return  # the next renewal judges
        if now is None or now.state != "running" or now.attempt != self._job.attempt:
            self._lost = not self._ending.is_set()  # after the end it is no news that the job does not run
            LEASES_LOST.inc(self._lost)
        else:
            self._cancel_requested = now.cancel_requested


class UnwrittenLines:
    """What a runner has told and the database does not know yet, in order: added by one thread, written by another.

    Args:
        job_id: of the job.
        attempt: whose lines they are.
    """

    def __init__(self, job_id: str, attempt: int) -> None:
        self._job_id = job_id
        self._attempt = attempt
        # Of each stage's progress only the newest.
        self._lines: list[ProgressLine | MetricLine | LogLine] = []
        self._written: list[ProgressLine | MetricLine | LogLine] = []
        self._lock = threading.Lock()

    @property
    def waiting(self) -> bool:
        """True if something was not written yet."""
        return bool(self._lines)

    def add(self, line: ProgressLine | MetricLine | LogLine) -> None:
        """Take a line; older progress of the same stage gives way."""
        with self._lock:
            if isinstance(line, ProgressLine):
                self._lines = [
                    item for item in self._lines if not (isinstance(item, ProgressLine) and item.stage == line.stage)
                ]
            self._lines.append(line)

    def write(self, session: Session) -> None:
        """Write all that waits; it goes on waiting until ``settle`` says that the transaction was committed."""
        with self._lock:
            self._written = list(self._lines)
        unwritten: list[events.Entry] = []
        for line in self._written:
            if not isinstance(line, ProgressLine):
                unwritten.append(_entry(line))
                continue
            if unwritten:
                events.append_all(session, self._job_id, self._attempt, unwritten)
                unwritten = []
            transitions.record_progress(session, self._job_id, self._attempt, line)
        if unwritten:
            events.append_all(session, self._job_id, self._attempt, unwritten)

    def settle(self) -> None:
        """What was written last is durable: forget it."""
        with self._lock:
            written = {id(line) for line in self._written}
            self._lines = [line for line in self._lines if id(line) not in written]
            self._written = []


def _entry(line: MetricLine | LogLine) -> events.Entry:
    if isinstance(line, MetricLine):
        return "metric", {"stage": line.stage, "step": line.step, **line.values}
    return "log", {"level": line.level, "message": line.message[:LOG_CHARS]}
