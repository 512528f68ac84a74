"""The ranges of blocks of weights whose grids have the smallest sums of squared errors.

A block has a few dozen values: none of them lies far outside of the others, so that the best ends lie near the
extremes, but what one end gains depends on the other. Both are searched together, on a grid that is made finer around
the best.
"""

from __future__ import annotations

import numpy as np

from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.weight_search import squared_errors

# Factors of the extremes at first; of large weights fewer, as each block is one of very many.
_FACTORS = (1.1, 1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
_FACTORS_LARGE = (1.0, 0.93, 0.86, 0.78)
_LARGE_WEIGHTS = 1 << 23
# Steps around the best, in parts of the step before; each of so many rounds.
_AROUND, _ROUNDS, _FINER = (-1.0, 0.0, 1.0), 3, 0.5
_STEP, _STEP_LARGE = 0.025, 0.035


def block_range(
    groups: np.ndarray, low: np.ndarray, high: np.ndarray, family: GridFamily, *, weights: int
) -> tuple[np.ndarray, np.ndarray]:
    """The range of every block whose grid has the smallest sum of squared errors.

    Args:
        groups: float32 [g, n].
        low: their smallest values [g].
        high: their largest values [g].
        family: the grids; of no power-of-two scales.
        weights: size of the whole weight.

    Returns:
        the ends, float64 [g]. Blocks that are not finite or all 0 keep their own.
    """
    low, high = np.minimum(low, 0).astype(np.float64), np.maximum(high, 0).astype(np.float64)
    usable = np.isfinite(low) & np.isfinite(high) & (low < high)
    if family.symmetric:
        high = np.where(usable, np.maximum(-low, high), high)
        low = np.where(usable, -high, low)
    found = low.copy(), high.copy()
    if usable.any():
        part = _Blocks(groups if usable.all() else groups[usable], low[usable], high[usable], family)
        large = weights > _LARGE_WEIGHTS
        factors = part.search(_FACTORS_LARGE if large else _FACTORS, _STEP_LARGE if large else _STEP)
        found[0][usable], found[1][usable] = factors[0] * low[usable], factors[1] * high[usable]
    return found


class _Blocks:
    def __init__(self, groups: np.ndarray, low: np.ndarray, high: np.ndarray, family: GridFamily) -> None:
        self._groups, self._low, self._high, self._family = groups, low, high, family
        self._which = np.arange(low.size)
        self._best, self._error = np.ones((2, low.size)), np.full(low.size, np.inf)

    def search(self, coarse: tuple[float, ...], step: float) -> np.ndarray:
        """Factors [2, g] of both ends."""
        one = np.ones_like(self._low)
        self._try(one, one)
        for first in coarse:
            for second in (first,) if self._family.symmetric else coarse:
                self._try(first * one, second * one)
        for _ in range(_ROUNDS):
            low, high = self._best.copy()
            for first in _AROUND:
                for second in (first,) if self._family.symmetric else _AROUND:
                    self._try(low + first * step, high + second * step)
            step *= _FINER
        return self._best

    def _try(self, low: np.ndarray, high: np.ndarray) -> None:
        scale, zero = self._family.parameters(low * self._low, high * self._high)
        errors = squared_errors(self._groups, self._which, scale, zero, self._family)
        better = errors < self._error
        self._best[0][better], self._best[1][better] = low[better], high[better]
        self._error[better] = errors[better]
