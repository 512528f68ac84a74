"""Streaming reductions of one tensor over the calibration set. Memory does not grow with the number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from worker.quantizer.statistics.sampling import Tail


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

    ``axis`` is that of the channels, 1 or -1.
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


class MovingMinMax(MinMax):
    """Running mean of the samples' extremes: range = (1 - constant) * range + constant * extremes of the next sample.

    The first sample's extremes start it. NaN anywhere makes the range NaN.

    ``constant`` is the weight of each new sample, in (0, 1].
    """

    def __init__(self, constant: float) -> None:
        self._constant = constant
        super().__init__()
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


class Percentiles:
    """Ranges that keep the central ``percentiles`` percent of all values seen, one for each.

    Asymmetric: (100 - percentile) / 2 percent are cut on either side. Symmetric: 100 - percentile percent of the
    absolute values are cut. NaN anywhere makes the ranges NaN.

    ``percentiles`` are in percent; ``samples``, those to come, tell the length of the stream after the first batch.
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


# Statistics of a tensor by the index of one axis: what is known of each of its channels.

_LONG_ROW = 1024


class ChannelExtremes:
    """Smallest and largest value per index of ``axis``, float32 [channels] each. NaN anywhere stays NaN."""

    def __init__(self, axis: int = -1) -> None:
        self._axis = axis
        self._extremes: tuple[np.ndarray, np.ndarray] | None = None

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch with that axis."""
        axis = self._axis % values.ndim
        if axis == values.ndim - 1:
            rows = values.reshape(-1, values.shape[-1])
            low, high = rows.min(axis=0), rows.max(axis=0)
        else:
            cube = values.reshape(math.prod(values.shape[:axis]), values.shape[axis], -1)
            # along long rows numpy is fastest, across short ones
            first, then = (2, 0) if cube.shape[2] >= _LONG_ROW else (0, 1)
            low, high = cube.min(axis=first).min(axis=then), cube.max(axis=first).max(axis=then)
        if self._extremes is not None:
            low, high = np.minimum(low, self._extremes[0]), np.maximum(high, self._extremes[1])
        self._extremes = low, high

    def result(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Minima and maxima over everything seen; None if nothing was seen."""
        return self._extremes


class RowSample:
    """A bounded sample of a tensor's rows, a row being what one index of all axes but the last gives.

    Kept are the rows whose numbers have the smallest hashes: no period of the tensor (tokens of a sample, say) comes
    through, and the sample does not depend on how the stream was cut into batches.

    ``rows`` are kept at most, and fewer if they would be more values than ``elements``, but ``fewest`` in any case.
    """

    def __init__(self, *, rows: int = 1024, elements: int = 1 << 20, fewest: int = 64) -> None:
        self._most, self._elements, self._fewest = rows, elements, fewest
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # hashes, numbers of samples, rows
        self._capacity = rows
        self._largest: np.uint64 | None = None  # hash beyond which no row can be among the smallest
        self._kept = self._seen_rows = self._seen_samples = 0

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch of ``samples`` samples, rank 1 or more."""
        rows = values.reshape(-1, values.shape[-1])
        self._capacity = max(self._fewest, min(self._most, self._elements // max(rows.shape[1], 1)))
        hashes = _hashes(self._seen_rows, len(rows))
        chosen = np.arange(len(rows)) if self._largest is None else np.flatnonzero(hashes <= self._largest)
        if chosen.size:
            numbers = self._seen_samples + chosen * max(samples, 1) // len(rows)
            self._parts.append((hashes[chosen], numbers, rows[chosen].astype(np.float32)))
            self._kept += chosen.size
        self._seen_rows += len(rows)
        self._seen_samples += samples
        if self._kept > 2 * self._capacity:
            self._thin()

    def _thin(self) -> None:
        """Keep the ``capacity`` smallest hashes, in the order of the rows."""
        hashes, numbers, rows = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        if hashes.size > self._capacity:
            self._largest = np.partition(hashes, self._capacity - 1)[self._capacity - 1]
            kept = hashes <= self._largest
            hashes, numbers, rows = hashes[kept], numbers[kept], rows[kept]
        self._parts, self._kept = [(hashes, numbers, rows)], hashes.size

    def result(self, *, first_sample: int = 0) -> np.ndarray | None:
        """Float32 [rows, channels] of the samples from number ``first_sample`` on; None if there are none."""
        if not self._parts:
            return None
        self._thin()
        _, numbers, rows = self._parts[0]
        chosen = rows[numbers >= first_sample]
        return chosen if chosen.size else None


def _hashes(first: int, count: int) -> np.ndarray:
    """Uint64 [count]: numbers ``first`` ... mixed by the finalizer of SplitMix64 (Steele et al. 2014)."""
    mixed = (np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
