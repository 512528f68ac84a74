"""What a walk is fed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.contracts.model import TensorInfo
from worker.quantizer.data import Dataset, choose_batch_size
from worker.quantizer.layerwise.store import DEFAULT_LIMITS, StoreLimits
from worker.quantizer.refine.step import Toolkit
from worker.quantizer.run.interface import Run

# Elements of the inputs in one part: large enough to keep all threads busy, small enough to be little of the whole.
_PART_ELEMENTS = 320_000
_LARGEST_PART = 32


@dataclass(frozen=True)
class Feed:
    """What a walk is fed with.

    Attributes:
        data: calibration set.
        inputs: the model's inputs.
        first: number of the first sample.
        last: number of the sample to stop before.
        threads: of the sessions.
        run: asked between runs whether to stop.
        limits: where tensors wait.
        device: where the layers run; see ``runtime.providers_of``.
    """

    data: Dataset
    inputs: Sequence[TensorInfo]
    first: int
    last: int
    threads: int
    run: Run
    limits: StoreLimits = DEFAULT_LIMITS
    device: str = "cpu"

    @staticmethod
    def of(
        toolkit: Toolkit, *, samples: int | None = None, limits: StoreLimits | None = None, device: str = "cpu"
    ) -> Feed:
        """The calibration samples that a step may learn from, or the first ``samples`` of them."""
        case, services = toolkit.case, toolkit.services
        last = case.calibration_samples
        if samples is not None:
            last = min(last, toolkit.first_sample + samples)
        return Feed(
            case.calibration,
            case.inputs,
            toolkit.first_sample,
            last,
            services.threads,
            services.run,
            limits or DEFAULT_LIMITS,
            device,
        )

    def part_size(self) -> int:
        """Samples that run together at most."""
        one, largest = choose_batch_size(self.inputs, self.data, 1), self.data.largest(self.inputs)
        elements = 1
        for batch in self.data.batches(self.inputs, one, start=largest, limit=largest + 1):
            elements = sum(array.size for array in batch.feeds.values())
        wanted = max(1, min(_LARGEST_PART, _PART_ELEMENTS // max(elements, 1)))
        return choose_batch_size(self.inputs, self.data, int(wanted))


@dataclass(frozen=True)
class Part:
    """Consecutive samples that run together: the ``number``-th part, ``valid`` real samples of ``size``."""

    number: int
    valid: int
    size: int


def real_samples(array: np.ndarray, part: Part) -> np.ndarray:
    """Without the padding of a last short part."""
    return array[: part.valid] if array.ndim and array.shape[0] == part.size else array
