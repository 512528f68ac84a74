"""Which grids a spec allows, and how far a tensor is from itself on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.contracts.specs import ActivationSpec, WeightSpec, is_float8, is_integer
from worker.quantizer.numerics.blocks import FLOATS
from worker.quantizer.numerics.integer import grid_for_range, held_steps, integer_limits
from worker.quantizer.statistics.sampling import WeightedValues

# Elements of one block of intermediate arrays: they stay in the second-level cache.
_BLOCK_ELEMENTS = 1 << 17
# Prefix sums pay off only where many values share a level.
_VALUES_PER_LEVEL = 4

Spec = ActivationSpec | WeightSpec


@dataclass(frozen=True)
class GridFamily:
    """All grids that a spec allows, addressed by the ranges they cover."""

    dtype: str  # an integer type of up to 16 bits, or an 8-bit float
    symmetric: bool  # ranges are stretched to [-m, m]; always so for floats
    scale: str  # float32, power_of_two, int16 or float16
    reduce_range: bool  # one bit less

    @classmethod
    def of(cls, spec: Spec) -> GridFamily:
        """The family of a spec.

        Raises:
            ValueError: its type has no grid that depends on a range.
        """
        if not (is_integer(spec.dtype) or is_float8(spec.dtype)):
            raise ValueError(f"{spec.dtype} is not calibrated")
        return cls(spec.dtype, spec.symmetric or is_float8(spec.dtype), spec.scale, spec.reduce_range)

    @property
    def is_integer(self) -> bool:
        """True for types with a zero point."""
        return is_integer(self.dtype)

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest integer in use."""
        return integer_limits(self.dtype, symmetric=self.symmetric, reduce_range=self.reduce_range)

    @property
    def span(self) -> int:
        """Steps from the smallest to the largest integer in use."""
        qmin, qmax = self.limits
        return qmax - qmin

    def parameters(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scale and zero point, float64 and any shape, of the grids for [low, high]. Floats have zero point 0."""
        if self.is_integer:
            scale, zero = grid_for_range(
                low, high, self.dtype, symmetric=self.symmetric, scale=self.scale, reduce_range=self.reduce_range
            )
            return scale.astype(np.float64), zero.astype(np.float64)
        scale = FLOATS[self.dtype].scale_for(np.maximum(np.abs(low), np.abs(high)).astype(np.float32))
        return scale.astype(np.float64), np.zeros_like(scale, np.float64)

    def fake(self, values: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """``values`` (float32 or float64, what is computed in) as the grid represents them.

        ``scale`` and ``zero`` broadcast against them.
        """
        if self.is_integer:
            low, high = self.limits
            steps = held_steps(values, scale, low - zero, high - zero)
            steps *= np.asarray(scale, values.dtype)
            return steps
        return np.asarray(FLOATS[self.dtype].fake(values / scale).astype(np.float64) * scale)


class SquaredError:
    """Sum of squared errors of a weighted tensor on any grid of a family.

    Few values are rounded one by one. Many values on few levels go through prefix sums: the values between two
    thresholds (k +- 1/2) * scale all become level k, and their errors add up to sum w x^2 - 2 k s sum w x + (k s)^2
    sum w. A value on a threshold is equally far from both levels, so ties need no care.
    """

    def __init__(self, family: GridFamily, data: WeightedValues) -> None:
        self._family = family
        self._values = data.values.astype(np.float64)
        self._weights = data.weights
        levels = family.span + 1 if family.is_integer else np.inf
        self._by_levels = self._values.size > _VALUES_PER_LEVEL * levels
        if self._by_levels:
            powers = self._values ** np.arange(3)[:, None]
            self._sums = np.zeros((3, self._values.size + 1))
            np.cumsum(powers * self._weights, axis=1, out=self._sums[:, 1:])

    def __call__(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Errors float64 [c] on the grids for the ranges [low, high], float64 [c]."""
        scale, zero = self._family.parameters(low, high)
        width = self._family.span + 1 if self._by_levels else self._values.size
        block = max(1, _BLOCK_ELEMENTS // max(width, 1))
        one = self._levels if self._by_levels else self._directly
        parts = [one(scale[k : k + block, None], zero[k : k + block, None]) for k in range(0, scale.size, block)]
        return np.concatenate(parts)

    def _directly(self, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        errors = self._family.fake(self._values[None, :], scale, zero)
        errors -= self._values
        errors *= errors
        return np.asarray(errors @ self._weights)

    def _levels(self, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        low, high = self._family.limits
        levels = (np.arange(low, high + 1) - zero) * scale
        places = np.empty((levels.shape[0], levels.shape[1] + 1), np.intp)
        places[:, 0], places[:, -1] = 0, self._values.size
        places[:, 1:-1] = np.searchsorted(self._values, levels[:, :-1] + scale / 2)
        counts, sums, squares = np.diff(self._sums[:, places], axis=2)
        errors = (squares - 2 * levels * sums + levels * levels * counts).sum(axis=1)
        return np.asarray(np.maximum(errors, 0))
