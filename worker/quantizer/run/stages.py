"""Seconds and peak memory of every stage of a run."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from service.contracts.report import StageFigures

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class Watcher(Protocol):
    """Is told of stages that are no parts of others."""

    def foresee(self, stage: str, expected_seconds: float) -> None:
        """A stage that nobody expected will come last."""

    def enter(self, stage: str, expected_seconds: float | None = None) -> None:
        """A stage begins; None: it takes what was expected before."""

    def leave(self) -> None:
        """It has ended, or has raised."""


class Stages:
    """Collects the figures of stages, in order.

    Args:
        watcher: is told of each as it begins and ends.
    """

    def __init__(self, watcher: Watcher | None = None) -> None:
        self._watcher = watcher
        self.figures: list[StageFigures] = []
        self._depth = 0

    def foresee(self, name: str, *, expected_seconds: float) -> None:
        """A stage that nobody expected will come last; what is expected to be left grows by it."""
        if self._watcher is not None:
            self._watcher.foresee(name, expected_seconds)

    @property
    def spent_seconds(self) -> float:
        """Of all stages that have ended."""
        return sum(stage.seconds for stage in self.figures)

    @contextmanager
    def stage(self, name: str, *, expected_seconds: float | None = None) -> Iterator[None]:
        """Measure the block as stage ``name``; a stage that raises, or is a part of another, is not recorded.

        Args:
            name: of the stage.
            expected_seconds: that it should take; None: what was expected before.
        """
        if self._depth:
            yield
            return
        reset_peak_rss()
        begin = time.perf_counter()
        self._depth += 1
        if self._watcher is not None:
            self._watcher.enter(name, expected_seconds)
        try:
            yield
        finally:
            self._depth -= 1
            if self._watcher is not None:
                self._watcher.leave()
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
