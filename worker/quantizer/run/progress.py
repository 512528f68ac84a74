"""How far a run has come: what each stage took, and how long the whole will go on.

Each phase has an expected cost, in seconds. One that tells how much of it is done is judged by its own pace more and
more, the further it has come; one that tells nothing is taken to last what it was expected to, or a little longer than
it has lasted already. What other phases turned out to cost says nothing of those to come: they compute something else.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.contracts.report import StageFigures
from worker.quantizer.run.interface import ForwardingRun, Run

# A phase's own pace counts as much as what was expected of it once this share of it is done.
_EVEN_AT = 0.05
# A phase that has lasted longer than expected, and tells nothing, is taken to last so much of that again.
_OVERTIME = 0.15
# Trials of advice take so often what the run itself took.
_TRIALS = 1.2
# Until the end is reached the share stays below 1, however little is left.
_MOST = 0.999
_PERIOD_SECONDS = 1.0
# The time left that is told rises only if it has grown by this part: less is noise of the estimate.
_RISE = 0.5
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def trials_seconds(spent_seconds: float, limit_seconds: float) -> float:
    """What looking for advice should take, at most its limit, after a run that took ``spent_seconds``."""
    return min(limit_seconds, _TRIALS * spent_seconds)


@dataclass(frozen=True)
class Phase:
    """One part of a run."""

    name: str  # of its stage
    seconds: float  # that it is expected to take


class TimeLeft:
    """Seconds left of a run.

    Args:
        clock: seconds of some clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = clock()
        self._to_come: list[Phase] = []
        self._known = False
        self._now: _Current | None = None

    def expect(self, phases: Sequence[Phase]) -> None:
        """Say what comes behind the phase that runs now."""
        self._to_come, self._known = list(phases), True

    def foresee(self, phase: Phase) -> None:
        """Something nobody expected will come last."""
        if all(known.name != phase.name for known in self._to_come):
            self._to_come.append(phase)

    def enter(self, name: str, expected_seconds: float | None = None) -> None:
        """A phase begins; those that were expected before it are left out. One that nobody expected may come, too.

        Args:
            name: of the phase.
            expected_seconds: that it should take, as is known now; None: what was expected before.
        """
        place = next((k for k, phase in enumerate(self._to_come) if phase.name == name), None)
        expected = expected_seconds or 0.0
        if place is not None:
            expected = self._to_come[place].seconds if expected_seconds is None else expected_seconds
            self._to_come = self._to_come[place + 1 :]
        self._now = _Current(name, expected, self._clock())

    def leave(self) -> None:
        """The phase has ended."""
        self._now = None

    def tell(self, name: str, share: float | None, unit: str) -> None:
        """How much of a phase is done; of another phase than the one that runs now, nothing follows.

        Args:
            name: of the phase.
            share: 0 to 1; None: unknown.
            unit: what is counted.
        """
        if self._now is not None and self._now.name == name and share is not None:
            self._now.tell(share, unit, self._clock())

    @property
    def elapsed_seconds(self) -> float:
        """Since the beginning."""
        return self._clock() - self._begin

    @property
    def seconds_left(self) -> float | None:
        """Of the whole; None before it is known what there is to do."""
        if not self._known:
            return None
        left = sum(phase.seconds for phase in self._to_come)
        return left + (0.0 if self._now is None else self._now.seconds_left(self._clock()))


class _Current:
    """The phase that runs now. It may do one thing after another, each counted in a unit of its own."""

    def __init__(self, name: str, expected_seconds: float, begin: float) -> None:
        self.name = name
        self._expected = expected_seconds
        self._begin = self._counted_from = begin
        self._share = 0.0
        self._unit: str | None = None
        self._told_at = begin

    def tell(self, share: float, unit: str, now: float) -> None:
        if unit != self._unit or share < self._share:
            self._unit, self._counted_from = unit, now
        self._share, self._told_at = min(share, 1.0), now

    def seconds_left(self, now: float) -> float:
        elapsed = now - self._begin
        expected = self._expected
        if self._share <= 0.0:
            return max(expected - elapsed, _OVERTIME * elapsed)
        counted = self._told_at - self._counted_from
        by_pace = counted * (1.0 - self._share) / self._share
        by_cost = max(expected, elapsed) * (1.0 - self._share)
        weight = self._share / (self._share + _EVEN_AT)
        left = weight * by_pace + (1.0 - weight) * by_cost
        # what has passed since it was last told is done, too, but never all of what was left
        return max(left - (now - self._told_at), _OVERTIME * left)


class OverallRun(ForwardingRun):
    """Another run, which is told the share of the whole that is done, and the seconds left, with all progress.

    The share never falls, and is 1 at the end only. The time left rises only where much more is left than was told.

    Args:
        run: takes progress and log, and may be canceled.
        clock: seconds of some clock that never goes back.
    """

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(run)
        self._clock = clock
        self._forecast = TimeLeft(clock)
        self._share = 0.0
        self._left: float | None = None
        self._told_at = clock()

    def expect(self, phases: Sequence[Phase]) -> None:
        """Say what is still to come; from now on the share is told."""
        self._forecast.expect(phases)

    def foresee(self, stage: str, expected_seconds: float) -> None:
        """Something nobody expected will come last."""
        self._forecast.foresee(Phase(stage, expected_seconds))

    def enter(self, stage: str, expected_seconds: float | None = None) -> None:
        """A stage of the whole begins; None: it takes what was expected before."""
        self._forecast.enter(stage, expected_seconds)

    def leave(self) -> None:
        """The stage has ended."""
        self._forecast.leave()

    def progress(
        self,
        stage: str,
        done: int = 0,
        total: int | None = None,
        unit: str = "",
        message: str = "",
        *,
        share: float | None = None,
    ) -> None:
        """Pass it on, behind how far the whole has come; the share of the stage has served its purpose then."""
        known = done / total if total else None
        self._forecast.tell(stage, share if share is not None else known, unit)
        self._tell()
        self._run.progress(stage, done, total, unit, message)

    def check(self) -> None:
        """Raise CanceledError if the run has to stop; tell the share where no stage has told anything for a while."""
        super().check()
        if self._clock() - self._told_at >= _PERIOD_SECONDS:
            self._tell()

    def _tell(self) -> None:
        left = self._forecast.seconds_left
        if left is None:
            return
        self._told_at = self._clock()
        elapsed = self._forecast.elapsed_seconds
        share = elapsed / max(elapsed + left, 1e-9)
        self._share = max(self._share, min(share, _MOST))
        if self._left is None or left < self._left or left > (1.0 + _RISE) * self._left:
            self._left = left
        self.overall(self._share, self._left)


class Stages:
    """Collects the figures of stages, in order.

    Args:
        overall: is told of each that is no part of another as it begins and ends.
    """

    def __init__(self, overall: OverallRun | None = None) -> None:
        self._overall = overall
        self.figures: list[StageFigures] = []
        self._depth = 0

    def foresee(self, name: str, *, expected_seconds: float) -> None:
        """A stage that nobody expected will come last; what is expected to be left grows by it."""
        if self._overall is not None:
            self._overall.foresee(name, expected_seconds)

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
        if self._overall is not None:
            self._overall.enter(name, expected_seconds)
        try:
            yield
        finally:
            self._depth -= 1
            if self._overall is not None:
                self._overall.leave()
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
