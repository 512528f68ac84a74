"""GPU memory of the processes of one attempt, as the driver tells it."""

from __future__ import annotations

import logging
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

from worker.memory import group_pids

log = logging.getLogger(__name__)

_COMMAND = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
# A look starts a process that takes some tenths of a second.
PERIOD_SECONDS = 2.0
# A driver that hangs must not keep the watch from ending.
_ANSWER_SECONDS = 10.0
_MIB = 1024**2


class GpuWatch:
    """A thread that looks from time to time how much GPU memory the processes of an attempt hold; a context manager.

    It tells nothing where nvidia-smi is not installed, as with ROCm, or does not know the processes by their numbers
    here, as in a container that has numbers of its own.

    Args:
        groups: tells the process groups that there are now.
        period_seconds: between two looks.
    """

    def __init__(self, groups: Callable[[], Iterable[int]], *, period_seconds: float = PERIOD_SECONDS) -> None:
        self.peak_bytes: int | None = None  # the most so far; None: nobody has told
        self._groups = groups
        self._period = period_seconds
        self._program = shutil.which(_COMMAND[0])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-memory", daemon=True)

    def __enter__(self) -> GpuWatch:
        if self._program is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_ANSWER_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            try:
                told = subprocess.run(
                    [self._program or "", *_COMMAND[1:]],
                    capture_output=True,
                    text=True,
                    timeout=_ANSWER_SECONDS,
                    check=True,
                    stdin=subprocess.DEVNULL,
                ).stdout
            except (OSError, subprocess.SubprocessError) as error:
                log.warning("gpu_memory.unknown: nvidia-smi: %s", error)
                return
            found = bytes_of(told, {pid for group in self._groups() for pid in group_pids(group)})
            if found is not None:
                self.peak_bytes = max(found, self.peak_bytes or 0)


def bytes_of(table: str, pids: set[int]) -> int | None:
    """What some processes hold on all GPUs together.

    Args:
        table: of nvidia-smi: a line for each process and GPU, the process's number and MiB.
        pids: numbers of the processes.

    Returns:
        None if the table tells of none of them; a driver may also say that it does not know how much one holds.
    """
    rows = (line.split(",") for line in table.splitlines())
    held = [int(row[1]) for row in rows if len(row) == 2 and row[0].strip().isdigit() and row[1].strip().isdigit()
            and int(row[0]) in pids]  # fmt: skip
    return sum(held) * _MIB if held else None
