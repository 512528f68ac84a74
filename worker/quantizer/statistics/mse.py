"""The range whose grid has the smallest sum of squared errors.

Rounding costs about scale^2 / 12 for every value inside the range and cutting costs the squared distance for every
value outside. Both are convex in the ends of the range, so a search along each end in turn finds the minimum; the
errors themselves are those of the very grid, not of this model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from worker.quantizer.statistics.grids import GridFamily, SquaredError
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.power_of_two import best_power_of_two
from worker.quantizer.statistics.sampling import WeightedValues

# Candidates per halving of the range, and how many halvings at most.
_PER_OCTAVE, _PER_OCTAVE_SMALL = 8, 32
_OCTAVES = 24
# Beyond this multiple of the smallest error so far no better range is to be expected further in.
_HOPELESS = 4.0
# So few values that the error is ragged, and cheap: look closer.
_SMALL = 4096
_ROUNDS = 4
_GRID_SIDE = 24
# A range is preferred over a wider one only if it is better by more than arithmetic noise.
_NOISE = 1e-9
# A sample's error is off by about 1 / sqrt(32768); within that the observed range is as good as any.
_SAMPLING_NOISE = 0.01

Errors = Callable[[np.ndarray, np.ndarray], np.ndarray]


def mse_range(data: WeightedValues, family: GridFamily) -> Range:
    """The range whose grid has the smallest error; the observed range if the tensor is not finite.

    With power-of-two scales every exponent that can matter is tried, with every zero point, and the range is that of
    the chosen grid, exactly.
    """
    if not data.usable or data.minimum == data.maximum == 0:
        return Range(data.minimum, data.maximum)
    if family.is_integer and family.scale == "power_of_two":
        return best_power_of_two(data, family)
    low, high = min(data.minimum, 0.0), max(data.maximum, 0.0)
    if family.symmetric:
        high = max(-low, high)
        low = -high
    search = _MseSearch(SquaredError(family, data), low, high, fine=data.values.size <= _SMALL, exact=data.complete)
    joined = family.symmetric or low == 0 or high == 0
    return search.joint() if joined else search.separate()


class _MseSearch:
    """Search over (t * low, u * high) for factors t and u."""

    def __init__(self, errors: Errors, low: float, high: float, *, fine: bool, exact: bool) -> None:
        self._errors = errors
        self._low, self._high = low, high
        self._fine = fine
        self._best = np.array([1.0, 1.0])
        self._error = self._observed = float(self._evaluate(self._best[None, :])[0])
        self._worthwhile = _NOISE if exact else _SAMPLING_NOISE

    def _evaluate(self, factors: np.ndarray) -> np.ndarray:
        return self._errors(factors[:, 0] * self._low, factors[:, 1] * self._high)

    def _try(self, factors: np.ndarray) -> np.ndarray:
        """Errors of ``factors`` [c, 2]; the best is remembered."""
        errors = self._evaluate(factors)
        k = int(np.argmin(errors))
        if errors[k] < self._error * (1 - _NOISE):
            self._best, self._error = factors[k], float(errors[k])
        return errors

    def joint(self) -> Range:
        """Both ends shrink by the same factor."""
        self._line(np.array([1.0, 1.0]))
        return self._range()

    def separate(self) -> Range:
        """Each end shrinks by its own factor."""
        self._line(np.array([1.0, 1.0]))
        if self._fine:
            side = np.exp2(-np.arange(_GRID_SIDE) / 4)
            self._try(np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2))
        for _ in range(_ROUNDS):
            before = self._error
            self._line(np.array([1.0, 0.0]))
            self._line(np.array([0.0, 1.0]))
            if self._error >= before * (1 - 1e-3):
                break
        return self._range()

    def _line(self, mask: np.ndarray) -> None:
        """Scale the factors that ``mask`` marks: outward a little, inward until hopeless, then ever finer."""
        origin = np.where(mask > 0, 1.0, self._best)
        per_octave = _PER_OCTAVE_SMALL if self._fine else _PER_OCTAVE
        exponents = np.arange(-per_octave // 4, per_octave * _OCTAVES) / per_octave
        for k in range(0, exponents.size, per_octave):
            errors = self._try(origin * np.exp2(-exponents[k : k + per_octave, None] * mask))
            if errors.min() > _HOPELESS * self._error:
                break
        width = 1 / per_octave
        for _ in range(2):
            self._try(self._best * np.exp2(np.linspace(-width, width, 17)[:, None] * mask))
            width /= 8

    def _range(self) -> Range:
        if self._error >= self._observed * (1 - self._worthwhile):
            return Range(self._low, self._high)
        return Range(float(self._best[0] * self._low), float(self._best[1] * self._high))
