"""On which devices a config computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from service.contracts.config import QuantizationConfig

# What a request asks for, and where that leads.
DeviceChoice = Literal["auto", "cpu", "gpu"]
Device = Literal["cpu", "gpu"]
_FIELDS = ("optim_device", "infer_device", "device")
_GPUS = ("cuda", "rocm")


class DeviceField(NamedTuple):
    """One field of a config that names a device."""

    pointer: str  # JSON pointer into the config
    value: str  # auto, cpu, cuda, cuda:N, rocm or rocm:N

    @property
    def is_gpu(self) -> bool:
        """True if nothing but a GPU will do."""
        return self.value.partition(":")[0] in _GPUS


def device_fields(config: QuantizationConfig) -> Iterator[DeviceField]:
    """Every field of the config that names a device, in order; none: nothing of it can use a GPU."""
    for place, algorithm in enumerate(config.algorithms):
        for name in _FIELDS:
            value = getattr(algorithm, name, None)
            if value is not None:
                yield DeviceField(f"/algorithms/{place}/{name}", value)


def gpu_field(config: QuantizationConfig) -> DeviceField | None:
    """The first field that nothing but a GPU will do for, if any."""
    return next((field for field in device_fields(config) if field.is_gpu), None)
