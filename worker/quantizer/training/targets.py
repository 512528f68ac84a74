"""What the float network makes of the samples of a training, where they never change: computed once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from worker.quantizer.run.interface import Run
from worker.quantizer.training.losses import Tensors
from worker.quantizer.training.network import Networks
from worker.quantizer.training.samples import TrainingSamples

# What they may take in memory; more are computed batch by batch, every time.
_MOST_BYTES = 256 << 20


class Targets:
    """Outputs of the float network by sample.

    Args:
        outputs: by name, [samples, ...].
    """

    def __init__(self, outputs: dict[str, Tensor]) -> None:
        self._outputs = outputs

    @staticmethod
    def of(networks: Networks, samples: TrainingSamples, run: Run) -> Targets | None:
        """Run the float network on all samples, in their order; None if the outputs are too large, or not by sample.

        Raises:
            CanceledError: the run was canceled.
        """
        if samples.fixed_batch is not None:
            return None
        size = networks.largest_part(min(samples.count, 32))
        parts: dict[str, list[Tensor]] = {}
        taken = 0
        for first in range(0, samples.count, size):
            run.check()
            numbers = np.arange(first, min(first + size, samples.count))
            made = networks.teacher(networks.feeds(samples.batch(numbers).feeds)).outputs
            for name, tensor in made.items():
                if tensor.dim() == 0 or tensor.shape[0] != len(numbers):
                    return None
                taken += tensor.numel() * tensor.element_size()
                parts.setdefault(name, []).append(tensor)
            if taken / (numbers[-1] + 1) * samples.count > _MOST_BYTES:
                return None
        return Targets({name: torch.cat(found) for name, found in parts.items()})

    def take(self, numbers: np.ndarray) -> Tensors:
        """Those of some samples."""
        return Tensors(
            {name: values[torch.from_numpy(numbers).to(values.device)] for name, values in self._outputs.items()}
        )
