"""A runner as its supervisor sees it: its process, its lines, what it is told, and how it is stopped and ended."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from pydantic import ValidationError

from service.contracts.errors import EngineError
from service.contracts.runner import LINE_ADAPTER, RunnerLine
from worker.tether import ended_line, lease_line

LINE_CAP_BYTES = 256 * 1024 * 1024
STDERR_CAP_BYTES = 64 * 1024
_QUEUED_LINES = 256


@dataclass(frozen=True)
class Started:
    """A process that was started, and this side of its channels.

    Attributes:
        process: its standard error is a pipe.
        lines: descriptor from which its lines are read.
        tether: descriptor of its standard input, which never blocks.
    """

    process: subprocess.Popen[bytes]
    lines: int
    tether: int

    def runner(self) -> RunnerProcess:
        """The same with its lines being read.

        Raises:
            RuntimeError: this process may have no more threads; the other one is gone.
        """
        return RunnerProcess(self.process, os.fdopen(self.lines, "rb"), self.tether)


class RunnerProcess:
    """A started runner. Lines are read in the background and handed out by ``next_line``."""

    def __init__(self, process: subprocess.Popen[bytes], lines: IO[bytes], tether: int) -> None:
        self._process = process
        self._tether: int | None = tether
        self._lines: queue.Queue[RunnerLine | EngineError | None] = queue.Queue(_QUEUED_LINES)
        self._ended = False
        self._closing = threading.Event()
        self._stderr = bytearray()
        self._stderr_lock = threading.Lock()
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

    def next_line(self, timeout_seconds: float) -> RunnerLine | None:
        """The next line, or None if none came in time or none will come.

        Raises:
            EngineError: the runner wrote something that is not a RunnerLine.
        """
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
            line = self.next_line(until - time.monotonic())
            if line is not None:
                yield line

    def tell_lease(self, ends_at: float) -> None:
        """Tell the runner until when it may go on, by ``worker.tether.boot_seconds``."""
        self._tell(lease_line(ends_at))

    def tell_ended(self, code: int) -> bool:
        """Tell the runner how the process ended that it has asked for; False: it reads nothing now, so try again."""
        return self._tell(ended_line(code))

    def freeze(self) -> None:
        """Stop the whole process group where it stands."""
        self._signal(signal.SIGSTOP, group=True)

    def thaw(self) -> None:
        """Let the whole process group go on."""
        self._signal(signal.SIGCONT, group=True)

    def terminate(self) -> None:
        """Ask the runner to stop."""
        self._signal(signal.SIGTERM, group=False)

    def kill(self) -> None:
        """End the whole process group at once and wait for the runner's end."""
        self._signal(signal.SIGKILL, group=True)
        self._process.wait()

    def close(self) -> None:
        """Leave nothing behind: no process of the group, no thread, no descriptor. Safe to call twice."""
        self._signal(signal.SIGKILL, group=True)
        self._process.wait()
        self._closing.set()
        if self._tether is not None:
            os.close(self._tether)
            self._tether = None
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=5)

    def stderr_tail(self, characters: int = 4000) -> str:
        """The last part of what the runner wrote to standard error."""
        self._threads[1].join(timeout=1)
        with self._stderr_lock:
            return self._stderr.decode(errors="replace")[-characters:]

    def _tell(self, line: bytes) -> bool:
        """False if a runner that does not read has the lines before this one still before it."""
        if self._tether is not None:
            try:
                os.write(self._tether, line)
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
                    self._put(
                        EngineError(
                            f"The runner wrote a line that cannot be read: {error.errors(include_url=False)[:1]}"
                        )
                    )
                    return
        self._put(None)

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - it is a pipe, see Sandbox.start
        with self._process.stderr as stream:
            while data := os.read(stream.fileno(), 8192):
                with self._stderr_lock:
                    self._stderr += data
                    del self._stderr[:-STDERR_CAP_BYTES]
