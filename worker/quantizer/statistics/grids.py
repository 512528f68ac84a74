"""Which grids a spec allows, how far a tensor is from itself on them, and the range of the nearest one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.contracts.specs import ActivationSpec, WeightSpec, is_float8, is_integer
from worker.quantizer.numerics.blocks import FLOATS
from worker.quantizer.numerics.integer import grid_for_range, held_steps, integer_limits
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.sampling import WeightedValues

# Elements of one block of intermediate arrays: they stay in the second-level cache.
_BLOCK_ELEMENTS = 1 << 17
# Prefix sums pay off only where many values share a level.
_VALUES_PER_LEVEL = 4
Spec = ActivationSpec | WeightSpec
# Of each element, float64 of any shape; gives a new array.
Function = Callable[[np.ndarray], np.ndarray]


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

    With ``behind`` the error is that of a function of the tensor: f(x) against f of its level.
    """

    def __init__(self, family: GridFamily, data: WeightedValues, behind: Function | None = None) -> None:
        self._family, self._behind = family, behind
        self._values = data.values.astype(np.float64)
        self._results = self._values if behind is None else behind(self._values)
        self._weights = data.weights
        levels = family.span + 1 if family.is_integer else np.inf
        self._by_levels = self._values.size > _VALUES_PER_LEVEL * levels
        if self._by_levels:
            powers = self._results ** np.arange(3)[:, None]
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
        errors = errors if self._behind is None else self._behind(errors)
        errors -= self._results
        errors *= errors
        return np.asarray(errors @ self._weights)

    def _levels(self, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        low, high = self._family.limits
        levels = (np.arange(low, high + 1) - zero) * scale
        places = np.empty((levels.shape[0], levels.shape[1] + 1), np.intp)
        places[:, 0], places[:, -1] = 0, self._values.size
        places[:, 1:-1] = np.searchsorted(self._values, levels[:, :-1] + scale / 2)
        counts, sums, squares = np.diff(self._sums[:, places], axis=2)
        levels = levels if self._behind is None else self._behind(levels)
        errors = (squares - 2 * levels * sums + levels * levels * counts).sum(axis=1)
        return np.asarray(np.maximum(errors, 0))


# The range whose grid has the smallest sum of squared errors.
#
# Rounding costs about scale^2 / 12 for every value inside the range and cutting costs the squared distance for every
# value outside. Both are convex in the ends of the range, so a search along each end in turn finds the minimum; the
# errors themselves are those of the very grid, not of this model.

# Grids with scale 2^n: the smallest that covers a range, and the one with the smallest squared error.
#
# Their levels are the multiples of 2^n in a window that the zero point places. The range of such a grid, handed to
# ``grid_for_range``, gives the grid back: (qmax - qmin) * 2^n / (qmax - qmin) has its logarithm exactly at n, and the
# ends have at most 17 significant bits, so that float32 holds them.
SMALLEST_EXPONENT = -126
# Windows looked at together when the best is searched.
_FAN = 256
# Powers of two below the covering one that are tried where the error is that of a function.
_FINER = 8


def covering_range(low: np.ndarray, high: np.ndarray, family: GridFamily) -> tuple[np.ndarray, np.ndarray]:
    """The ranges of the grids with the smallest power-of-two scales that cover [low, high]: nothing saturates.

    ``low`` and ``high`` have any shape, and the family is one of integers. Returns the ends, float64, same shape. What
    is not finite, or 0 at both ends, comes back as it is.
    """
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    plain = ~(np.isfinite(low) & np.isfinite(high)) | ((low == 0) & (high == 0))
    some_low, some_high = np.where(plain, -1.0, low), np.where(plain, 1.0, high)
    exponents = covering_exponents(some_low, some_high, family)
    ends = grid_range(exponents, windows(some_low, some_high, exponents, family)[0], family)
    return np.where(plain, low, ends[0]), np.where(plain, high, ends[1])


def covering_exponents(low: np.ndarray, high: np.ndarray, family: GridFamily) -> np.ndarray:
    """The smallest n from -126 on such that a grid with scale 2^n covers [low, high], int64, same shape.

    Ends beyond the largest float32 are out of reach; the largest n with finite ends has to do there.
    """
    span = family.span
    largest = 128 - span.bit_length()
    width = np.maximum(high, 0.0) - np.minimum(low, 0.0)
    exponents = np.clip(np.frexp(width / span)[1].astype(np.int64) - 2, SMALLEST_EXPONENT, largest)
    while True:
        short = ~_covers(exponents, low, high, family) & (exponents < largest)
        if not short.any():
            return np.asarray(exponents)
        exponents = exponents + short


def _fixed_bottom(family: GridFamily) -> int | None:
    """Lowest level over scale, if the family leaves no choice of the zero point."""
    qmin, qmax = family.limits
    return qmin - round((qmin + qmax) / 2) if family.symmetric else None


def _covers(exponents: np.ndarray, low: np.ndarray, high: np.ndarray, family: GridFamily) -> np.ndarray:
    below, above = _needed(exponents, low, high)
    bottom = _fixed_bottom(family)
    covered = below + above <= family.span if bottom is None else (-bottom >= below) & (bottom + family.span >= above)
    return np.asarray(covered)


def _needed(exponents: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Levels needed below and above 0, float64."""
    below, above = np.ldexp(np.maximum(-low, 0.0), -exponents), np.ldexp(np.maximum(high, 0.0), -exponents)
    return np.ceil(below), np.ceil(above)


def windows(
    low: np.ndarray, high: np.ndarray, exponents: np.ndarray, family: GridFamily
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bottom levels over scale, int64: the natural ones, and the lowest and the highest ones that make sense.

    The natural one is where ``grid_for_range`` would put it, moved so that it covers [low, high] if one can.
    """
    fixed = _fixed_bottom(family)
    if fixed is not None:
        whole = np.full(np.shape(exponents), fixed, np.int64)
        return whole, whole, whole
    below, above = _needed(exponents, low, high)
    one, other = np.maximum(-below, -family.span), np.minimum(above - family.span, 0)
    first, last = np.minimum(one, other), np.maximum(one, other)
    natural = np.clip(np.round(np.ldexp(np.minimum(low, 0.0), -exponents)), first, last)
    return natural.astype(np.int64), first.astype(np.int64), last.astype(np.int64)


def grid_range(exponents: np.ndarray, bottoms: np.ndarray, family: GridFamily) -> tuple[np.ndarray, np.ndarray]:
    """The ranges, float64, that ``grid_for_range`` turns into the grids with these scales and bottom levels."""
    if family.symmetric:
        # grid_for_range asks for the half width, also where the window is off the middle by half a step.
        half = np.ldexp(family.span / 2, exponents)
        return -half, half
    return np.ldexp(bottoms.astype(np.float64), exponents), np.ldexp(bottoms + float(family.span), exponents)


def best_power_of_two(data: WeightedValues, family: GridFamily) -> Range:
    """The range of the power-of-two grid with the smallest sum of squared errors, over all exponents and zero points.

    A scale above the smallest covering one leaves only a part of its levels, so no value comes closer. Downwards the
    window shrinks and the cost of cutting alone grows; the search ends when that is more than the best error.

    The data are finite and not all 0.
    """
    errors = _WindowErrors(data, family.span)
    low, high = np.asarray(data.minimum), np.asarray(data.maximum)
    covering = int(covering_exponents(low, high, family))
    best, found = math.inf, (covering, 0)
    for exponent in range(covering, SMALLEST_EXPONENT - 1, -1):
        errors.set_scale(math.ldexp(1.0, exponent))
        natural, first, last = (int(bottom) for bottom in windows(low, high, np.asarray(exponent), family))
        bottom, error = _least(errors.whole, natural, first, last)
        if error < best:
            best, found = error, (exponent, bottom)
        if _least(errors.cuts, natural, first, last)[1] >= best:
            break
    ends = grid_range(np.asarray(found[0]), np.asarray(found[1]), family)
    return Range(float(ends[0]), float(ends[1]))


def _best_natural(data: WeightedValues, family: GridFamily, behind: Function) -> Range:
    """Of the power-of-two grids that begin where ``grid_for_range`` would put them the one with the least error behind
    a function.
    """
    low, high = np.asarray(data.minimum), np.asarray(data.maximum)
    covering = int(covering_exponents(low, high, family))
    exponents = np.arange(covering, max(covering - _FINER, SMALLEST_EXPONENT) - 1, -1)
    bottoms = np.array([int(windows(low, high, np.asarray(exponent), family)[0]) for exponent in exponents])
    lows, highs = grid_range(exponents, bottoms, family)
    best = int(np.argmin(SquaredError(family, data, behind)(lows, highs)))
    return Range(float(lows[best]), float(highs[best]))


class _WindowErrors:
    """Squared errors of a weighted tensor on the multiples of a scale inside windows of ``span`` steps."""

    def __init__(self, data: WeightedValues, span: int) -> None:
        self._span = span
        self._values = data.values.astype(np.float64)
        self._weights = data.weights
        powers = self._values ** np.arange(3)[:, None]
        self._sums = _prefix(powers * self._weights)
        self._scale = 1.0
        self._rounding = np.zeros(1)

    def set_scale(self, scale: float) -> None:
        self._scale = scale
        rest = self._values - np.rint(self._values / scale) * scale
        self._rounding = _prefix(self._weights * rest * rest)

    def whole(self, bottoms: np.ndarray) -> np.ndarray:
        """Float64 [c] for windows that begin at level ``bottoms``, int [c]."""
        first, last = self._ends(bottoms)
        return np.asarray(self.cuts(bottoms) + self._rounding[last] - self._rounding[first])

    def cuts(self, bottoms: np.ndarray) -> np.ndarray:
        """The part of the errors that the values beyond the ends make."""
        first, last = self._ends(bottoms)
        below = self._beyond(bottoms * self._scale, np.zeros_like(first), first)
        above = self._beyond((bottoms + self._span) * self._scale, last, np.full_like(last, self._values.size))
        return np.asarray(below + above)

    def _ends(self, bottoms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where in the values the windows begin and end."""
        low, high = bottoms * self._scale, (bottoms + self._span) * self._scale
        return np.searchsorted(self._values, low, "left"), np.searchsorted(self._values, high, "right")

    def _beyond(self, end: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        counts, sums, squares = self._sums[:, last] - self._sums[:, first]
        return np.asarray(np.maximum(squares - 2 * end * sums + end * end * counts, 0))


def _prefix(terms: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros((*terms.shape[:-1], 1)), np.cumsum(terms, axis=-1)], axis=-1)


def _least(costs: Callable[[np.ndarray], np.ndarray], natural: int, first: int, last: int) -> tuple[int, float]:
    """The argument in [first, last] of the least cost, and that cost. ``costs`` is convex.

    It is so here: a level added at one end of the window gains less the further out it is. Among equals the one nearest
    to ``natural`` is taken.
    """
    while True:
        spaced = np.unique(np.linspace(first, last, min(_FAN, last - first + 1)).round().astype(np.int64))
        found = costs(spaced)
        least = np.flatnonzero(found <= found.min())
        if spaced.size == last - first + 1 or least.size > 1:
            chosen = min(max(natural, int(spaced[least[0]])), int(spaced[least[-1]]))
            return chosen, float(found[least[0]])
        first, last = int(spaced[max(least[0] - 1, 0)]), int(spaced[min(least[0] + 1, spaced.size - 1)])


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


def mse_range(data: WeightedValues, family: GridFamily, behind: Function | None = None) -> Range:
    """The range whose grid has the smallest error; the observed range if the tensor is not finite.

    With power-of-two scales every exponent that can matter is tried, with every zero point, and the range is that of
    the chosen grid, exactly. With ``behind`` the error is that of this function of the tensor.
    """
    if not data.usable or data.minimum == data.maximum == 0:
        return Range(data.minimum, data.maximum)
    if family.is_integer and family.scale == "power_of_two":
        return best_power_of_two(data, family) if behind is None else _best_natural(data, family, behind)
    low, high = min(data.minimum, 0.0), max(data.maximum, 0.0)
    if family.symmetric:
        high = max(-low, high)
        low = -high
    search = _MseSearch(
        SquaredError(family, data, behind), low, high, fine=data.values.size <= _SMALL, exact=data.complete
    )
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
