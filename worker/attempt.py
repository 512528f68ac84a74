"""Supervises the runner of one claimed attempt until its end: reads its output, and stops it if necessary.

Nothing here talks to the database, which may hang: that is the business of the lease's own thread. What the runner may
do is judged by the lease's end on this machine's clock. Beyond it the runner's processes are stopped where they stand,
so that nothing is computed unsupervised and nothing is lost; they go on once the lease was taken back, and end if the
job is somebody else's, or if it takes too long.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from service.contracts.errors import EngineError, Problem
from service.contracts.runner import ErrorLine, LogLine, MetricLine, ProgressLine, RunnerLine, TrialLine
from service.tables import Job
from service.tables.jobs import UPLOAD_KINDS
from worker.faults import has_room, no_room
from worker.lease import DATABASE_AWAY, Lease, Timing
from worker.memory import MemoryWatch, group_cpu_seconds
from worker.outcome import Ending, Result, StopReason
from worker.runner import CANCEL_FLAG
from worker.runner_input import GRACE_SECONDS, boot_seconds
from worker.runner_process import RunnerProcess
from worker.sandbox import InspectionBudget
from worker.stages import StageSpans

__all__ = ["DATABASE_AWAY", "AttemptWatch", "Lease", "Timing"]

log = logging.getLogger(__name__)

_MEMORY_SECONDS = 0.25
_LAPSE_SECONDS = 3 * GRACE_SECONDS


class AttemptWatch:
    """Watches one runner.

    Args:
        process: the runner.
        lease: the right to write.
        job: as claimed.
        deadline_at: when it has to be over, by ``boot_seconds``; None: never.
        stopping: True once the worker shuts down.
        scratch: the runner's folder, where it looks for the cancel flag.
        memory: follows the runner's; None: nobody does.
        budget: of an inspection; None: it is none.
    """

    def __init__(
        self,
        process: RunnerProcess,
        lease: Lease,
        job: Job,
        *,
        deadline_at: float | None,
        stopping: Callable[[], bool],
        scratch: Path,
        memory: MemoryWatch | None = None,
        budget: InspectionBudget | None = None,
    ) -> None:
        self._process = process
        self._lease = lease
        self._job = job
        self._stopping = stopping
        self._scratch = scratch
        self._memory = memory
        self._ends = deadline_at
        self._budget = budget
        self._cpu_seconds = 0.0
        self._measured_at = boot_seconds()
        # By the clock that stands still while the machine sleeps: its runner says and does nothing then.
        self._heard_at = time.monotonic()
        self._budget_ends = None if budget is None else self._heard_at + budget.wall_seconds
        self._silence_seconds = 0.0
        self._kill_at: float | None = None
        self._frozen_at: float | None = None
        self._told_end = lease.ends_at
        self._stopped: StopReason | None = None
        self._last: Result | ErrorLine | None = None
        self._stages = StageSpans()
        self._heard = False

    def to_end(self) -> Ending:
        """Run until the runner has ended, whatever it takes; the process group is gone afterwards."""
        try:
            while self._process.returncode is None:
                self._step()
            # Both may have woken from a long stop together: the runner saw that it had no lease, we took it back.
            lease_over = self._lease.lapsed(_LAPSE_SECONDS)
            self._read_rest()
            memory = self._memory_problem()
        finally:
            self._stages.end()
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
            validates=self._job.kind in UPLOAD_KINDS,
            lease_over=lease_over,
            memory=memory,
            storage=None if has_room(self._scratch) else no_room(self._scratch).problem(),
            heard=self._heard,
            within_share=self._memory is not None and not self._memory.near_share(),
            budget=self._budget,
            cpu_seconds=self._cpu_seconds,
        )

    def _step(self) -> None:
        # until something is due: short while there is a stop to enforce
        timing, most_seconds = self._lease.timing, 0.1 if self._kill_at is not None else 0.25
        try:
            line = self._process.next_line(min(most_seconds, timing.renew / 4, timing.look))
        except EngineError as error:
            log.warning("runner.protocol job_id=%s: %s", self._job.id, error.detail)
            self._kill(StopReason.PROTOCOL)
            return
        if line is not None:
            self._take(line)
        now = boot_seconds()
        self._lease.check()
        self._mind_lease(now)
        self._judge(now)

    def _take(self, line: RunnerLine) -> None:
        self._heard_at = time.monotonic()
        self._heard = True
        if isinstance(line, ProgressLine):
            self._stages.enter(line.stage)
        if isinstance(line, ProgressLine | MetricLine | LogLine):
            self._lease.tell(line)
        elif not isinstance(line, TrialLine):
            self._last = line

    def _mind_lease(self, now: float) -> None:
        """Stop the runner where the lease ends, let it go on once it was taken back; and tell it the new end."""
        if self._lease.ends_at != self._told_end:
            self._told_end = self._lease.ends_at
            self._process.tell_lease(self._told_end)
        over = self._lease.over()
        if over and self._frozen_at is None:
            log.warning("runner.frozen job_id=%s attempt=%d: the lease is over", self._job.id, self._job.attempt)
            self._process.freeze()
            self._frozen_at, self._silence_seconds = now, time.monotonic() - self._heard_at
        elif not over and self._frozen_at is not None:
            log.warning("runner.thawed job_id=%s attempt=%d", self._job.id, self._job.attempt)
            # meanwhile it was not silent of its own will, and had no use of its time
            heard_at = time.monotonic() - self._silence_seconds
            if self._budget_ends is not None:
                self._budget_ends += heard_at - self._heard_at
            self._heard_at, self._frozen_at = heard_at, None
            self._process.thaw()

    def _judge(self, now: float) -> None:
        """Stop the runner for good if there is a reason to."""
        if self._lease.lost:
            self._kill(StopReason.FENCED)
        elif self._beyond_memory(now):
            self._kill(StopReason.MEMORY)
        elif self._ends is not None and now >= self._ends:
            self._kill(StopReason.DEADLINE)
        elif self._frozen_at is not None:
            self._judge_frozen(now)
        elif self._budget_ends is not None and time.monotonic() >= self._budget_ends:
            self._cpu_seconds = group_cpu_seconds(self._process.pid)
            self._kill(StopReason.BUDGET)
        elif time.monotonic() - self._heard_at >= self._lease.timing.stall:
            self._kill(StopReason.STALLED)
        elif self._kill_at is not None:
            if now >= self._kill_at:
                self._process.kill()
        elif self._lease.cancel_requested:
            self._cancel()
        elif self._stopping():
            self._ask_to_stop(StopReason.SHUTDOWN, self._lease.timing.shutdown_grace)

    def _judge_frozen(self, now: float) -> None:
        """One that stands still cannot be asked to stop; what it has finished lies in its checkpoints."""
        assert self._frozen_at is not None  # noqa: S101 - the caller looked
        if self._kill_at is not None:
            self._process.kill()
        elif self._lease.cancel_requested:
            self._kill(StopReason.CANCELED)
        elif self._stopping():
            self._kill(StopReason.SHUTDOWN)
        elif now - self._frozen_at >= self._lease.timing.frozen:
            self._kill(StopReason.AWAY)

    def _beyond_memory(self, now: float) -> bool:
        if self._memory is None or now - self._measured_at < _MEMORY_SECONDS:
            return False
        self._measured_at = now
        return self._memory.look()

    def _memory_problem(self) -> Problem | None:
        """What to tell of memory, if that is what ended the runner."""
        if self._memory is None or not (self._stopped is StopReason.MEMORY or self._memory.explains_kill()):
            return None
        return self._memory.error().problem()

    def _cancel(self) -> None:
        try:
            # not through a link that the runner may have put there
            os.close(
                os.open(self._scratch / CANCEL_FLAG, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            )
        except OSError as error:  # a full disk must not keep a canceled job running
            log.warning("runner.no_cancel_flag job_id=%s: %s", self._job.id, error)
            self._kill(StopReason.CANCELED)
        else:
            self._ask_to_stop(StopReason.CANCELED, self._lease.timing.cancel_grace)

    def _ask_to_stop(self, reason: StopReason, grace_seconds: float) -> None:
        self._stopped = reason
        self._kill_at = boot_seconds() + grace_seconds
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
