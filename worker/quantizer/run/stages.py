"""Seconds and peak memory of every stage of a run."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.contracts.report import StageFigures

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class Stages:
    """Collects the figures of stages, in order."""

    def __init__(self) -> None:
        self.figures: list[StageFigures] = []
        self._depth = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the block as stage ``name``; a stage that raises, or is a part of another, is not recorded."""
        if self._depth:
            yield
            return
        reset_peak_rss()
        begin = time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        self.figures.append(
            StageFigures(name=name, seconds=round(time.perf_counter() - begin, 4), peak_rss_bytes=peak_rss_bytes())
        )


def reset_peak_rss() -> None:
    """Start the peak anew, where the system can (Linux); elsewhere the peak is that of the whole process."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:  # no /proc, or not writable in this sandbox: the figure is then an upper bound
        return


def peak_rss_bytes() -> int:
    """Largest resident memory since the last reset, in bytes."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
