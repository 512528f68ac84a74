"""Streaming reductions of one tensor over the calibration set. Memory does not grow with the number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from worker.quantizer.statistics.tails import Tail


@dataclass(frozen=True)
class Range:
    """Calibrated range of one tensor."""

    minimum: float
    maximum: float


class Observer(Protocol):
    """Sees a tensor batch by batch."""

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch of ``samples`` samples: float32, any shape, not empty."""


class RangeObserver(Observer, Protocol):
    """A observer that ends with the tensor's range."""

    def result(self) -> Range:
        """The range over everything seen."""


class ChannelMean:
    """Mean per channel, float64 [channels].

    Args:
        axis: of the channels, 1 or -1.
    """

    def __init__(self, axis: int = 1) -> None:
        self.axis = axis
        self._sum: np.ndarray | None = None
        self._count = 0

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch, rank 2 or more."""
        flat = values.reshape(values.shape[0], -1, values.shape[-1]).swapaxes(1, 2)
        if self.axis == 1:
            flat = values.reshape(*values.shape[:2], -1)
        total = flat.sum(axis=2).sum(axis=0, dtype=np.float64)
        self._sum = total if self._sum is None else self._sum + total
        self._count += flat.shape[0] * flat.shape[2]

    def result(self) -> np.ndarray | None:
        """The mean over everything seen; None if nothing was seen."""
        return None if self._sum is None else self._sum / self._count


class MinMax:
    """Smallest and largest value seen. NaN anywhere makes the range NaN."""

    def __init__(self) -> None:
        self._minimum = math.inf
        self._maximum = -math.inf

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch."""
        # np.minimum, unlike min, keeps a NaN
        self._minimum = float(np.minimum(self._minimum, values.min()))
        self._maximum = float(np.maximum(self._maximum, values.max()))

    def result(self) -> Range:
        """The range over everything seen."""
        return Range(self._minimum, self._maximum)


class MovingMinMax:
    """Running mean of the samples' extremes: range = (1 - constant) * range + constant * extremes of the next sample.

    The first sample's extremes start it. NaN anywhere makes the range NaN.

    Args:
        constant: weight of each new sample, in (0, 1].
    """

    def __init__(self, constant: float) -> None:
        self._constant = constant
        self._minimum = math.inf
        self._maximum = -math.inf
        self._begun = False

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch. Values that cannot be dealt out evenly to the samples count as one sample."""
        rows = values.reshape(samples if samples and values.size % samples == 0 else 1, -1)
        for low, high in zip(rows.min(axis=1).tolist(), rows.max(axis=1).tolist(), strict=True):
            if not self._begun:
                self._minimum, self._maximum, self._begun = low, high, True
                continue
            self._minimum += self._constant * (low - self._minimum)
            self._maximum += self._constant * (high - self._maximum)

    def result(self) -> Range:
        """The range over everything seen."""
        return Range(self._minimum, self._maximum)


class Percentiles:
    """Ranges that keep the central ``percentiles`` percent of all values seen, one for each.

    Asymmetric: (100 - percentile) / 2 percent are cut on either side. Symmetric: 100 - percentile percent of the
    absolute values are cut. NaN anywhere makes the ranges NaN.

    Args:
        percentiles: shares of values kept, in percent.
        samples: number of batches' samples to come, to know the length of the stream after the first batch.
        symmetric: judge absolute values.
    """

    def __init__(self, percentiles: Sequence[float], *, samples: int, symmetric: bool = False) -> None:
        self._shares = [(100.0 - percentile) / (100.0 if symmetric else 200.0) for percentile in percentiles]
        self._symmetric = symmetric
        self._samples = samples
        self._upper = Tail(max(self._shares))
        self._lower = None if symmetric else Tail(max(self._shares), lower=True)
        self._seen = 0
        self._expected = 0
        self._finite = True

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch."""
        flat = np.abs(values).reshape(-1) if self._symmetric else values.reshape(-1)
        share = max(samples, 1)
        self._expected = max(self._expected, self._seen + flat.size, math.ceil(flat.size / share) * self._samples)
        self._seen += flat.size
        low, high = flat.min(), flat.max()
        if np.isnan(high):
            self._finite = False
            return
        self._upper.update(flat, high, self._expected)
        if self._lower is not None:
            self._lower.update(flat, low, self._expected)

    def results(self) -> list[Range]:
        """The range over everything seen, for each percentile."""
        return [self._range(share) for share in self._shares]

    def _range(self, share: float) -> Range:
        if not self._finite:
            return Range(math.nan, math.nan)
        upper = self._upper.result(self._seen, share)
        return Range(-upper if self._lower is None else self._lower.result(self._seen, share), upper)


class Percentile(Percentiles):
    """The range of one percentile; see ``Percentiles``."""

    def __init__(self, percentile: float, *, samples: int, symmetric: bool = False) -> None:
        super().__init__([percentile], samples=samples, symmetric=symmetric)

    def result(self) -> Range:
        """The range over everything seen."""
        return self.results()[0]
