"""The queues, which job goes into which, and which jobs count as short."""

from __future__ import annotations

from typing import Literal

from service.contracts.config import QuantizationConfig
from service.contracts.devices import Device, DeviceChoice, gpu_field
from service.contracts.errors import InvalidConfigError

QUEUES = ("cpu", "gpu", "inspect")
GPU_QUEUE = "gpu"
SizeClass = Literal["short", "long"]
# Validation takes seconds and somebody waits for it: it must not stand behind jobs that take hours.
_QUEUE_OF_KIND = {
    "quantize": "cpu",
    "evaluate": "cpu",
    "inspect_model": "inspect",
    "inspect_dataset": "inspect",
    "inspect_target": "inspect",
}
# What all other algorithms do, train or search, takes as long as it takes, however small the model.
_QUICK_METHODS = frozenset({"outlier_channels", "cross_layer_equalization", "smooth_quant", "awq", "bias_correction"})


def queue_of(kind: str) -> str:
    """The queue for jobs of this kind where nobody chose another."""
    return _QUEUE_OF_KIND.get(kind, QUEUES[0])


def size_class_of(kind: str) -> SizeClass:
    """Short for a kind that always is; of others config and data decide: see ``is_short`` and ``is_small``."""
    return "long" if queue_of(kind) == QUEUES[0] else "short"


def is_short(config: QuantizationConfig, *, size_bytes: int, samples: int, most_bytes: int, most_samples: int) -> bool:
    """True for a quantization that surely takes minutes at most: nothing is trained or searched, and little is read.

    Args:
        config: resolved.
        size_bytes: of the model and the data together.
        samples: of calibration and evaluation data together.
        most_bytes: bound of ``size_bytes``.
        most_samples: bound of ``samples``.
    """
    quick = all(algorithm.method in _QUICK_METHODS for algorithm in config.algorithms)
    return quick and is_small(size_bytes=size_bytes, samples=samples, most_bytes=most_bytes, most_samples=most_samples)


def is_small(*, size_bytes: int, samples: int, most_bytes: int, most_samples: int) -> bool:
    """True if little is read; arguments as for ``is_short``."""
    return size_bytes <= most_bytes and samples <= most_samples


def device_of(config: QuantizationConfig, wanted: DeviceChoice, *, pointer: str = "/config") -> Device:
    """Where a job with this config runs: as wanted, and for auto where its config asks to compute.

    Args:
        config: resolved.
        wanted: of the request.
        pointer: of the config within the request.

    Raises:
        InvalidConfigError: a CPU is wanted, and the config asks for a GPU.
    """
    field = gpu_field(config)
    if wanted == "cpu" and field is not None:
        raise InvalidConfigError(
            f"The job is to run on a CPU (device: cpu), and the config asks for {field.value}.",
            pointer=pointer + field.pointer,
            hint="Set it to cpu or auto here, or leave device out.",
        )
    return "gpu" if wanted == "gpu" or field is not None else "cpu"
