"""The slots of a worker: resources of each, and which are free."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from service.contracts.command_errors import InvalidSettingsError
from service.cores import affinity
from service.settings import Settings
from worker.confinement.controls import Mode
from worker.sandbox import GPU_VARIABLE, Sandbox
from worker.supervisor import Supervisor

_Thing = TypeVar("_Thing")


@dataclass(frozen=True)
class Share:
    """What the jobs of one slot may use."""

    # GPUs that they see, as the driver numbers them; None: those of this process
    devices: tuple[str, ...] | None = None
    cores: tuple[int, ...] = ()  # that they are bound to; none: all that this process may use
    mode: Mode = "auto"  # of their sandbox

    def sandbox(self) -> Sandbox:
        """Starts runners within this share."""
        visible = {} if self.devices is None else {GPU_VARIABLE: ",".join(self.devices)}
        return Sandbox(variables=visible, cores=self.cores, mode=self.mode)


def shares(settings: Settings, devices: Sequence[str] = ()) -> list[Share]:
    """What each slot of a worker may use.

    Args:
        settings: say how many slots there are, and whether they are bound to cores.
        devices: GPUs that are dealt out to the slots; none: they all see those of this process.

    Raises:
        InvalidSettingsError: there are fewer GPUs than slots.
    """
    slots = settings.worker_slots
    if devices and len(devices) < slots:
        raise InvalidSettingsError(
            f"{slots} slots cannot share the {len(devices)} devices {', '.join(devices)}: each slot needs "
            "its own device.",
            hint=f"Use --slots {len(devices)}, or omit the option.",
        )
    cores = affinity() if settings.pin_cores else []
    return [
        Share(
            devices=tuple(_part(devices, k, slots)) if devices else None,
            cores=tuple(_part(cores, k, slots)) if len(cores) >= slots else (),
            mode=settings.sandbox,
        )
        for k in range(slots)
    ]


def kept_slots(slots: int, short_slots: int, devices: Sequence[str] = ()) -> int:
    """How many of a worker's slots are kept for short jobs: never the only one, nor one with a GPU of its own, which
    would stand idle.
    """
    return 0 if devices else min(short_slots, slots - 1)


def _part(things: Sequence[_Thing], number: int, parts: int) -> Sequence[_Thing]:
    """The share of one among ``parts``, neighbours together; sizes differ by one at most."""
    return things[number * len(things) // parts : (number + 1) * len(things) // parts]


class Slots:
    """Hands out supervisors, each of which runs one job at a time.

    Args:
        supervisors: one for each slot.
    """

    def __init__(self, supervisors: Sequence[Supervisor]) -> None:
        self.count = len(supervisors)
        self._supervisors = supervisors
        # The first are taken first: they may have spare runners.
        self._free: queue.PriorityQueue[int] = queue.PriorityQueue()
        for number in range(self.count):
            self._free.put(number)

    def free(self) -> int:
        """How many run nothing."""
        return self._free.qsize()

    def idle(self) -> bool:
        """True if nothing runs."""
        return self.free() == self.count

    @contextmanager
    def taken(self) -> Iterator[Supervisor]:
        """One that is free, for the length of the block; waits for it."""
        number = self._free.get()
        try:
            yield self._supervisors[number]
        finally:
            self._free.put(number)
