"""What is kept of a stream of values: a bounded sample, the outermost ones exactly, a histogram of unknown range."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# Order statistics of a stream: the outermost values, kept exactly and without the rest.


class Tail:
    """The k-th largest value of a stream whose length is known in advance, k = floor(share * length) + 1.

    Only values above a threshold are kept. The threshold is the k-th largest value seen so far; the final k-th
    largest can only be at or above it, so nothing that counts is ever dropped and the answer is exact. Beyond
    ``capacity`` distinct kept values are rounded to fewer significant bits (relative error at most 2^-11, then
    coarser), so memory stays bounded.

    With ``lower`` the k-th smallest is looked at instead.
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

    def result(self, length: int, share: float | None = None) -> float:
        """The k-th largest (smallest) of ``length`` values, or the innermost kept one if fewer were kept.

        ``length`` values were seen; ``share`` is at most the constructor's, which is the default. Returns -inf (inf) if
        none was kept: nothing was seen, or nothing but that.
        """
        self._compact(self._rank(length))
        if not self._values.size:
            return float(-self._sign) * math.inf
        k = self._rank(length) if share is None else int(share * length) + 1
        above = np.cumsum(self._counts[::-1])[::-1]
        reached = np.flatnonzero(above >= k)
        return float(self._sign * self._values[reached[-1] if reached.size else 0])

    def beyond(self, length: int) -> tuple[np.ndarray, np.ndarray, float]:
        """The values strictly above (below) the k-th largest (smallest).

        Returns distinct values float32 [m], how often each was seen int64 [m], and the k-th largest (smallest) value.
        """
        bound = self.result(length)
        outside = self._values > self._sign * np.float32(bound)
        return self._sign * self._values[outside], self._counts[outside], bound


def _merge(
    values: np.ndarray, counts: np.ndarray, more_values: np.ndarray, more_counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    merged, inverse = np.unique(np.concatenate([values, more_values]), return_inverse=True)
    return merged, np.bincount(inverse, weights=np.concatenate([counts, more_counts])).astype(np.int64)


# Outer values kept on either side, as a part of the sample's capacity.
_TAIL_PART = 16


class Stride:
    """Every stride-th value of a stream, by position, so that the choice does not depend on how the stream is cut.

    The stride shares no factor with the size of a sample: over the samples every position of the tensor has its turn.

    ``samples``, those to come, tell the length of the stream after the first batch.
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
    """Values of a tensor and how many values of the tensor each stands for."""

    values: np.ndarray  # float32 [n], ascending
    weights: np.ndarray  # float64 [n]
    minimum: float  # smallest value of the tensor
    maximum: float  # largest value of the tensor

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


# A histogram of a stream whose range is not known in advance.

# Values counted per tensor, about; of larger tensors every stride-th value.
_CAPACITY = 1 << 20
# Cells per bin of the final histogram: bins of any width are put together from them with little rounding.
_CELLS_PER_BIN = 16


class StreamedHistogram:
    """Counts over cells of width 2^k; a value out of range doubles the width and merges the cells in pairs.

    The cells end up the same however the stream is cut, since floor(floor(x / w) / 2) = floor(x / 2w). Of tensors with
    more than 2^20 values over the whole stream every stride-th value is counted (``Stride``); smallest and largest
    value are always exact. Zeros are not counted.

    Memory is 8 bytes for each of 16 to 32 cells per bin of the histograms asked for later.
    """

    def __init__(self, bins: int, samples: int) -> None:
        self._half = 1 << (bins * _CELLS_PER_BIN // 2).bit_length()
        self._cells = np.zeros(2 * self._half, np.int64)
        self._stride = Stride(_CAPACITY, samples)
        self._exponent: int | None = None  # the cells cover [-2^exponent, 2^exponent)
        self.minimum = math.inf
        self.maximum = -math.inf

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch. After a NaN or an infinity nothing is counted any more."""
        flat = values.reshape(-1)
        low, high = flat.min(), flat.max()
        self.minimum, self.maximum = float(np.minimum(self.minimum, low)), float(np.maximum(self.maximum, high))
        chosen = self._stride.take(flat, samples)
        largest = max(abs(float(low)), abs(float(high)))
        if not math.isfinite(largest) or largest == 0:
            return
        self._exponent = self._reach(math.frexp(largest)[1])
        chosen = chosen[chosen != 0]
        # Exact: a multiplication by a power of two.
        steps = np.multiply(chosen, math.ldexp(float(self._half), -self._exponent), dtype=np.float64)
        places = np.floor(steps, out=steps).astype(np.int64)
        self._cells += np.bincount(places + self._half, minlength=self._cells.size)

    def _reach(self, exponent: int) -> int:
        """Make room for values below 2^exponent in magnitude; returns the exponent that the cells have then."""
        if self._exponent is None or exponent <= self._exponent:
            return exponent if self._exponent is None else self._exponent
        shift = min(exponent - self._exponent, self._half.bit_length())
        places = (np.arange(-self._half, self._half) >> shift) + self._half
        self._cells = np.bincount(places, weights=self._cells, minlength=2 * self._half).astype(np.int64)
        return exponent

    def counts(self, low: float, high: float, bins: int) -> np.ndarray:
        """Float64 [bins] over [low, high]: every cell counts to the bin of its middle."""
        if self._exponent is None:
            return np.zeros(bins)
        middles = (np.arange(-self._half, self._half) + 0.5) * math.ldexp(1.0 / self._half, self._exponent)
        places = np.clip(np.floor((middles - low) / (high - low) * bins), 0, bins - 1).astype(np.int64)
        return np.bincount(places, weights=self._cells, minlength=bins)
