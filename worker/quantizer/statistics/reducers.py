"""Streaming reductions of one tensor over the calibration set. Memory does not grow with the number of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Range:
    """Calibrated range of one tensor."""

    minimum: float
    maximum: float


class Reducer(Protocol):
    """Sees a tensor batch by batch."""

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch of ``samples`` samples: float32, any shape, not empty."""


class RangeReducer(Reducer, Protocol):
    """A reducer that ends with the tensor's range."""

    def result(self) -> Range:
        """The range over everything seen."""


class ChannelMean:
    """Mean per channel (axis 1), float64 [channels]."""

    def __init__(self) -> None:
        self._sum: np.ndarray | None = None
        self._count = 0

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch, rank 2 or more."""
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


class Tail:
    """The k-th largest value of a stream whose length is known in advance, k = floor(share * length) + 1.

    Only values above a threshold are kept. The threshold is the k-th largest value seen so far; the final k-th
    largest can only be at or above it, so nothing that counts is ever dropped and the answer is exact. Beyond
    ``capacity`` distinct kept values are rounded to fewer significant bits (relative error at most 2^-11, then
    coarser), so memory stays bounded.

    Args:
        share: of the values that may lie above the answer.
        lower: look at the k-th smallest instead.
        capacity: distinct values kept.
    """

    def __init__(self, share: float, *, lower: bool = False, capacity: int = 1 << 16) -> None:
        self._share = share
        self._sign = np.float32(-1 if lower else 1)
        self._capacity = capacity
        self._values = np.empty(0, np.float32)  # ascending, distinct
        self._counts = np.empty(0, np.int64)
        self._threshold = np.float32(-np.inf)
        self._pending: list[np.ndarray] = []
        self._pending_count = 0

    def update(self, values: np.ndarray, extreme: np.float32, expected_length: int) -> None:
        """Take in one batch.

        Args:
            values: float32 [n].
            extreme: largest of ``values`` (smallest for a lower tail): most batches need no second look.
            expected_length: length of the whole stream as far as known; must not shrink from call to call.
        """
        if self._sign * extreme <= self._threshold:
            return
        k = self._rank(expected_length)
        if self._threshold == -np.inf and values.size > 4 * k:
            # First batch: everything below its own k-th largest is out of the question.
            split = values.size - k if self._sign > 0 else k - 1
            self._threshold = np.nextafter(self._sign * np.partition(values, split)[split], np.float32(-np.inf))
        kept = values[values > self._threshold] if self._sign > 0 else -values[values < -self._threshold]
        if not kept.size:
            return
        self._pending.append(kept)
        self._pending_count += kept.size
        if self._pending_count > max(2 * k, 4096):
            self._compact(k)

    def _rank(self, length: int) -> int:
        return int(self._share * length) + 1

    def _compact(self, k: int) -> None:
        if self._pending:
            fresh, counts = np.unique(np.concatenate(self._pending), return_counts=True)
            self._values, self._counts = _merge(self._values, self._counts, fresh, counts)
            self._pending, self._pending_count = [], 0
        above = np.cumsum(self._counts[::-1])[::-1]  # how many values are at least this large
        if above.size and above[0] >= k:
            first = int(np.searchsorted(-above, -k, side="right")) - 1
            self._values, self._counts = self._values[first:], self._counts[first:]
            self._threshold = self._values[0]
        bits = 12
        while self._values.size > self._capacity:
            rounded = (self._values.view(np.uint32) >> bits << bits).view(np.float32)
            fresh, inverse = np.unique(rounded, return_inverse=True)
            self._values, self._counts = fresh, np.bincount(inverse, weights=self._counts).astype(np.int64)
            bits += 2

    def result(self, length: int) -> float:
        """The k-th largest (smallest) of ``length`` values, or the innermost kept one if fewer were kept.

        -inf (inf) if none was kept: nothing was seen, or nothing but that.
        """
        k = self._rank(length)
        self._compact(k)
        if not self._values.size:
            return float(-self._sign) * math.inf
        above = np.cumsum(self._counts[::-1])[::-1]
        reached = np.flatnonzero(above >= k)
        return float(self._sign * self._values[reached[-1] if reached.size else 0])


def _merge(
    values: np.ndarray, counts: np.ndarray, more_values: np.ndarray, more_counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    merged, inverse = np.unique(np.concatenate([values, more_values]), return_inverse=True)
    return merged, np.bincount(inverse, weights=np.concatenate([counts, more_counts])).astype(np.int64)


class Percentile:
    """The range that keeps the central ``percentile`` percent of all values seen.

    Asymmetric: (100 - percentile) / 2 percent are cut on either side. Symmetric: 100 - percentile percent of the
    absolute values are cut. NaN anywhere makes the range NaN.

    Args:
        percentile: share of values kept, in percent.
        samples: number of batches' samples to come, to know the length of the stream after the first batch.
        symmetric: judge absolute values.
    """

    def __init__(self, percentile: float, *, samples: int, symmetric: bool = False) -> None:
        cut = (100.0 - percentile) / 100.0
        self._symmetric = symmetric
        self._samples = samples
        self._upper = Tail(cut if symmetric else cut / 2)
        self._lower = None if symmetric else Tail(cut / 2, lower=True)
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

    def result(self) -> Range:
        """The range over everything seen."""
        if not self._finite:
            return Range(math.nan, math.nan)
        upper = self._upper.result(self._seen)
        return Range(-upper if self._lower is None else self._lower.result(self._seen), upper)
