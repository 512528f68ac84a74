"""What else the machine does while something is timed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from service.contracts.report import MachineLoad
from service.cores import available_cores

_PROC_STAT = Path("/proc/stat")
# Fields of /proc/stat's first line; what a guest took is part of user and nice already (man 5 proc_stat).
_FIELDS, _IDLE, _WAITING = 8, 3, 4
# The kernel counts in hundredths of a second: a share of fewer of them says little.
_LEAST_TICKS = 20


class _Ticks(NamedTuple):
    """CPU time of the whole machine since it started, in the kernel's ticks."""

    total: int
    busy: int


@dataclass(frozen=True)
class LoadMeter:
    """Tells what other processes took between its making and ``read``.

    Attributes:
        begun: the machine's CPU time at the start; None: the system does not tell.
        own_seconds: this process's.
        cores: that it may use; many files tell it, and it is read often.
    """

    begun: _Ticks | None
    own_seconds: float
    cores: int

    @staticmethod
    def start() -> LoadMeter:
        """One that counts from now on."""
        return LoadMeter(_ticks(), _own_seconds(), available_cores())

    def read(self) -> MachineLoad:
        """What the machine did so far; null where the system does not tell, or where too little time went by."""
        return MachineLoad(
            cpu_count=self.cores, load_average=_load_average(), other_busy_percent=self._other_busy_percent()
        )

    def _other_busy_percent(self) -> float | None:
        now = _ticks()
        if now is None or self.begun is None or now.total - self.begun.total < _LEAST_TICKS:
            return None
        own = (_own_seconds() - self.own_seconds) * os.sysconf("SC_CLK_TCK")
        others = now.busy - self.begun.busy - own
        return round(min(100.0, max(0.0, 100.0 * others / (now.total - self.begun.total))), 1)


def _ticks() -> _Ticks | None:
    try:
        words = _PROC_STAT.read_text().split("\n", 1)[0].split()
    except OSError:  # not Linux
        return None
    counts = [int(word) for word in words[1 : _FIELDS + 1]]
    return _Ticks(sum(counts), sum(counts) - counts[_IDLE] - counts[_WAITING])


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system


def _load_average() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):  # not on this system
        return None
