"""Memory and threads of this machine and of a job, read from the kernel."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from service.contracts.errors import ResourceLimitError

if TYPE_CHECKING:  # runners need nothing but a sentence from here, and settings take long to import
    from service.settings import Settings


_MIB = 1024**2
# Left for the rest of the machine: a tenth, within these bounds, and never more than half.
_RESERVE_SHARE = 10
_RESERVE_BYTES = (512 * _MIB, 4096 * _MIB)
_LEAST_SHARE_BYTES = 64 * _MIB
_LEAST_INSPECTION_BYTES = 1024 * _MIB
# A spare runner, which holds some 100 MiB, is kept where a slot has so many times as much.
_SPARE_SHARE_BYTES = 2048 * _MIB
# A runner that took so much of its share when a SIGKILL came from nowhere was ended for its memory.
NEAR_SHARE = 0.8
HINT = "Use fewer calibration samples or a smaller model, or raise QUANTMILL_JOB_MEMORY_BYTES."
_KERNEL_HINT = "Use fewer calibration samples or a smaller model, or give the worker more memory or fewer slots."

_PROC = Path("/proc")
# Fields of /proc/PID/stat after the name: group; user and system time, of itself and of children, in ticks.
_GROUP, _TIMES = 2, slice(11, 15)
_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def machine_memory_bytes() -> int:
    """Memory of this machine, or the smallest limit of a container around this process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in _cgroups():
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # of the other version, or "max"
                total = min(total, int((folder / name).read_text()))
    return total


def job_memory_bytes(settings: Settings) -> int:
    """What one job of a worker with these settings may take; never more than there is, whatever was asked for."""
    if settings.job_memory_bytes is not None:
        return min(settings.job_memory_bytes, machine_memory_bytes())
    return share_bytes(max(settings.host_slots, settings.worker_slots))


def inspection_slots(settings: Settings) -> int:
    """How many inspections run at a time beside the jobs: as many as are asked for, while each has a gibibyte."""
    return max(1, min(settings.inspection_slots, share_bytes(settings.worker_slots + 1) // _LEAST_INSPECTION_BYTES))


def has_room_for_spares(settings: Settings) -> bool:
    """True if each slot is to have a spare runner: nobody is against it, and a job's share is many times as large."""
    share = share_bytes(max(settings.host_slots, settings.worker_slots))
    return settings.spare_runners and min(share, job_memory_bytes(settings)) >= _SPARE_SHARE_BYTES


def as_one_job(settings: Settings) -> Settings:
    """Settings of a worker that only inspects, whose slots share what one job may take."""
    if settings.job_memory_bytes is not None:
        return settings
    share = share_bytes(max(settings.host_slots, 1)) // settings.worker_slots
    return settings.model_copy(update={"job_memory_bytes": max(share, _LEAST_SHARE_BYTES)})


def share_bytes(slots: int, total_bytes: int | None = None) -> int:
    """What one of ``slots`` jobs may take.

    Args:
        slots: jobs that run at once.
        total_bytes: to divide; None: what the machine has.
    """
    total = machine_memory_bytes() if total_bytes is None else total_bytes
    reserve = min(max(total // _RESERVE_SHARE, _RESERVE_BYTES[0]), _RESERVE_BYTES[1], total // 2)
    return max((total - reserve) // slots, _LEAST_SHARE_BYTES)


def group_bytes(group: int) -> int:
    """Memory that the processes of a group hold and nobody else could use: anonymous and shared, no mapped files."""
    return _bytes_of(_members(group))


def group_cpu_seconds(group: int) -> float:
    """CPU time of the processes of a group, and of those of their children that they have waited for."""
    return _cpu_seconds_of(_members(group))


def oom_kills() -> int:
    """How many processes the kernel has ended for want of memory around this process since it counts."""
    for folder in _cgroups():
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                return _figure(folder / name, "oom_kill")
    with contextlib.suppress(OSError):
        return _figure(_PROC / "vmstat", "oom_kill")
    return 0


def group_pids(group: int) -> set[int]:
    """Numbers of the processes of a group."""
    return {int(folder.name) for folder, _ in _members(group)}


class MemoryWatch:
    """Follows the memory of the processes of one attempt, and their CPU time.

    Args:
        groups: tells the process groups that there are now.
        limit_bytes: their share.
    """

    def __init__(self, groups: Callable[[], Iterable[int]], limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._groups = groups
        self._cpu_before = {group: group_cpu_seconds(group) for group in groups()}
        self._cpu_seconds: dict[int, float] = {}
        self._kills_before = oom_kills()

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all that there have been, as far as they were seen, since the watch was made."""
        return sum(seconds - self._cpu_before.get(group, 0.0) for group, seconds in self._cpu_seconds.items())

    def look(self) -> bool:
        """Measure; True if they are beyond their share."""
        used_bytes = 0
        for group in self._groups():
            members = list(_members(group))
            used_bytes += _bytes_of(members)
            self._cpu_seconds[group] = max(self._cpu_seconds.get(group, 0.0), _cpu_seconds_of(members))
        self.used_bytes = used_bytes or self.used_bytes  # 0: they have ended, and what they had counts
        return self.used_bytes > self.limit_bytes

    def near_share(self) -> bool:
        """True if it came near its share, as far as it was seen."""
        return self.used_bytes >= NEAR_SHARE * self.limit_bytes

    def explains_kill(self) -> bool:
        """True if a SIGKILL from elsewhere was for memory: the kernel counts one more, or it was near its share."""
        return oom_kills() > self._kills_before or self.near_share()

    def error(self) -> ResourceLimitError:
        """What the owner of the job is told: it went beyond its share, or the kernel had no more before that."""
        if self.near_share():
            told, hint = f"The job needs more memory than its limit of {self.limit_bytes} bytes", HINT
        else:
            told, hint = "The machine ran out of memory and the kernel killed the job", _KERNEL_HINT
        return ResourceLimitError(
            f"{told}; it used {self.used_bytes} bytes when last measured.",
            hint=hint,
            resource="memory",
            limit_bytes=self.limit_bytes,
            used_bytes=self.used_bytes,
        )


# A process: its folder, and the fields of its ``stat`` after the name.
_Member = tuple[Path, list[str]]


def _members(group: int) -> Iterator[_Member]:
    """The processes of a group; all processes of the machine are looked at for it."""
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            fields = _stat(folder)
            if fields and fields[_GROUP] == str(group):
                yield folder, fields


def _bytes_of(members: Iterable[_Member]) -> int:
    return sum(_process_bytes(folder) for folder, _ in members)


def _cpu_seconds_of(members: Iterable[_Member]) -> float:
    return sum(sum(map(int, fields[_TIMES])) for _, fields in members) / os.sysconf("SC_CLK_TCK")


def _stat(folder: Path) -> list[str]:
    """Fields of a process after its name, which may hold anything, also brackets; none for one that has ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _process_bytes(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for line in (folder / "status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def _figure(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        word, _, value = line.partition(" ")
        if word == name:
            return int(value)
    return 0


def _cgroups() -> Iterator[Path]:
    """Folders of the memory groups around this process, the innermost first."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(",") or not controllers:
                root = _V1 if controllers else _V2
                # In a container the path may be that of the host: then only the root is there.
                inner = Path(path.lstrip("/"))
                yield from (folder for part in (inner, *inner.parents) if (folder := root / part).is_dir())


# A thread that spins takes the core of the one that it waits for. Alone on a machine that costs a little; beside other
# work it costs half of the time. What is set here has effect only before the libraries are imported.
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# OpenBLAS waits by spinning, whatever it is told: the engine cuts large products into pieces for threads of its own.
_QUIET = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    # A microsecond: threads that meet again at once need not be woken, others lose nothing by it.
    "GOMP_SPINCOUNT": "1000",
    "KMP_BLOCKTIME": "0",
}


def set_threads(threads: int) -> None:
    """Tell the native libraries how many threads they may use, and how these wait."""
    for name in _COUNTS:
        os.environ[name] = str(threads)
    wait_quietly()


def wait_quietly() -> None:
    """Tell the native libraries not to spin; what the environment says already stands."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
