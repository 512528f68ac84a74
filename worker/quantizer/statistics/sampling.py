"""A bounded sample of a tensor's values, with its rare outer values complete."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from worker.quantizer.statistics.tails import Tail

# Outer values kept on either side, as a part of the sample's capacity.
_TAIL_PART = 16


class Stride:
    """Every stride-th value of a stream, by position, so that the choice does not depend on how the stream is cut.

    The stride shares no factor with the size of a sample: over the samples every position of the tensor has its turn.

    Args:
        capacity: values wanted at most, about.
        samples: samples to come, to know the length of the stream after the first batch.
    """

    def __init__(self, capacity: int, samples: int) -> None:
        self._capacity = capacity
        self._samples = samples
        self._seen = 0
        self.stride = 0

    def take(self, flat: np.ndarray, samples: int) -> np.ndarray:
        """The chosen values of the next batch: a view of ``flat`` [n]."""
        if not self.stride:
            per_sample = math.ceil(flat.size / max(samples, 1))
            self.stride = math.ceil(max(per_sample * self._samples, flat.size) / self._capacity)
            while self.stride > 1 and math.gcd(self.stride, per_sample) > 1:
                self.stride += 1
        first = -self._seen % self.stride
        self._seen += flat.size
        return flat[first :: self.stride]


@dataclass(frozen=True)
class WeightedValues:
    """Values of a tensor and how many values of the tensor each stands for.

    Attributes:
        values: float32 [n], ascending.
        weights: float64 [n].
        minimum: smallest value of the tensor.
        maximum: largest value of the tensor.
    """

    values: np.ndarray
    weights: np.ndarray
    minimum: float
    maximum: float

    @property
    def complete(self) -> bool:
        """True if these are all values of the tensor, not a sample."""
        return not self.weights.size or float(self.weights.max()) == 1.0

    @property
    def usable(self) -> bool:
        """False if the tensor holds NaN or Inf, or nothing was seen."""
        return self.values.size > 0 and math.isfinite(self.minimum) and math.isfinite(self.maximum)


class SampledValues:
    """Keeps about ``capacity`` values of a stream; all of them if there are no more.

    Beyond that, it keeps the ``capacity // 16`` outermost values on either side, all of them, as one outlier can decide
    about a range, and between them every stride-th value (``Stride``), each standing for its share of the rest.
    Smallest and largest value are always exact, and the result does not depend on how the stream was cut into batches.

    Args:
        capacity: values kept.
        samples: samples to come.
    """

    def __init__(self, capacity: int, samples: int) -> None:
        self._capacity = capacity
        self._stride = Stride(capacity, samples)
        self._parts: list[np.ndarray] = []
        self._kept = 0
        # Shares of a stream of ``capacity`` values: the same number of outer values however long the real one is.
        self._upper = Tail(1 / _TAIL_PART)
        self._lower = Tail(1 / _TAIL_PART, lower=True)
        self._has_tails = False
        self._seen = 0
        self._minimum = np.float32(np.inf)
        self._maximum = np.float32(-np.inf)

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch of ``samples`` samples."""
        flat = values.reshape(-1)
        low, high = flat.min(), flat.max()
        self._minimum, self._maximum = np.minimum(self._minimum, low), np.maximum(self._maximum, high)
        chosen = self._stride.take(flat, samples)
        if not self._seen:
            self._has_tails = self._stride.stride > 1
        self._seen += flat.size
        if not (np.isfinite(low) and np.isfinite(high)):
            return
        if self._has_tails:
            self._upper.update(flat, high, self._capacity)
            self._lower.update(flat, low, self._capacity)
        if chosen.size:
            self._parts.append(chosen.astype(np.float32))  # a copy, so that the batch itself can go
            self._kept += chosen.size
        while self._kept > 2 * self._capacity:  # more samples, or larger ones, than were announced
            self._stride.stride *= 2
            self._parts = [np.concatenate(self._parts)[::2].copy()]
            self._kept = self._parts[0].size

    def result(self) -> WeightedValues:
        """The sample of everything seen; without values if there was a NaN or an infinity among them."""
        low, high = float(self._minimum), float(self._maximum)
        if not self._parts or not (math.isfinite(low) and math.isfinite(high)):
            return WeightedValues(np.empty(0, np.float32), np.empty(0), low, high)
        body = np.sort(np.concatenate(self._parts))
        if not self._has_tails:
            return WeightedValues(body, np.full(body.size, self._seen / body.size), low, high)
        above, above_counts, upper = self._upper.beyond(self._capacity)
        below, below_counts, lower = self._lower.beyond(self._capacity)
        body = body[np.searchsorted(body, lower, "left") : np.searchsorted(body, upper, "right")]
        rest = self._seen - above_counts.sum() - below_counts.sum()
        values = np.concatenate([below[::-1], body, above])
        weights = np.concatenate([below_counts[::-1], np.full(body.size, rest / max(body.size, 1)), above_counts])
        return WeightedValues(values, weights.astype(np.float64), low, high)
