"""Where torch computes, and how it is kept to one result for one seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from service.contracts.errors import DeviceNotThereError

# Elements of the largest tensor of a step, per thread. Below, threads wait for one another longer than they compute:
# one alone is as fast on an idle machine (ResNet20: 10.9 s of AdaQuant by one, 19.2 s by two), and twice as fast on a
# busy one.
_ELEMENTS_PER_THREAD = 1 << 20


def choose_device(wanted: str) -> torch.device:
    """The device that a config's word stands for.

    Args:
        wanted: auto (a GPU if there is one), cpu, cuda, cuda:N, rocm or rocm:N. ROCm's torch calls its devices cuda.

    Raises:
        DeviceNotThereError: it is not there.
    """
    kind, _, number = wanted.partition(":")
    there = torch.cuda.is_available()
    if kind == "auto":
        return torch.device("cuda" if there else "cpu")
    if kind == "cpu":
        return torch.device("cpu")
    is_rocm = torch.version.hip is not None
    if not there or (kind == "rocm") != is_rocm:
        found = "a ROCm device" if there and is_rocm else "a CUDA device" if there else "no GPU"
        raise DeviceNotThereError(
            f"device {wanted!r} is not there: torch {torch.__version__} finds {found}",
            hint="Set device (elsewhere optim_device) to auto or cpu, or run the job on a worker with that GPU.",
        )
    index = int(number or 0)
    if index >= torch.cuda.device_count():
        raise DeviceNotThereError(
            f"device {wanted!r} is not there: torch finds {torch.cuda.device_count()} of its kind",
            hint="Device numbers begin with 0.",
        )
    return torch.device("cuda", index)


def threads_worth(elements: int, threads: int) -> int:
    """How many of ``threads`` pay where the largest tensor of a step has so many elements; follows from both alone."""
    return max(1, min(threads, elements // _ELEMENTS_PER_THREAD))


@contextmanager
def repeatable(threads: int) -> Iterator[None]:
    """``threads`` CPU threads, and GPU kernels that give the same result every time, in full float32."""
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")  # some containers' environment lowers it
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)


def as_tensor(array: np.ndarray, device: torch.device, dtype: type = np.float32) -> Tensor:
    """``array`` on ``device``; shares its memory where that can be, so that nobody may write into it."""
    return torch.from_numpy(np.require(array, dtype, ["C", "W"])).to(device)
