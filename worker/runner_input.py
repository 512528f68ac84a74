"""Standard input of a runner: its job, its lease, and whether its supervisor is alive.

The line says what ``worker.launcher`` is told of a runner whose job is known: limits, controls, environment, folder.
The runner puts itself under all that before it reads anything else, and says so on descriptor 3. From then on it is the
runner of this job and of no other. One that cannot do so ends; its supervisor starts another then, under the launcher.

Landlock and seccomp hold the thread that asks for them: a process that has more than one is refused.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from worker import launcher

# What it says on descriptor 3, as the only words there that are no lines of the runner's protocol: it has loaded all
# that it needs; it is held as its job's runner must be.
READY, BEGUN = b"ready\n", b"begun\n"
_READ_BYTES = 65536
_THREADS = Path("/proc/self/task")
# Path of a file, and what changes when it is written or replaced.
_Stamp = tuple[str, int, int, int]


class UnfitSpareError(Exception):
    """The runner cannot do a job any more, or not as one should that was started for it."""


def assignment_line(
    task_file: str,
    *,
    scratch: Path,
    environment: Mapping[str, str],
    limits: Mapping[str, int],
    controls: Mapping[str, Any],
) -> bytes:
    """What the supervisor writes.

    Args:
        task_file: what the runner is to do.
        scratch: its working directory from then on.
        environment: variables, in addition to those that it has, and in their place.
        limits: as ``launcher.set_limits`` takes them.
        controls: as ``launcher.confine`` takes them.
    """
    told = {
        "task_file": task_file,
        "scratch": str(scratch),
        "environment": dict(environment),
        "limits": dict(limits),
        "controls": dict(controls),
    }
    return json.dumps(told).encode() + b"\n"


def await_assignment(descriptor: int = 0) -> str:
    """Wait for a job, and be held as it says; gives its task file. Ends the process where the supervisor ends first.

    Args:
        descriptor: where the supervisor writes.

    Raises:
        UnfitError: what was loaded has been replaced meanwhile, or there is more than one thread.
        OSError: a limit or a control cannot be had.
    """
    loaded = set(_loaded_files())
    os.write(launcher.LINE_FD, READY)
    line = _read_line(descriptor)
    if not line:
        os._exit(0)
    if loaded != set(_stamps(path for path, *_ in loaded)):
        raise UnfitSpareError("its program was replaced")
    if (threads := len(list(_THREADS.iterdir()))) > 1:
        raise UnfitSpareError(f"it has {threads} threads, of which it could confine one")
    return _be_held(json.loads(line))


def _be_held(told: dict[str, Any]) -> str:
    launcher.set_limits(told["limits"])
    before, environment = os.environ.get("PYTHONPATH"), told["environment"]
    os.environ.update(environment)
    sys.path[:] = [environment["PYTHONPATH"] if entry == before else entry for entry in sys.path]
    os.chdir(told["scratch"])
    launcher.confine(told["controls"])
    os.write(launcher.LINE_FD, BEGUN)
    task_file: str = told["task_file"]
    return task_file


def _read_line(descriptor: int) -> bytes:
    """The first line, without its end; nothing where the input ends before it does.

    The supervisor writes nothing more before it is answered.
    """
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(descriptor, _READ_BYTES)
        if not more:
            return b""
        data += more
    return data


def _loaded_files() -> Iterator[_Stamp]:
    """The files of all modules of this process."""
    # not by getattr: it would load modules that wait to be used, see worker.quantizer
    files = (vars(module).get("__file__") for module in list(sys.modules.values()) if hasattr(module, "__dict__"))
    return _stamps({file for file in files if file})


def _stamps(paths: Iterable[str]) -> Iterator[_Stamp]:
    """Those of the files that are there."""
    for path in paths:
        try:
            found = os.stat(path)  # noqa: PTH116 - of some thousand files
        except OSError:
            continue
        yield path, found.st_mtime_ns, found.st_size, found.st_ino


# Ties a runner to its supervisor: without one, or without a lease, it computes for nobody and has to go.
#
# Standard input tells. Its end means that the supervisor is gone. A line of one figure is the end of the lease, in
# seconds of CLOCK_BOOTTIME, which all processes of a machine share: a supervisor that fell silent (stopped, or starved)
# sends no new one, and some seconds later the runner ends itself, before or soon after another attempt begins
# elsewhere. The other kind of line, "ended CODE", tells how the process ended that the runner has asked for.
#
# A supervisor that lives but has no lease stops the runner's processes meanwhile (SIGSTOP), and sends the new end
# before it lets them go on.

# After the lease's end: time for a supervisor that lives to stop the runner, or to take the lease back.
GRACE_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_LINE_BYTES = 4096
_ENDED = b"ended "


def boot_seconds() -> float:
    """Seconds since this machine started, also those that it slept through."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def lease_line(ends_at: float) -> bytes:
    """What the supervisor writes: the lease's end, by ``boot_seconds``."""
    return f"{ends_at:.3f}\n".encode()


def ended_line(code: int) -> bytes:
    """What the supervisor writes: the exit code of the process asked for, or minus the signal that ended it."""
    return _ENDED + f"{code}\n".encode()


class ParentWatch:
    """Watches ``descriptor`` in a thread, and calls ``cut`` once at the end.

    Args:
        descriptor: where the supervisor writes.
        cut: what ends the runner.
        ended: takes the exit code of each process asked for.
        grace_seconds: how long it may go on after its lease.
        clock: seconds, as in the lines.
    """

    def __init__(
        self,
        descriptor: int,
        cut: Callable[[], None],
        ended: Callable[[int], None] | None = None,
        *,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._descriptor = descriptor
        self._cut = cut
        self._ended = ended
        self._grace = grace_seconds
        self._clock = clock
        self._ends_at: float | None = None  # no line, no lease that could end: a runner that a person started
        self._rest = b""

    def start(self) -> None:
        """Watch from now on."""
        threading.Thread(target=self._watch, name="parent-watch", daemon=True).start()

    def _watch(self) -> None:
        while self._read(_LOOK_SECONDS):
            # The time is taken before the lines are read: whatever stops this process in between, a lease that was
            # taken back meanwhile is seen before the old one is judged.
            now = self._clock()
            if not self._read(0.0) or (self._ends_at is not None and now > self._ends_at + self._grace):
                break
        self._cut()

    def _read(self, wait_seconds: float) -> bool:
        """Take what has come; False at the end of the input."""
        while select.select([self._descriptor], [], [], wait_seconds)[0]:
            data = os.read(self._descriptor, _LINE_BYTES)
            if not data:
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(_ENDED):
                    self._ends_at = float(line)
                elif self._ended is not None:
                    self._ended(int(line.removeprefix(_ENDED)))
            wait_seconds = 0.0
        return True
