"""Number of CPU cores available to this process: its CPU affinity and the limits of its control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
# Where the CPU controller of version 1 is mounted, below the root.
_V1_MOUNTS = ("cpu,cpuacct", "cpuacct,cpu", "cpu")


def available_cores(*, root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> int:
    """Cores that this process may use at once, at least 1: a machine has more than a container of it.

    Args:
        root: where control groups are mounted.
        own: the file that names the process's groups.
    """
    allowed = len(affinity())
    quotas = [*_quotas_v2(root, own), *_quotas_v1(root, own)]
    return max(1, min([allowed, *(math.ceil(quota) for quota in quotas)]))


def affinity() -> list[int]:
    """Numbers of the cores that this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # systems that bind no process to cores


def _quotas_v2(root: Path, own: Path) -> Iterator[float]:
    """Cores by the limits of the process's group and of all groups around it: each of them holds."""
    for folder in _around(root, _group(own, "")):
        with suppress(OSError, ValueError):  # no such file at the root, or "max"
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)


def _quotas_v1(root: Path, own: Path) -> Iterator[float]:
    for mount in _V1_MOUNTS:
        for folder in _around(root / mount, _group(own, "cpu")):
            with suppress(OSError, ValueError):
                quota = int((folder / "cpu.cfs_quota_us").read_text())
                if quota > 0:  # -1: no limit
                    yield quota / int((folder / "cpu.cfs_period_us").read_text())


def _group(own: Path, controller: str) -> PurePosixPath:
    """The process's group in the hierarchy of a controller; "" is that of version 2. The root where it is not told."""
    with suppress(OSError):  # no control groups
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                return PurePosixPath(path)
    return PurePosixPath("/")


def _around(mount: Path, group: PurePosixPath) -> Iterator[Path]:
    """Folders of a group and of all around it. In a container the path may be the host's: the root counts then."""
    for part in (group, *group.parents):
        yield mount / str(part).strip("/")
