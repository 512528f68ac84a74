"""The pause of a worker whose host fails its jobs: it must not take one job after the other and put each back at once.

Other workers take them meanwhile. The pause is over after a while, grows with each failure, and ends with a success.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

LONGEST_SECONDS = 30.0
_MOST_DOUBLINGS = 10


class QueueBackoff:
    """By queue, when the slots of this process take jobs again; any number of threads may use it.

    Args:
        clock: seconds that only grow.
        longest_seconds: of a pause.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, longest_seconds: float = LONGEST_SECONDS
    ) -> None:
        self._clock = clock
        self._longest = longest_seconds
        self._lock = threading.Lock()
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def note(self, queue: str, *, failed: bool) -> None:
        """A job of the queue has ended; ``failed``: by what is wrong with this host."""
        with self._lock:
            now = self._clock()
            if not failed:
                self._failures.pop(queue, None)
                self._until.pop(queue, None)
            elif now >= self._until.get(queue, now):  # what several slots met at once counts once
                failures = self._failures.get(queue, 0)
                self._failures[queue] = failures + 1
                self._until[queue] = now + min(2.0 ** min(failures, _MOST_DOUBLINGS), self._longest)

    def ready(self, queues: Collection[str]) -> tuple[str, ...]:
        """Those of the queues that jobs may be taken from now."""
        with self._lock:
            now = self._clock()
            return tuple(queue for queue in queues if now >= self._until.get(queue, now))
