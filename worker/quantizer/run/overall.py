"""A run that also tells how far the whole has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from worker.quantizer.run.forecast import Forecast, Phase
from worker.quantizer.run.interface import ForwardingRun, Run

# Until the end is reached the share stays below 1, however little is left.
_MOST = 0.999
_PERIOD_SECONDS = 1.0


class OverallRun(ForwardingRun):
    """Another run, which is told the share of the whole that is done, and the seconds left, with all progress.

    The share never falls, and is 1 at the end only.

    Args:
        run: takes progress and log, and may be canceled.
        clock: seconds of some clock that never goes back.
    """

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(run)
        self._clock = clock
        self._forecast = Forecast(clock)
        self._share = 0.0
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
        self.overall(self._share, left)
