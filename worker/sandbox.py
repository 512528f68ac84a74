"""Starts the runner as a fresh process under limits, and ends it with everything it started.

The child is a new session and process group with an environment from an allow-list, the scratch folder as working
directory, rlimits, the controls of ``worker.confinement``, a death signal bound to this process, and three channels:
standard input (the end of the lease, see ``worker.tether``), descriptor 3 (RunnerLines) and standard error (kept up to
a cap).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from service import failpoints
from service.contracts.errors import EngineError
from service.contracts.runner import LINE_ADAPTER, RunnerLine
from worker import launcher
from worker.confinement.controls import LANDLOCK, Found, Mode, find_controls, switched_off
from worker.confinement.places import PACKAGE_ROOT, Places, import_root, rules_for
from worker.quantizer.graph.sizes import VARIABLE as LARGE_VARIABLE
from worker.tether import ended_line, lease_line

# -P: the scratch folder is the working directory and holds files that users named; nothing is imported from there.
RUNNER_COMMAND = (sys.executable, "-P", "-m", "worker.runner")
LINE_CAP_BYTES = 256 * 1024 * 1024
STDERR_CAP_BYTES = 64 * 1024
DEFAULT_FILE_BYTES = 64 * 1024**3
DEFAULT_OPEN_FILES = 1024
# Threads that a runner may have beside all that runs on the machine when it starts: the kernel counts those of the
# user.
DEFAULT_MORE_THREADS = 4096
# Virtual memory that a process reserves on top of what a job uses: libraries, thread stacks, allocator arenas.
RESERVED_BYTES = 2 * 1024**3
# How often a model may be mapped at once: by the job, by sessions of the runtime, and as what is made of it.
MAPPINGS = 8
# Of 1000: where memory runs out, the kernel ends a runner, not its worker or the database.
OOM_SCORE_ADJUSTMENT = 500

_KEPT_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "VIRTUAL_ENV",
    failpoints.VARIABLE,  # set by tests of faults only
    LARGE_VARIABLE,  # by tests of large models only
)
# Both CUDA and ROCm heed it.
GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
NO_GPUS = {GPU_VARIABLE: ""}
_LOADAVG = Path("/proc/loadavg")
_QUEUED_LINES = 256


@dataclass(frozen=True)
class Limits:
    """Limits of one runner process; None means none.

    Attributes:
        memory_bytes: memory that the job itself may use; the address space limit is this plus RESERVED_BYTES, and
            what it maps.
        mapped_bytes: address space for files that are mapped, whose pages the kernel takes back where it needs them.
        cpu_seconds: CPU time over all threads.
        file_bytes: largest file it may write.
        open_files: descriptors it may hold.
        more_threads: threads that its user may have beside those that the machine has now; root may have any number.
        gpus: False: it sees none.
        niceness: how far it stands back where CPU time is short (man 2 nice).
    """

    memory_bytes: int | None = None
    mapped_bytes: int = 0
    cpu_seconds: int | None = None
    file_bytes: int = DEFAULT_FILE_BYTES
    open_files: int = DEFAULT_OPEN_FILES
    more_threads: int = DEFAULT_MORE_THREADS
    gpus: bool = True
    niceness: int = 0

    def rlimits(self) -> dict[str, int]:
        """Names and values for setrlimit."""
        limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": self.file_bytes, "RLIMIT_NOFILE": self.open_files}
        limits["RLIMIT_NPROC"] = _machine_threads() + self.more_threads
        if self.memory_bytes is not None:
            limits["RLIMIT_AS"] = self.memory_bytes + RESERVED_BYTES + self.mapped_bytes
        if self.cpu_seconds is not None:
            limits["RLIMIT_CPU"] = max(1, self.cpu_seconds)
        return limits


def _machine_threads() -> int:
    """Threads of all processes of this machine: its load average names them behind the slash (man 5 proc_loadavg)."""
    return int(_LOADAVG.read_text().split()[3].partition("/")[2])


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


class Sandbox:
    """Knows how to start runners.

    Args:
        command: what to start; the task file's path is appended.
        variables: environment variables given to the runner in addition to the allow-list.
        cores: numbers of the cores that it is bound to; none: it may use all that this process may.
        mode: auto and require: under all controls that are here; off: under limits alone.
        places: what every runner may reach beside its scratch folder.
    """

    def __init__(
        self,
        command: Sequence[str] = RUNNER_COMMAND,
        *,
        variables: Mapping[str, str] | None = None,
        cores: Sequence[int] = (),
        mode: Mode = "auto",
        places: Places | None = None,
    ) -> None:
        self._command = tuple(command)
        self._variables = dict(variables or {})
        self._cores = tuple(cores)
        self._mode = mode
        self._places = Places() if places is None else places

    def running(self, command: Sequence[str]) -> Sandbox:
        """The same one for another command."""
        return Sandbox(command, variables=self._variables, cores=self._cores, mode=self._mode, places=self._places)

    def controls(self) -> Found:
        """Those that hold the runners.

        Raises:
            OSError: they could not be looked for.
        """
        return switched_off() if self._mode == "off" else find_controls()

    def environment(self, scratch: Path, *, confined: bool = False) -> dict[str, str]:
        """The runner's whole environment: no settings, no keys, no addresses of ours."""
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        environment |= {
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "PYTHONPATH": str(import_root(scratch) if confined else PACKAGE_ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            # On a machine with many cores the allocator would reserve more address space than the limit leaves.
            "MALLOC_ARENA_MAX": "8",
        }
        return environment | self._variables

    def start(
        self,
        task_file: Path,
        *,
        scratch: Path,
        limits: Limits,
        lease_ends_at: float | None = None,
        places: Places | None = None,
    ) -> RunnerProcess:
        """Start a runner on ``task_file``, with ``scratch`` as its working directory.

        Args:
            task_file: what it is to do.
            scratch: exists.
            limits: see Limits.
            lease_ends_at: what it is told from the start, see ``RunnerProcess.tell_lease``; None: nothing.
            places: what this one may reach beside its scratch folder.

        Raises:
            OSError: no process or pipe could be made.
        """
        found = self.controls()
        command = [*self._command, str(task_file)]
        reached = self._places + (places or Places()) + Places(writable=tuple(failpoints.waiting_places()))
        confined = found.has(LANDLOCK)
        rules = rules_for(command, scratch, reached, gpus=limits.gpus) if confined else []
        read_fd, write_fd = os.pipe()
        try:
            told_fd, tether_fd = os.pipe()
        except OSError:
            os.close(read_fd)
            os.close(write_fd)
            raise
        os.set_blocking(tether_fd, False)
        if lease_ends_at is not None:
            os.write(tether_fd, lease_line(lease_ends_at))
        spec: dict[str, Any] = {
            "parent": os.getpid(),
            "death_signal": signal.SIGKILL,
            "limits": limits.rlimits(),
            "line_fd": write_fd,
            "oom_score_adj": OOM_SCORE_ADJUSTMENT,
            "cores": self._cores,
            "niceness": limits.niceness,
            "controls": found.spec(rules),
        }
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher.__file__, json.dumps(spec), *command],
                cwd=scratch,
                env=self.environment(scratch, confined=confined) | ({} if limits.gpus else NO_GPUS),
                stdin=told_fd,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(write_fd,),
                start_new_session=True,
            )
        except BaseException:
            os.close(read_fd)
            os.close(tether_fd)
            raise
        finally:
            os.close(write_fd)
            os.close(told_fd)
        return RunnerProcess(process, os.fdopen(read_fd, "rb"), tether_fd)
