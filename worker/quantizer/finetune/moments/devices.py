"""Which arrays the moments solver computes with on a device."""

from __future__ import annotations

import os
from pathlib import Path

from worker.quantizer.finetune.moments.arrays import NUMPY, Arrays

# One of them is there if a driver is: NVIDIA's, that of its boards, ROCm's, and either under WSL.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/kfd", "/dev/dxg")


def arrays_on(wanted: str) -> Arrays:
    """The arrays of a device.

    Args:
        wanted: auto (a GPU if there is one), cpu, cuda, cuda:N, rocm or rocm:N.

    Raises:
        EngineError: it is not there.
    """
    if wanted == "cpu" or (wanted == "auto" and not may_have_gpu()):
        return NUMPY
    from worker.quantizer.finetune.moments.arrays_torch import torch_arrays  # loads torch
    from worker.quantizer.finetune.reconstruction.device import choose_device

    device = choose_device(wanted)
    return NUMPY if device.type == "cpu" else torch_arrays(device)


def may_have_gpu() -> bool:
    """False if torch would surely find none, which is told without loading it.

    A driver makes device files; and devices may be hidden by a variable that both CUDA and ROCm heed.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return False
    return any(Path(file).exists() for file in _DRIVERS)
