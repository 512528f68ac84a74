"""Estimated end of a job: jobs queued before it, running jobs, and available slots."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from service.estimates import repository
from service.estimates.repository import Running, WaitingJob
from service.queues import repository as queues
from service.queues.repository import WorkerFigures

# What waits beyond these is not counted.
MOST_WAITING = 100_000
# Whatever is read in this time is read anew each time; of what takes longer, so many times as long is a pause.
_QUICK_SECONDS, _REST_TIMES = 0.01, 20.0
# Of jobs that nobody has estimated, such as those of other kinds.
_UNKNOWN_SECONDS = 10.0


@dataclass(frozen=True)
class Lines:
    """Who waits in a queue, by priority and tenant: ids in order, and the seconds of all up to each."""

    ids: dict[tuple[int, str], list[str]]
    sums: dict[tuple[int, str], list[float]]

    @classmethod
    def of(cls, waiting: Sequence[WaitingJob]) -> Lines:
        """The lines of a queue, from jobs in the order of their ids."""
        ids: dict[tuple[int, str], list[str]] = defaultdict(list)
        sums: dict[tuple[int, str], list[float]] = defaultdict(list)
        for job in waiting:
            line = job.priority, job.tenant_id
            ids[line].append(job.id)
            before = sums[line][-1] if sums[line] else 0.0
            sums[line].append(before + (_UNKNOWN_SECONDS if job.seconds is None else job.seconds))
        return cls(ids, sums)

    def ahead_seconds(self, priority: int, tenant_id: str, job_id: str) -> float:
        """What is done before a job: all of a higher priority; of its own, tenants take turns, one job each."""
        place = bisect_left(self.ids.get((priority, tenant_id), []), job_id)
        seconds = 0.0
        for (other, _), sums in self.sums.items():
            if other > priority:
                seconds += sums[-1]
            elif other == priority and place and sums:
                seconds += sums[min(place, len(sums)) - 1]
        return seconds


@dataclass(frozen=True)
class Queue:
    """A queue as it is now."""

    lines: Lines  # who waits
    left: dict[str, float]  # seconds that each running job still takes, by id
    slots: int  # jobs that are run at a time; 0: no worker is alive

    def seconds_until_end(self, job_id: str, tenant_id: str, priority: int, seconds: float) -> float | None:
        """From now to the end of a job that waits, or would.

        Args:
            job_id: of the job; any that is greater than all others for one that is not stored yet.
            tenant_id: whose it is.
            priority: of the job.
            seconds: that it takes itself.
        """
        if not self.slots:
            return None
        ahead = self.lines.ahead_seconds(priority, tenant_id, job_id)
        free = self.slots > len(self.left) and ahead == 0.0
        return seconds if free else (ahead + sum(self.left.values())) / self.slots + seconds


class Queues:
    """The queues of a database, as they were a moment ago: a long one is not read through for every job of a list."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._read: dict[str, tuple[float, Queue]] = {}

    def now(self, session: Session, queue: str) -> Queue:
        """A queue, read anew unless it is long and was read within some seconds; by one thread for all that ask."""
        with self._locks[queue]:
            begin = time.monotonic()
            until, known = self._read.get(queue, (0.0, None))
            if known is not None and begin < until:
                return known
            found = _read(session, queue)
            now = time.monotonic()
            # of the time of a process no more than a part is spent on reading
            self._read[queue] = now + _REST_TIMES * (now - begin - _QUICK_SECONDS), found
            return found


_KNOWN: WeakKeyDictionary[Engine, Queues] = WeakKeyDictionary()


def queue_now(session: Session, queue: str) -> Queue:
    """A queue of the session's database as it is now, or was a moment ago; see ``Queues``."""
    engine = session.get_bind().engine
    return _KNOWN.setdefault(engine, Queues()).now(session, queue)


def _read(session: Session, queue: str) -> Queue:
    slots = queues.worker_figures(session).get(queue, WorkerFigures()).slots
    waiting = sorted(repository.queued(session, queue, MOST_WAITING), key=lambda job: job.id) if slots else []
    left = {job.id: left_seconds(job) for job in repository.running(session, queue)}
    return Queue(Lines.of(waiting), left, slots)


def left_seconds(job: Running) -> float:
    """What a running job still takes; one that is overdue is about to end, for all that anybody knows."""
    expected = _UNKNOWN_SECONDS if job.seconds is None else job.seconds
    spent = job.spent_seconds or 0.0
    return max(expected - spent, 0.1 * expected)
