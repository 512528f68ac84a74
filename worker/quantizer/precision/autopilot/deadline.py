"""Ends a trial when the time of a search is used up."""

from __future__ import annotations

import time
from collections.abc import Callable

from worker.quantizer.run.interface import ForwardingRun, Run


class OutOfTimeError(Exception):
    """The time of a search is used up. The search itself takes it and returns the best so far: nobody else sees it."""


class TimedRun(ForwardingRun):
    """Another run that also ends, by ``OutOfTimeError``, at a deadline.

    Args:
        run: takes progress and log, and may be canceled.
        seconds: from now to the deadline; None: there is none.
        clock: monotonic, in seconds.
    """

    def __init__(self, run: Run, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(run)
        self._clock = clock
        self._deadline = None if seconds is None else clock() + seconds
        self.lenient = False

    @property
    def is_over(self) -> bool:
        """True behind the deadline."""
        return self._deadline is not None and self._clock() > self._deadline

    @property
    def seconds_left(self) -> float | None:
        """Until the deadline; None if there is none."""
        return None if self._deadline is None else max(self._deadline - self._clock(), 0.0)

    def check(self) -> None:
        """Raise ``CanceledError`` if the run was canceled, ``OutOfTimeError`` behind the deadline.

        While ``lenient`` is set the deadline does not count: something has to be finished in any case.
        """
        super().check()
        if self.is_over and not self.lenient:
            raise OutOfTimeError("the time of the search is used up")
