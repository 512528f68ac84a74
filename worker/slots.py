"""The slots of a worker: what each may use, and what it does when a message wakes it.

A message says no more than that there is something to do. Which job a slot takes is told by the database alone, so
that priorities and the turns of tenants hold in whatever order a broker hands out messages. A slot goes on until there
is nothing left that it may take.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.orm import Session

from service.contracts.command_errors import InvalidSettingsError
from service.contracts.quota import Quota
from service.cores import affinity
from service.db import Database
from service.quotas.service import full_tenants
from service.settings import Settings
from worker.company import Company
from worker.confinement.controls import Mode
from worker.rest import Rest
from worker.sandbox import GPU_VARIABLE, Sandbox
from worker.supervisor import Supervisor
from worker.turns.repository import next_due

# Between two looks of a slot that may only take short jobs, while long ones wait for another slot.
LOOK_SECONDS = 1.0
_Thing = TypeVar("_Thing")


@dataclass(frozen=True)
class Share:
    """What the jobs of one slot may use.

    Attributes:
        short_only: it takes short jobs alone.
        devices: GPUs that they see, as the driver numbers them; None: those of this process.
        cores: that they are bound to; none: all that this process may use.
        mode: of their sandbox.
    """

    short_only: bool = False
    devices: tuple[str, ...] | None = None
    cores: tuple[int, ...] = ()
    mode: Mode = "auto"

    def sandbox(self) -> Sandbox:
        """Starts runners within this share."""
        visible = {} if self.devices is None else {GPU_VARIABLE: ",".join(self.devices)}
        return Sandbox(variables=visible, cores=self.cores, mode=self.mode)


def shares(settings: Settings, devices: Sequence[str] = ()) -> list[Share]:
    """What each slot of a worker may use; those for short jobs alone come last.

    Slots with GPUs of their own are never kept for short jobs: the GPU would stand idle.

    Args:
        settings: say how many slots there are, how many of them are kept, and whether they are bound to cores.
        devices: GPUs that are dealt out to the slots; none: they all see those of this process.

    Raises:
        InvalidSettingsError: there are fewer GPUs than slots.
    """
    slots = settings.worker_slots
    if devices and len(devices) < slots:
        raise InvalidSettingsError(
            f"{slots} slots cannot share the {len(devices)} devices {', '.join(devices)}: each needs one of its own.",
            hint=f"Give --slots {len(devices)}, or leave it out.",
        )
    kept = 0 if devices else min(settings.short_slots, slots - 1)
    cores = affinity() if settings.pin_cores else []
    return [
        Share(
            short_only=k >= slots - kept,
            devices=tuple(_part(devices, k, slots)) if devices else None,
            cores=tuple(_part(cores, k, slots)) if len(cores) >= slots else (),
            mode=settings.sandbox,
        )
        for k in range(slots)
    ]


def _part(things: Sequence[_Thing], number: int, parts: int) -> Sequence[_Thing]:
    """The share of one among ``parts``, neighbours together; sizes differ by one at most."""
    return things[number * len(things) // parts : (number + 1) * len(things) // parts]


@dataclass(frozen=True)
class Slot:
    """Runs one job at a time.

    Attributes:
        supervisor: runs it, within the slot's share.
        short_only: it takes short jobs alone.
    """

    supervisor: Supervisor
    short_only: bool = False


class Slots:
    """All slots of a worker process.

    Args:
        slots: those for short jobs alone last.
        database: where jobs are.
        queues: that they take jobs from.
        stopping: True once the worker shuts down.
        look_seconds: see LOOK_SECONDS.
        rest: that the slots' supervisors share.
        default_quota: of tenants that have no limits of their own.
        company: that the slots' supervisors share.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        database: Database,
        queues: Collection[str],
        *,
        stopping: Callable[[], bool] = lambda: False,
        look_seconds: float = LOOK_SECONDS,
        rest: Rest | None = None,
        default_quota: Quota = Quota(),  # noqa: B008 - frozen
        company: Company | None = None,
    ) -> None:
        self._slots = list(slots)
        self._free = list(range(len(slots)))
        self._lock = threading.Lock()
        # True if somebody was woken and found no slot: whoever leaves one looks once more.
        self._missed = False
        self._database = database
        self._queues = tuple(queues)
        self._stopping = stopping
        self._look_seconds = look_seconds
        self._rest = rest or Rest()
        self._default_quota = default_quota
        self._company = company or Company()

    @property
    def free(self) -> int:
        """Slots that run nothing."""
        with self._lock:
            return len(self._free)

    def could_start(self) -> bool:
        """True if a job is due that a free slot may take."""
        with self._lock:
            free = [self._slots[number] for number in self._free]
        queues = self._rest.awake(self._queues)
        if not free or not queues:
            return False
        with self._database.read() as session:
            short_only = all(slot.short_only for slot in free)
            return next_due(session, queues, short_only=short_only, without=self._left_out(session)) is not None

    def retire(self) -> bool:
        """Take no job any more, for good; False, and nothing is done, while one runs."""
        with self._lock:
            if len(self._free) < len(self._slots):
                return False
            self._free.clear()
            return True

    def work(self) -> None:
        """Run one job after the other until none is due; for any thread. Where all slots are busy, theirs go on.

        The slot is chosen anew for each job: one that takes all jobs if there is one. One for short jobs stays
        awake while long ones wait, so that a short one that comes later need not stand behind their messages; so does
        one that rests while jobs wait, for their messages have come.
        """
        while not self._stopping():
            with self._taken() as slot:
                if slot is None:
                    return
                if slot.supervisor.run_next(self._queues, short_only=slot.short_only):
                    continue
            if self._was_missed():
                continue
            if not ((slot.short_only or self._rests()) and self._anything_due()):
                return
            time.sleep(self._look_seconds)

    @contextmanager
    def _taken(self) -> Iterator[Slot | None]:
        with self._lock:
            number = self._free.pop(0) if self._free else None
            self._missed = self._missed or number is None
        if number is None:
            yield None
            return
        try:
            yield self._slots[number]
        finally:
            with self._lock:
                self._free = sorted([*self._free, number])

    def _was_missed(self) -> bool:
        with self._lock:
            missed, self._missed = self._missed, False
        return missed

    def _rests(self) -> bool:
        return len(self._rest.awake(self._queues)) < len(self._queues)

    def _anything_due(self) -> bool:
        with self._database.read() as session:
            return next_due(session, self._queues, without=self._left_out(session)) is not None

    def _left_out(self, session: Session) -> frozenset[str]:
        """Tenants whose jobs may not start here now."""
        return full_tenants(session, self._default_quota) | self._company.crowds()
