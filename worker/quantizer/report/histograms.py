"""Histograms of what a row computes with, and the limits beyond which its grid clips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from service.contracts.report import Histogram
from worker.quantizer.numerics.blocks import FloatGrid, Grid
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.statistics.sampling import Stride

BINS = 32
# Values that a histogram is made of: its bars stand still long before.
_WEIGHT_VALUES, _ACTIVATION_VALUES = 1 << 20, 1 << 14


class WatchedActivations:
    """Keeps a bounded sample of each tensor's values: all samples, evenly spread positions.

    Args:
        samples: to come.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._strides: dict[str, Stride] = {}
        self._parts: dict[str, list[np.ndarray]] = {}

    def see(self, name: str, values: np.ndarray) -> None:
        """Take in one sample's values of the tensor of row ``name``; those that are no floats are left out."""
        if values.dtype.kind != "f" or not values.size:
            return
        stride = self._strides.setdefault(name, Stride(_ACTIVATION_VALUES, self._samples))
        self._parts.setdefault(name, []).append(stride.take(values.reshape(-1), 1).astype(np.float32))

    def histogram(self, name: str, grid: Grid | None) -> Histogram | None:
        """That of a row, with the limits of its grid; None if nothing finite was seen."""
        parts = self._parts.get(name)
        if not parts:
            return None
        values = np.concatenate(parts)
        return _histogram(values, None if grid is None else grid.at_run_time())


def weight_histogram(values: np.ndarray, grid: Grid | None) -> Histogram | None:
    """That of a float weight; the lines are those of the widest of its grids, clipped is what its own grid clips."""
    return _histogram(values.astype(np.float32, copy=False), grid)


Limits = tuple[np.ndarray, np.ndarray, np.ndarray]


def _limits(grid: Grid, shape: tuple[int, ...]) -> Limits | None:
    """Smallest and largest value that the grid holds and half of its step there; they broadcast to ``shape``.

    None for a format whose blocks each have a scale of their own that depends on the values.
    """
    if isinstance(grid, IntegerGrid):
        low, high = grid.limits
        scale, zero_point = (grid.spread(part, shape).astype(np.float64) for part in (grid.scale, grid.zero_point))
        return (low - zero_point) * scale, (high - zero_point) * scale, scale / 2
    if isinstance(grid, FloatGrid):
        spread = grid.spread_scale(shape)
        scale = np.ones((), np.float32) if spread is None else spread
        largest = np.float64(grid.form.maximum) * scale
        half_step = np.exp2(np.float64(grid.form.maximum_exponent - grid.form.mantissa_bits - 1)) * scale
        return -largest, largest, half_step
    return None


def _with_limits(values: np.ndarray, grid: Grid | None) -> Iterator[tuple[np.ndarray, Limits]]:
    """The values, piece by piece where they are many, with the limits of their grid."""
    parts = grid.parts(values.shape) if isinstance(grid, IntegerGrid) else [((...,), grid)]
    for where, part in parts:
        piece = values[where]
        limits = None if part is None else _limits(part, piece.shape)
        if limits is not None:
            yield piece, limits


def _histogram(values: np.ndarray, grid: Grid | None) -> Histogram | None:
    """Of the finite ones of ``values``; None without any. Not clipped is what rounding alone brings to the limit."""
    flat = values.reshape(-1)
    counted = flat[:: max(1, flat.size // _WEIGHT_VALUES)]
    counted = counted[np.isfinite(counted)].astype(np.float64)
    if not counted.size:
        return None
    ends = float(counted.min()), float(counted.max())
    counts = _counts(counted, *ends)
    clipped, lows, highs = 0, [], []
    for piece, limits in _with_limits(values, grid):
        low, high, slack = limits
        clipped += int(np.count_nonzero((piece < low - slack) | (piece > high + slack)))
        lows.append(float(np.min(low)))
        highs.append(float(np.max(high)))
    lines: Mapping[str, float] = {}
    if lows:
        lines = {
            "clip_low": _short(min(lows)),
            "clip_high": _short(max(highs)),
            "clipped_percent": round(100.0 * clipped / flat.size, 4),
        }
    return Histogram(minimum=_short(ends[0]), maximum=_short(ends[1]), counts=tuple(counts.tolist()), **lines)


def _counts(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values per bin; all in the middle one where float64 cannot tell the bins apart."""
    if high - low <= BINS * np.spacing(max(-low, high, 1.0)):
        counts = np.zeros(BINS, np.int64)
        counts[BINS // 2] = values.size
        return counts
    return np.histogram(values, bins=BINS, range=(low, high))[0]


def _short(value: float) -> float:
    return float(f"{value:.6g}")
