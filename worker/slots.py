"""The slots of a worker: resources of each, and which are free."""

from __future__ import annotations

import queue
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from service.contracts.command_errors import InvalidSettingsError
from service.cores import affinity
from service.settings import Settings
from worker.confinement.controls import Mode
from worker.sandbox import GPU_ORDER, GPU_VARIABLE, Sandbox
from worker.supervisor import Supervisor

_Thing = TypeVar("_Thing")
# As CUDA takes them: a number, or what nvidia-smi -L tells of a GPU or of a MIG instance, which in older drivers is its
# GPU with two numbers. Of the first two forms the first digits are enough.
_DEVICE = re.compile(r"(\d+|GPU-[0-9a-f-]+|(?P<mig>MIG-[0-9a-f-]+|MIG-GPU-[0-9a-f-]+/\d+/\d+))")


@dataclass(frozen=True)
class Share:
    """What the jobs of one slot may use."""

    # GPUs that those of queue gpu see, by number as of nvidia-smi or by UUID; None: those of this process
    devices: tuple[str, ...] | None = None
    cores: tuple[int, ...] = ()  # that they are bound to; none: all that this process may use
    mode: Mode = "auto"  # of their sandbox

    def sandbox(self) -> Sandbox:
        """Starts runners within this share."""
        visible = {} if self.devices is None else {GPU_VARIABLE: ",".join(self.devices), **GPU_ORDER}
        return Sandbox(variables=visible, cores=self.cores, mode=self.mode)


def shares(settings: Settings, devices: Sequence[str] = ()) -> list[Share]:
    """What each slot of a worker may use.

    Args:
        settings: say how many slots there are, and whether they are bound to cores.
        devices: GPUs that are dealt out to the slots; none: they all see those of this process.

    Raises:
        InvalidSettingsError: there are fewer GPUs than slots, or one of them is none, or of two slots, or two MIG
            instances are of one slot.
    """
    slots = settings.worker_slots
    _check_names(devices)
    if devices and len(devices) < slots:
        raise InvalidSettingsError(
            f"{slots} slots cannot share the {len(devices)} devices {', '.join(devices)}: each slot needs "
            "its own device.",
            hint=f"Use --slots {len(devices)}, or omit the option.",
        )
    dealt = [tuple(_part(devices, k, slots)) for k in range(slots)]
    for names in dealt:
        if len(names) > 1 and any(_is_mig(name) for name in names):
            raise InvalidSettingsError(
                f"One slot cannot have the devices {', '.join(names)}: CUDA shows a process one MIG instance only.",
                hint=f"Use --slots {len(devices)}.",
            )
    cores = affinity() if settings.pin_cores else []
    return [
        Share(
            devices=dealt[k] if devices else None,
            cores=tuple(_part(cores, k, slots)) if len(cores) >= slots else (),
            mode=settings.sandbox,
        )
        for k in range(slots)
    ]


def _check_names(devices: Sequence[str]) -> None:
    for name in devices:
        if not _DEVICE.fullmatch(name):
            raise InvalidSettingsError(
                f"{name!r} is not the name of a GPU.",
                hint="Use numbers (0,1), or UUIDs of GPUs or MIG instances as `nvidia-smi -L` prints them.",
            )
        if devices.count(name) > 1:
            raise InvalidSettingsError(f"Device {name} is named twice.", hint="Name each device once.")


def _is_mig(name: str) -> bool:
    found = _DEVICE.fullmatch(name)
    return found is not None and found["mig"] is not None


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
