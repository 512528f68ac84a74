"""The supervisor's view of a runner: its process, its output, its input, and how it is stopped.

A runner makes no processes itself (see ``worker.confinement``). Where it asks for one, to try a written model that may
end its process, the supervisor starts that: both are stopped, let go on and ended together.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from service.contracts.errors import EngineError
from service.contracts.runner import LINE_ADAPTER, RunnerLine, TrialLine
from worker.runner_input import ended_line, lease_line

log = logging.getLogger(__name__)

LINE_CAP_BYTES = 256 * 1024 * 1024
STDERR_CAP_BYTES = 64 * 1024
_QUEUED_LINES = 256
# Between two looks at a trial.
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class StartedRunner:
    """A process that was started, and this side of its channels."""

    process: subprocess.Popen[bytes]  # its standard error is a pipe
    lines: int  # descriptor from which its lines are read
    stdin: int  # descriptor of its standard input, which never blocks

    def runner(self) -> RunnerProcess:
        """The same with its lines being read.

        Raises:
            RuntimeError: this process may have no more threads; the other one is gone.
        """
        return RunnerProcess(self.process, os.fdopen(self.lines, "rb"), self.stdin)


class RunnerProcess:
    """A started runner. Lines are read in the background and handed out by ``next_line``."""

    def __init__(self, process: subprocess.Popen[bytes], lines: IO[bytes], stdin: int) -> None:
        self._process = process
        self._stdin: int | None = stdin
        self._lines: queue.Queue[RunnerLine | EngineError | None] = queue.Queue(_QUEUED_LINES)
        self._ended = False
        self._closing = threading.Event()
        self._stderr = bytearray()
        self._stderr_lock = threading.Lock()
        self._start_trial: Callable[[Path], RunnerProcess] | None = None
        self._trial: RunnerProcess | None = None
        self._threads = (
            threading.Thread(target=self._read_lines, args=(lines,), name=f"lines-{process.pid}", daemon=True),
            threading.Thread(target=self._read_stderr, name=f"stderr-{process.pid}", daemon=True),
        )
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:  # this process may have no more threads: nobody would hear the runner
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group and session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, minus the signal's number if one ended it, None while it runs."""
        return self._process.poll()

    def groups(self) -> list[int]:
        """Ids of its process groups, that of its trial included."""
        return [process.pid for process in self._all()]

    def allow_trials(self, start: Callable[[Path], RunnerProcess]) -> None:
        """Have processes started that it asks for, one at a time; ``start`` takes the folder of the trial."""
        self._start_trial = start

    def next_line(self, timeout_seconds: float) -> RunnerLine | None:
        """The next line, or None if none came in time or none will come; one that asks for a trial has been heeded.

        Raises:
            EngineError: the runner wrote something that is not a RunnerLine, or asks for a trial that it may not have.
            OSError: no process could be made for a trial.
        """
        line = self._next_line(timeout_seconds if self._trial is None else min(timeout_seconds, _LOOK_SECONDS))
        if isinstance(line, TrialLine):
            if self._start_trial is None or self._trial is not None:
                raise EngineError("The runner tried to start a process that is not allowed.")
            self._trial = self._start_trial(Path(line.folder))
            log.info("runner.trial_started pid=%d runner=%d", self._trial.pid, self.pid)
        elif self._trial is not None:
            self._look_at(self._trial)
        return line

    def _next_line(self, timeout_seconds: float) -> RunnerLine | None:
        if self._ended:
            # Nothing more to read: wait for the exit instead of spinning.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(timeout_seconds, 0))
            return None
        try:
            line = self._lines.get(timeout=max(timeout_seconds, 0))
        except queue.Empty:
            return None
        if line is None:
            self._ended = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(timeout_seconds, 0))
        if isinstance(line, EngineError):
            self._ended = True
            raise line
        return line

    def remaining_lines(self, timeout_seconds: float = 5.0) -> Iterator[RunnerLine]:
        """After the exit: every line that was not handed out yet."""
        until = time.monotonic() + timeout_seconds
        while not self._ended and time.monotonic() < until:
            line = self._next_line(until - time.monotonic())
            if line is not None:
                yield line

    def tell_lease(self, ends_at: float) -> None:
        """Tell the runner until when it may go on, by ``worker.runner_input.boot_seconds``."""
        self._tell(lease_line(ends_at))

    def freeze(self) -> None:
        """Stop everything where it stands."""
        for process in self._all():
            process._signal(signal.SIGSTOP, group=True)

    def thaw(self) -> None:
        """Let everything go on."""
        for process in self._all():
            process._signal(signal.SIGCONT, group=True)

    def terminate(self) -> None:
        """Ask the runner to stop; its trial ends with it."""
        self._signal(signal.SIGTERM, group=False)

    def kill(self) -> None:
        """End everything at once and wait for that."""
        for process in self._all():
            process._signal(signal.SIGKILL, group=True)
            process._process.wait()

    def close(self) -> None:
        """Leave nothing behind: no process, no thread, no descriptor. Safe to call twice."""
        self.kill()
        for process in self._all():
            process._let_go()

    def _let_go(self) -> None:
        self._closing.set()
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=5)

    def stderr_tail(self, characters: int = 4000) -> str:
        """The last part of what the runner wrote to standard error."""
        self._threads[1].join(timeout=1)
        with self._stderr_lock:
            return self._stderr.decode(errors="replace")[-characters:]

    def _all(self) -> list[RunnerProcess]:
        return [self] if self._trial is None else [self, self._trial]

    def _look_at(self, trial: RunnerProcess) -> None:
        """Tell the runner if its trial has ended; one that reads nothing now is told at the next look."""
        code = trial.returncode
        if code is not None and self._tell(ended_line(code)):
            log.info("runner.trial_ended pid=%d exit=%d", trial.pid, code)
            trial.close()
            self._trial = None

    def _tell(self, line: bytes) -> bool:
        """False if a runner that does not read has the lines before this one still before it."""
        if self._stdin is not None:
            try:
                os.write(self._stdin, line)
            except BlockingIOError:
                return False
            except BrokenPipeError:  # one that has ended needs no line
                return True
        return True

    def _signal(self, number: signal.Signals, *, group: bool) -> None:
        # The group may outlive its leader; its id stays ours as long as the leader is not reaped or a member lives.
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self._process.pid, number)
            elif self._process.poll() is None:
                self._process.send_signal(number)

    def _put(self, item: RunnerLine | EngineError | None) -> None:
        # A full queue holds the runner back; it must not hold this thread once nobody reads any more.
        while not self._closing.is_set():
            with contextlib.suppress(queue.Full):
                self._lines.put(item, timeout=0.5)
                return

    def _read_lines(self, stream: IO[bytes]) -> None:
        with stream:
            while data := stream.readline(LINE_CAP_BYTES):
                if self._closing.is_set():
                    return
                try:
                    self._put(LINE_ADAPTER.validate_json(data))
                except ValidationError as error:
                    self._put(EngineError(f"The runner wrote an invalid line: {error.errors(include_url=False)[:1]}"))
                    return
        self._put(None)

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - it is a pipe, see Sandbox.start
        with self._process.stderr as stream:
            while data := os.read(stream.fileno(), 8192):
                with self._stderr_lock:
                    self._stderr += data
                    del self._stderr[:-STDERR_CAP_BYTES]
