"""Checks repeatedly during long operations of an attempt whether it may continue."""

from __future__ import annotations

import time
from collections.abc import Callable

from worker.lease import Lease
from worker.outcome import DATABASE_AWAY, SHUTDOWN, Canceled, Fenced, Outcome
from worker.runner_input import boot_seconds

_LOOK_SECONDS = 0.1


class StopClock:
    """Since when this process has been asked to stop.

    Args:
        stopping: True once it was.
    """

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._seen_at: float | None = None

    def __call__(self) -> bool:
        """True once a stop was asked for."""
        return self.for_seconds(0.0)

    def for_seconds(self, seconds: float) -> bool:
        """True if a stop was asked for at least so long ago."""
        if self._seen_at is None:
            if not self._stopping():
                return False
            self._seen_at = boot_seconds()
        return boot_seconds() - self._seen_at >= seconds


class StoppedError(Exception):
    """What is done for the attempt has to end now; ``outcome`` is what the attempt ends with."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(type(outcome).__name__)
        self.outcome = outcome


class Guard:
    """What ends an attempt from outside, while no runner is there to be watched.

    Args:
        lease: of the attempt.
        stop: of this process.
        grace_seconds: for how long it may still go on once this process was asked to stop.
    """

    def __init__(self, lease: Lease, stop: StopClock, *, grace_seconds: float = 0.0) -> None:
        self._lease = lease
        self._stop = stop
        self._grace = grace_seconds

    def check(self) -> None:
        """Say nothing if it may go on.

        Raises:
            StoppedError: the job is somebody else's, or was canceled, or this process stops.
        """
        self._lease.check()
        if self._lease.lost:
            raise StoppedError(Fenced())
        if self._lease.cancel_requested:
            raise StoppedError(Canceled())
        if self._stop.for_seconds(self._grace):
            raise StoppedError(SHUTDOWN)

    def await_lease(self, seconds: float) -> None:
        """Come back while there is a lease: nothing is started without one.

        Raises:
            StoppedError: see ``check``; or there was none for so long.
        """
        until = boot_seconds() + seconds
        while self._lease.over():
            self.check()
            if boot_seconds() >= until:
                raise StoppedError(DATABASE_AWAY)
            time.sleep(_LOOK_SECONDS)
