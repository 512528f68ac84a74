"""What a grid does to a tensor, channel by channel, and what other grids of as many bits would do."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.numerics.integer import IntegerGrid

# Values looked at per sample of a tensor, about: every so many-th of its positions, of all channels alike.
_VALUES = 1 << 16
# How much narrower the ranges are that are tried, as powers of two.
_NARROWER = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
# Peaks beside the root mean square that no grid should cut off.
_CREST = 2.5
# From here on the largest channel beside the median one is one of few.
_FEW_CHANNELS = 4.0


@dataclass(frozen=True)
class TensorNoise:
    """Error of a quantized tensor beside its signal: mean over its channels, each at most 1."""

    clipping: float = 0.0  # of values beyond the ends of the grid
    clipped_share: float = 0.0  # how many values these are, 0 to 1
    outliers: float = 0.0  # that a narrower range would save, though it clips: few values set the range
    channels: float = 0.0  # that a range for each channel would save on top: few channels set the range
    rounding: float = 0.0  # what is left: too few levels
    ratio: float = 1.0  # size of the largest channel beside the median one


class _ByChannel:
    """Sums by channel; where the number of channels differs from batch to batch, all count as one.

    Args:
        axis: of the channels; a tensor without it is one channel.
        sums: how many.
    """

    def __init__(self, axis: int, sums: int) -> None:
        self._axis: int | None = axis
        self.sums = [np.zeros(0)] * sums
        self.peak = np.zeros(0)
        self.count = 0

    def rows(self, values: np.ndarray, samples: int) -> np.ndarray:
        """[channels, some of the positions], which are counted."""
        found = _rows(values, self._axis, samples)
        if self.count and len(found) != len(self.peak):
            self.count *= len(self.peak)
            self.sums = [total.sum(keepdims=True) for total in self.sums]
            self.peak, self._axis = self.peak.max(keepdims=True), None
            found = _rows(values, None, samples)
        elif not self.count:
            self.sums, self.peak = [np.zeros(len(found)) for _ in self.sums], np.zeros(len(found))
        self.count += found.shape[1]
        return found

    def same(self, values: np.ndarray, samples: int) -> np.ndarray:
        """The positions that ``rows`` has just chosen, of a tensor of the same shape."""
        return _rows(values, self._axis, samples)

    def add(self, place: int, squares: np.ndarray) -> None:
        """Sum up [channels, positions]."""
        self.sums[place] = self.sums[place] + squares.sum(axis=1)


class ChannelPower:
    """Mean square of every channel, float64 [channels].

    Args:
        axis: of the channels; a tensor without it is one channel.
    """

    def __init__(self, axis: int) -> None:
        self._seen = _ByChannel(axis, 1)

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch: float32, any shape."""
        self._seen.add(0, np.square(self._seen.rows(values, samples), dtype=np.float64))

    def result(self) -> np.ndarray | None:
        """Over everything seen; None if nothing was."""
        return self._seen.sums[0] / self._seen.count if self._seen.count else None


class ActivationNoise:
    """Errors of a tensor on its grid, and on grids with narrower ranges.

    Args:
        grid: of the whole tensor.
        axis: of its channels; a tensor without it is one channel.
    """

    def __init__(self, grid: Grid, axis: int) -> None:
        self._grid = grid
        self._seen = _ByChannel(axis, 3 + len(_NARROWER))  # power; errors now, by clipping, with narrower ranges
        self._clipped = self._values = 0

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch: float32, any shape."""
        seen, grid = self._seen, self._grid
        rows = seen.rows(values, samples)
        found = rows.astype(np.float64)
        self._values += rows.size
        seen.add(0, np.square(found))
        seen.peak = np.maximum(seen.peak, np.abs(found).max(axis=1, initial=0.0))
        if not isinstance(grid, IntegerGrid):
            seen.add(1, np.square(seen.same(grid.fake(values), samples) - found))
            return
        seen.add(1, np.square(grid.fake(rows) - found))
        low, high = _ends(grid)
        beyond = np.maximum(found - high, 0.0) + np.maximum(low - found, 0.0)
        clipped = beyond > float(grid.scale) / 2
        self._clipped += int(np.count_nonzero(clipped))
        seen.add(2, np.square(np.where(clipped, beyond, 0.0)))
        for k, power in enumerate(_NARROWER):
            narrower = replace(grid, scale=(grid.scale * np.float32(2.0**-power)).astype(np.float32))
            seen.add(3 + k, np.square(narrower.fake(rows) - found))

    def result(self) -> TensorNoise:
        """Over everything seen; no noise if that was nothing, or zeros."""
        power, count = self._seen.sums[0], self._seen.count
        alive = power > 0
        if not alive.any():
            return TensorNoise()
        now, clipping, *narrower = (mean_noise(errors, power, alive) for errors in self._seen.sums[1:])
        peak = self._seen.peak[alive]
        ratio = float(peak.max() / np.median(peak))
        if not isinstance(self._grid, IntegerGrid):
            return TensorNoise(rounding=now, ratio=ratio)
        clipping = min(clipping, now)
        low, high = _ends(self._grid)
        # A range that the largest channel fills all the time is not that of outliers.
        typical = _CREST * float(np.sqrt(power.max() / count))
        fair = [noise for noise, k in zip(narrower, _NARROWER, strict=True) if max(high, -low) * 2.0**-k >= typical]
        outliers = max(min(now - min(now, *fair), now - clipping), 0.0) if fair else 0.0
        steps = float(self._grid.scale) * np.minimum(peak / max(high, -low), 1.0)
        own = float(np.minimum(np.square(steps) / 12 / (power[alive] / count), 1.0).mean())
        rest = max(now - clipping - outliers, 0.0)
        own = own if ratio >= _FEW_CHANNELS else rest
        return TensorNoise(
            clipping=clipping,
            clipped_share=self._clipped / self._values,
            outliers=outliers,
            channels=max(rest - own, 0.0),
            rounding=min(rest, own),
            ratio=ratio,
        )


def mean_noise(errors: np.ndarray, power: np.ndarray, alive: np.ndarray) -> float:
    """Mean over the living channels of error beside signal, each at most 1."""
    return float(np.minimum(errors[alive] / power[alive], 1.0).mean())


def _ends(grid: IntegerGrid) -> tuple[float, float]:
    """Smallest and largest value of a grid with one scale."""
    low, high = grid.limits
    zero, scale = int(grid.zero_point), float(grid.scale)
    return (low - zero) * scale, (high - zero) * scale


def _rows(values: np.ndarray, axis: int | None, samples: int) -> np.ndarray:
    """[channels, some of the positions]; one channel without an axis."""
    flat = values.ndim < 2 or axis is None
    rows = values.reshape(1, -1) if flat else np.moveaxis(values, axis or 0, 0).reshape(values.shape[axis or 0], -1)
    stride = max(rows.size // (_VALUES * max(samples, 1)), 1)
    chosen: np.ndarray = rows[:, ::stride]
    return chosen
