"""Streaming reductions of one tensor, whole or by an axis. Memory does not grow with the number of samples."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from worker.quantizer.statistics.sampling import StreamedHistogram, Tail


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

    def result(self, samples: Collection[int] | None = None) -> np.ndarray | None:
        """Float32 [rows, channels] of the samples of these numbers, None: of all; None if there are none."""
        if not self._parts:
            return None
        self._thin()
        _, numbers, rows = self._parts[0]
        chosen = rows if samples is None else rows[np.isin(numbers, list(samples))]
        return chosen if chosen.size else None


def _hashes(first: int, count: int) -> np.ndarray:
    """Uint64 [count]: numbers ``first`` ... mixed by the finalizer of SplitMix64 (Steele et al. 2014)."""
    mixed = (np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


# The range whose quantized histogram has the smallest Kullback-Leibler divergence from the float one.
#
# Source: Migacz, 8-bit Inference with TensorRT (GTC 2017), as in onnxruntime's and TensorRT's calibrators. A candidate
# range of n bins is merged into L levels; the values outside count to the outermost bins of the reference P, and Q
# spreads every level evenly over its bins that are not empty. The candidate with the smallest sum P log(P / Q) wins.
#
# The divergence does not see how far away the values are that a range cuts off, and of a tensor with a narrow peak and
# a long tail, as GELU makes them, it would keep the peak alone. So a candidate counts only if its mean square error, at
# the steps of the tensor's grid, is not above that of the whole range: cutting may not cost more than it saves.
#
# Where those two calibrators differ, this one takes levels of equal width (bin g * n // L begins level g), as a
# quantizer has them, instead of leaving the rest of the division to the last one. Exact zeros are left out: every grid
# holds 0 exactly, while the peak that a Relu makes there would look like a loss.

# Candidates come widest first, so that nothing is cut for a tie.
# Candidates for one end, at most; more bins are tried in larger steps.
_CANDIDATES = 1024
_BLOCK_ELEMENTS = 1 << 20
_ROUNDS = 3
# Levels on either side of 0 whose errors are taken exactly, where a step holds this many bins.
_NEAR_LEVELS = 4
_BINS_PER_STEP = 4


class Entropy:
    """Streaming observer of the entropy method.

    Symmetric: ``bins`` bins over [-m, m], and candidates that shrink on both sides. Asymmetric: ``bins`` bins over the
    observed range, stretched to hold 0, and candidates that shrink on either side. In both cases the result is kept
    within the observed range.

    Args:
        bins: of the histogram.
        levels: of the quantized histogram.
        samples: samples to come.
        symmetric: search symmetric ranges.
        steps: of the grid that the range is for, from one end to the other; None if they are not of equal width, so
            that nothing is known of its errors.
    """

    def __init__(self, bins: int, levels: int, *, samples: int, symmetric: bool, steps: int | None = None) -> None:
        self._bins = bins
        self._levels = levels
        self._steps = steps
        self._symmetric = symmetric
        self._histogram = StreamedHistogram(bins, samples)

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch."""
        self._histogram.update(values, samples)

    def result(self) -> Range:
        """The range over everything seen."""
        minimum, maximum = self._histogram.minimum, self._histogram.maximum
        if not (math.isfinite(minimum) and math.isfinite(maximum)) or minimum == maximum == 0:
            return Range(minimum, maximum)
        low, high = min(minimum, 0.0), max(maximum, 0.0)
        if self._symmetric:
            high = max(-low, high)
            low = -high
        counts = self._histogram.counts(low, high, self._bins)
        costs = Costs(counts, self._levels, -low / (high - low) * self._bins, self._steps)
        first, last = (symmetric_bins if self._symmetric else free_bins)(costs)
        width = (high - low) / self._bins
        return Range(max(low + first * width, minimum), min(low + last * width, maximum))


class Costs:
    """What candidate ranges of one histogram cost: their divergences, inf for ranges that cut off too much.

    ``counts`` are float64 [bins]; ``zero`` is where 0 lies, in bins; the rest is as in ``Entropy``.
    """

    def __init__(self, counts: np.ndarray, levels: int, zero: float, steps: int | None = None) -> None:
        self.bins, self.levels, self.zero = counts.size, levels, zero
        self._counts, self._steps = counts, steps
        middles = np.arange(counts.size) + 0.5
        self._moments = [np.concatenate([[0.0], np.cumsum(counts * middles**k)]) for k in range(3)]
        self._most = self.squared_errors(np.array([0]), np.array([counts.size]))[0] if steps else math.inf

    def of(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Float64 [c] for candidates [first, last), int [c]."""
        found = divergences(self._counts, first, last, self.levels)
        return found if self._steps is None else np.where(self.squared_errors(first, last) > self._most, np.inf, found)

    def squared_errors(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Sums of squared errors in bins, float64 [c].

        Outside, the distance to the end; around 0, where a peak may be narrower than a step, the distance to the next
        level; elsewhere a twelfth of a squared step.
        """
        step = (last - first) / (self._steps or 1)
        below = self._about(first, np.zeros_like(first), first)
        above = self._about(last, last, np.full_like(last, self.bins))
        near = np.arange(-_NEAR_LEVELS, _NEAR_LEVELS + 2)
        edges = np.ceil(self.zero + (near - 0.5) * step[:, None] - 0.5).astype(np.int64)
        edges = np.clip(edges, first[:, None], last[:, None])
        levels = self.zero + near[:-1] * step[:, None]
        exact = self._about(levels, edges[:, :-1], edges[:, 1:]).sum(axis=1)
        count = self._moments[0]
        about = count[edges[:, -1]] - count[edges[:, 0]]
        exact = np.where(step >= _BINS_PER_STEP, exact, about * step**2 / 12)
        found: np.ndarray = (count[last] - count[first] - about) * step**2 / 12 + exact + below + above
        return found

    def _about(self, point: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Squared distances of the values in [first, last) from ``point``, summed; all in bins, any shape."""
        count, total, squares = (moment[last] - moment[first] for moment in self._moments)
        found: np.ndarray = squares - 2 * point * total + point**2 * count
        return found


def symmetric_bins(costs: Costs) -> tuple[int, int]:
    """The best [first, last) among the ranges of bins around the middle."""
    middle = costs.bins // 2
    halves = _spaced(max(min(costs.levels, costs.bins) // 2, 1), middle)[::-1]
    k = int(np.argmin(costs.of(middle - halves, middle + halves)))
    return int(middle - halves[k]), int(middle + halves[k])


def free_bins(costs: Costs) -> tuple[int, int]:
    """The best [first, last) found by moving one end at a time; 0 stays inside, and so do ``levels`` bins."""
    bins, levels = costs.bins, costs.levels
    zero = min(int(costs.zero), bins - 1)
    first, last = 0, bins
    least = float(costs.of(np.array([first]), np.array([last]))[0])
    for _ in range(_ROUNDS):
        before = least
        lasts = _spaced(min(max(zero + 1, first + levels), bins), bins)[::-1]
        found = costs.of(np.full_like(lasts, first), lasts)
        if found.min() < least:
            least, last = float(found.min()), int(lasts[int(np.argmin(found))])
        firsts = _spaced(0, max(min(zero, last - levels), 0))
        found = costs.of(firsts, np.full_like(firsts, last))
        if found.min() < least:
            least, first = float(found.min()), int(firsts[int(np.argmin(found))])
        if least == before:
            break
    return first, last


def _spaced(first: int, last: int) -> np.ndarray:
    return np.unique(np.linspace(first, last, min(_CANDIDATES, last - first + 1)).round().astype(np.int64))


def divergences(counts: np.ndarray, first: np.ndarray, last: np.ndarray, levels: int) -> np.ndarray:
    """Kullback-Leibler divergences of candidate ranges, float64 [c].

    Args:
        counts: float64 [bins].
        first: candidates' first bins, int [c].
        last: the bins after their last ones, int [c].
        levels: of the quantized histogram.

    Returns:
        inf where a level without any value would have to stand for values that were cut off.
    """
    block = max(1, _BLOCK_ELEMENTS // (levels + 1))
    parts = [
        _divergences(counts, first[k : k + block], last[k : k + block], levels) for k in range(0, first.size, block)
    ]
    return np.concatenate(parts)


def _divergences(counts: np.ndarray, first: np.ndarray, last: np.ndarray, levels: int) -> np.ndarray:
    total = np.concatenate([[0.0], np.cumsum(counts)])
    logs = np.concatenate([[0.0], np.cumsum(_x_log_x(counts))])
    filled = np.concatenate([[0], np.cumsum(counts > 0)])
    cut = np.stack([total[first], total[-1] - total[last]])  # outliers on either side
    ends = np.stack([counts[first], counts[last - 1]])
    # sum p log p, with the outliers added to the end bins
    own = logs[last] - logs[first] + (_x_log_x(ends + cut) - _x_log_x(ends)).sum(axis=0)
    edges = first[:, None] + np.arange(levels + 1) * (last - first)[:, None] // levels
    masses = np.diff(total[edges], axis=1)
    bins = np.diff(filled[edges], axis=1).astype(np.float64)
    bins[:, 0] += (ends[0] == 0) & (cut[0] > 0)
    bins[:, -1] += (ends[1] == 0) & (cut[1] > 0)
    reference = masses.copy()
    reference[:, 0] += cut[0]
    reference[:, -1] += cut[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.where(reference > 0, reference * np.log(masses / bins), 0.0).sum(axis=1)
        inside = masses.sum(axis=1)
        found: np.ndarray = (own - spread) / total[-1] - np.log(total[-1]) + np.log(inside)
    return np.where(np.isnan(found), np.inf, found)


def _x_log_x(values: np.ndarray) -> np.ndarray:
    result: np.ndarray = values * np.log(np.where(values > 0, values, 1.0))
    return result
