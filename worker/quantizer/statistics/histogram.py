"""A histogram of a stream whose range is not known in advance."""

from __future__ import annotations

import math

import numpy as np

from worker.quantizer.statistics.sampling import Stride

# Values counted per tensor, about; of larger tensors every stride-th value.
_CAPACITY = 1 << 20
# Cells per bin of the final histogram: bins of any width are put together from them with little rounding.
_CELLS_PER_BIN = 16


class StreamedHistogram:
    """Counts over cells of width 2^k; a value out of range doubles the width and merges the cells in pairs.

    The cells end up the same however the stream is cut, since floor(floor(x / w) / 2) = floor(x / 2w). Of tensors with
    more than 2^20 values over the whole stream every stride-th value is counted (``Stride``); smallest and largest
    value are always exact. Zeros are not counted.

    Args:
        bins: of the histograms asked for later; memory is 8 bytes for each of 16 to 32 cells per bin.
        samples: samples to come.
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
