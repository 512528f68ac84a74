"""Ties a runner to its supervisor: without one, or without a lease, it computes for nobody and has to go.

Standard input tells. Its end means that the supervisor is gone. A line of one figure is the end of the lease, in
seconds of CLOCK_BOOTTIME, which all processes of a machine share: a supervisor that fell silent (stopped, or starved)
sends no new one, and some seconds later the runner ends itself, before or soon after another attempt begins elsewhere.
The other kind of line, "ended CODE", tells how the process ended that the runner has asked for.

A supervisor that lives but has no lease stops the runner's processes meanwhile (SIGSTOP), and sends the new end before
it lets them go on.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

# After the lease's end: time for a supervisor that lives to stop the runner, or to take the lease back.
GRACE_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_READ_BYTES = 4096
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
            data = os.read(self._descriptor, _READ_BYTES)
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
