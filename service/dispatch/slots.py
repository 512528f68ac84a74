"""Free slots: how many jobs of each queue can start now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.jobs.queues import QUEUES


@dataclass(frozen=True)
class Crew:
    """Slots of one worker process."""

    queues: frozenset[str]  # that it takes jobs of
    free: int  # jobs that it could start now
    slots: int  # jobs that it runs at a time
    short_slots: int = 0  # of these, those that are kept for short jobs


@dataclass(frozen=True)
class Started:
    """Jobs of one tenant in one queue that run, or that were released and will: no slot is free for others instead."""

    queue: str
    tenant_id: str
    size_class: str
    jobs: int


class FreeSlots:
    """What can be released now. Every job that is takes a slot away.

    Args:
        crews: of all workers that are asked.
        running: what they run.
        released: what was released already, to whomever.
    """

    def __init__(
        self, crews: Sequence[Crew], running: Iterable[Started] = (), released: Iterable[Started] = ()
    ) -> None:
        self._crews = crews
        self._free = [max(0, crew.free) for crew in crews]
        self._tenants: Counter[tuple[str, str]] = Counter()
        self._released: Counter[tuple[str, str]] = Counter()
        self._long: Counter[str] = Counter()
        for each in running:
            self._count(each)
        for each in released:
            self._count(each)
            self._released[each.queue, each.tenant_id] += each.jobs

    @property
    def released(self) -> Mapping[tuple[str, str], int]:
        """By queue and tenant, the jobs that were released and are not claimed."""
        return self._released

    def queues(self) -> dict[str, bool]:
        """Those with a free slot; True: it is kept for short jobs."""
        free = {queue for crew, left in zip(self._crews, self._free, strict=True) if left for queue in crew.queues}
        return {queue: self._long[queue] >= self._slots(queue) - self._kept(queue) for queue in sorted(free)}

    def crowds(self, queue: str) -> set[str]:
        """Tenants with so many jobs in a queue that the last slot is kept for others; of inspections alone, for each of
        which somebody waits.
        """
        most = self._slots(queue) - 1
        if queue != QUEUES[-1] or most < 1:
            return set()
        return {tenant for (name, tenant), jobs in self._tenants.items() if name == queue and jobs >= most}

    def take(self, queue: str) -> None:
        """Give a slot away, of the worker that has the fewest other uses for it; nothing where none is free."""
        fitting = [k for k, crew in enumerate(self._crews) if self._free[k] and queue in crew.queues]
        if fitting:
            self._free[min(fitting, key=lambda k: len(self._crews[k].queues))] -= 1

    def start(self, job: Started) -> None:
        """Count a job that is released now, which takes a slot."""
        self.take(job.queue)
        self._count(job)
        self._released[job.queue, job.tenant_id] += job.jobs

    def _count(self, started: Started) -> None:
        self._tenants[started.queue, started.tenant_id] += started.jobs
        if started.size_class == "long":
            self._long[started.queue] += started.jobs

    def _slots(self, queue: str) -> int:
        return sum(crew.slots for crew in self._crews if queue in crew.queues)

    def _kept(self, queue: str) -> int:
        return sum(min(crew.short_slots, crew.slots - 1) for crew in self._crews if queue in crew.queues and crew.slots)
