"""One claimed attempt of a job: from its scratch folder to the end of its runner.

The lease is the right to write. It is renewed for as long as the runner works; once a renewal says that the job is no
longer ours, or none came through in time, the runner is killed and nothing more is written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from service.contracts.errors import EngineError
from service.contracts.runner import ErrorLine, LogLine, MetricLine, ProgressLine, RunnerLine
from service.db import Database
from service.jobs import events, repository, transitions
from service.tables import Job
from worker.outcome import Ending, Result, StopReason
from worker.runner import CANCEL_FLAG
from worker.sandbox import RunnerProcess

log = logging.getLogger(__name__)

LOG_CHARS = 4000
# The database cannot be reached just now; what was asked of it may be asked again.
DATABASE_AWAY = (OperationalError, InterfaceError, PoolTimeoutError)


@dataclass(frozen=True)
class Timing:
    """Periods of an attempt, in seconds.

    Attributes:
        lease: for how long a renewal is good.
        renew: time between renewals while nothing else is written.
        look: time between looks at the job's row, for a cancel.
        flush: shortest time between two writes of progress; grows to a hundredth of the attempt's age.
        flush_max: longest time between two writes of progress.
        stall: silence after which the runner counts as stalled.
        cancel_grace: time that a canceled runner has before it is killed.
        shutdown_grace: time that an interrupted runner has before it is killed.
    """

    lease: float = 60.0
    renew: float = 10.0
    look: float = 1.0
    flush: float = 0.5
    flush_max: float = 5.0
    stall: float = 3600.0
    cancel_grace: float = 5.0
    shutdown_grace: float = 10.0


class Lease:
    """The right to write for one attempt.

    Args:
        database: where the job is.
        job: as claimed.
        timing: see Timing.
        claimed_at: when the claim was sent, on this process's monotonic clock.
    """

    def __init__(self, database: Database, job: Job, timing: Timing, *, claimed_at: float) -> None:
        self._database = database
        self._job = job
        self._timing = timing
        self.renewed_at = claimed_at
        self.lost = False
        self.cancel_requested = False

    def write(self, action: Callable[[Session], None] | None = None) -> bool:
        """Renew the lease and do ``action`` in the same transaction.

        A database that cannot be reached is tried again at the next call, until the lease must have run out.

        Returns:
            True if it was written; False if the lease is lost or the database is away.
        """
        if self.lost:
            return False
        started = time.monotonic()
        try:
            with self._database.write() as session:
                renewal = transitions.renew(session, self._job.id, self._job.attempt, lease_seconds=self._timing.lease)
                if renewal.alive and action is not None:
                    action(session)
        except DATABASE_AWAY as error:
            log.warning("lease.database_away job_id=%s attempt=%d: %s", self._job.id, self._job.attempt, error)
            self.lost = self.run_out()
            return False
        self.renewed_at = started
        self.lost = not renewal.alive
        self.cancel_requested = renewal.cancel_requested
        return renewal.alive

    def run_out(self) -> bool:
        """True if the lease is over by this process's own clock, which started before the database's did."""
        return time.monotonic() - self.renewed_at > self._timing.lease

    def look(self) -> None:
        """Learn of a cancel (or of the loss of the job) without writing."""
        try:
            with self._database.read() as session:
                job = repository.find(session, self._job.id)
        except DATABASE_AWAY:
            return  # the next renewal judges
        if job is None or job.state != "running" or job.attempt != self._job.attempt:
            self.lost = True
        else:
            self.cancel_requested = job.cancel_requested_at is not None


class Watch:
    """Watches one runner to its end: reads its lines, keeps the lease, and stops it where it must.

    Args:
        process: the runner.
        lease: the right to write.
        job: as claimed.
        timing: see Timing.
        deadline_seconds: time left for this attempt; None: no end.
        stopping: True once the worker shuts down.
        flag_folder: where the runner looks for the cancel flag.
    """

    def __init__(
        self,
        process: RunnerProcess,
        lease: Lease,
        job: Job,
        *,
        timing: Timing,
        deadline_seconds: float | None,
        stopping: Callable[[], bool],
        flag_folder: Path,
    ) -> None:
        self._process = process
        self._lease = lease
        self._job = job
        self._timing = timing
        self._stopping = stopping
        self._flag = flag_folder / CANCEL_FLAG
        self._started = time.monotonic()
        self._ends = None if deadline_seconds is None else self._started + deadline_seconds
        self._heard_at = self._looked_at = self._flushed_at = self._started
        self._kill_at: float | None = None
        self._stopped: StopReason | None = None
        self._last: Result | ErrorLine | None = None
        # Lines that were read but not written yet, in order; of each stage's progress only the newest.
        self._backlog: list[ProgressLine | MetricLine | LogLine] = []

    def to_end(self) -> Ending:
        """Run until the runner has ended, whatever it takes; the process group is gone afterwards."""
        try:
            while self._process.returncode is None:
                self._step()
            self._read_rest()
            self._flush()
        finally:
            self._process.close()
        code = self._process.returncode
        assert code is not None  # noqa: S101 - close() waits for it
        if self._lease.lost:
            self._stopped = StopReason.FENCED
        return Ending(
            returncode=code,
            last_line=self._last,
            stopped=self._stopped,
            stderr_tail=self._process.stderr_tail(),
            charged_attempts=self._job.attempt - self._job.interruptions,
            max_attempts=self._job.max_attempts,
        )

    def _step(self) -> None:
        try:
            line = self._process.next_line(self._pause())
        except EngineError as error:
            log.warning("runner.protocol job_id=%s: %s", self._job.id, error.detail)
            self._kill(StopReason.PROTOCOL)
            return
        if line is not None:
            self._take(line)
        now = time.monotonic()
        self._keep_lease(now)
        self._judge(now)

    def _pause(self) -> float:
        """Seconds until something is due: short while there is something to flush, or a stop to enforce."""
        pending = bool(self._backlog) or self._kill_at is not None
        return min(0.1 if pending else 0.25, self._timing.renew / 4, self._timing.look)

    def _take(self, line: RunnerLine) -> None:
        self._heard_at = time.monotonic()
        if isinstance(line, ProgressLine):
            stale = (item for item in self._backlog if isinstance(item, ProgressLine) and item.stage == line.stage)
            for item in list(stale):
                self._backlog.remove(item)
        if isinstance(line, ProgressLine | MetricLine | LogLine):
            self._backlog.append(line)
        else:
            self._last = line

    def _keep_lease(self, now: float) -> None:
        age = now - self._started
        period = min(max(self._timing.flush, age / 100), self._timing.flush_max)
        if self._backlog and now - self._flushed_at >= period:
            self._flush()
        elif now - self._lease.renewed_at >= self._timing.renew:
            self._lease.write()
        elif now - self._looked_at >= self._timing.look:
            self._looked_at = now
            self._lease.look()

    def _judge(self, now: float) -> None:
        """Stop the runner if there is a reason to."""
        if self._lease.lost:
            self._kill(StopReason.FENCED)
        elif self._ends is not None and now >= self._ends:
            self._kill(StopReason.DEADLINE)
        elif now - self._heard_at >= self._timing.stall:
            self._kill(StopReason.STALLED)
        elif self._kill_at is not None:
            if now >= self._kill_at:
                self._process.kill()
        elif self._lease.cancel_requested:
            self._flag.touch()
            self._ask_to_stop(StopReason.CANCELED, self._timing.cancel_grace)
        elif self._stopping():
            self._ask_to_stop(StopReason.SHUTDOWN, self._timing.shutdown_grace)

    def _ask_to_stop(self, reason: StopReason, grace_seconds: float) -> None:
        self._stopped = reason
        self._kill_at = time.monotonic() + grace_seconds
        self._process.terminate()

    def _kill(self, reason: StopReason) -> None:
        self._stopped = reason
        self._process.kill()

    def _read_rest(self) -> None:
        try:
            for line in self._process.remaining_lines():
                self._take(line)
        except EngineError:
            self._stopped = self._stopped or StopReason.PROTOCOL

    def _flush(self) -> None:
        """Write what was heard since the last time."""
        self._flushed_at = time.monotonic()
        if self._backlog and self._lease.write(self._write):
            self._backlog.clear()

    def _write(self, session: Session) -> None:
        job_id, attempt = self._job.id, self._job.attempt
        unwritten: list[events.Entry] = []
        for line in self._backlog:
            if not isinstance(line, ProgressLine):
                unwritten.append(_entry(line))
                continue
            if unwritten:
                events.append_all(session, job_id, attempt, unwritten)
                unwritten = []
            transitions.record_progress(session, job_id, attempt, line)
        if unwritten:
            events.append_all(session, job_id, attempt, unwritten)


def _entry(line: MetricLine | LogLine) -> events.Entry:
    """What the job's log tells of a line."""
    if isinstance(line, MetricLine):
        return "metric", {"stage": line.stage, "step": line.step, **line.values}
    return "log", {"level": line.level, "message": line.message[:LOG_CHARS]}
