"""The queues, the queue of each job, and which jobs count as short."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

CPU_QUEUE, GPU_QUEUE = "cpu", "gpu"
QUEUES = (CPU_QUEUE, GPU_QUEUE, "inspect")
SizeClass = Literal["short", "long"]
# Validation takes seconds and somebody waits for it: it must not stand behind jobs that take hours.
_QUEUE_OF_KIND = {
    "quantize": CPU_QUEUE,
    "evaluate": CPU_QUEUE,
    "inspect_model": "inspect",
    "inspect_dataset": "inspect",
    "inspect_target": "inspect",
}
# What all other algorithms do, train or search, takes as long as it takes, however small the model.
_QUICK_METHODS = frozenset(
    {
        "outlier_channels", "cross_layer_equalization", "smooth_quant", "awq", "selective_precision", "bias_correction",
    }
)  # fmt: skip


def queue_of(kind: str) -> str:
    """The queue for jobs of this kind where nobody chose another."""
    return _QUEUE_OF_KIND.get(kind, CPU_QUEUE)


def is_short(methods: Iterable[str], *, size_bytes: int, samples: int, most_bytes: int, most_samples: int) -> bool:
    """True for a job that surely takes minutes at most: nothing is trained or searched, and little is read.

    Args:
        methods: of the algorithms of its config.
        size_bytes: of the models and the data together.
        samples: of calibration and evaluation data together.
        most_bytes: bound of ``size_bytes``.
        most_samples: bound of ``samples``.
    """
    return _QUICK_METHODS.issuperset(methods) and size_bytes <= most_bytes and samples <= most_samples
