"""Ranges of constant weights, group by group; and those with the smallest sum of squared errors, searched together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from service.contracts.specs import MinMaxCalibration, NonOverflowCalibration, PercentileCalibration, WeightSpec
from worker.quantizer.statistics.grids import (
    SMALLEST_EXPONENT,
    GridFamily,
    covering_exponents,
    covering_range,
    grid_range,
    windows,
)

Ranges = tuple[np.ndarray, np.ndarray]

# The ranges of many groups of weights whose grids have the smallest sums of squared errors, searched together.

# Values of one block of intermediate arrays: they stay in the second-level cache.
_BLOCK_ELEMENTS = 1 << 17
# Candidates per halving of the range, by the number of weights: few weights are cheap to search closely.
_PER_OCTAVE = ((1 << 16, 128), (1 << 20, 32), (1 << 23, 8))
_PER_OCTAVE_LARGE = 4
_OCTAVES = 24
# A group whose error has grown to this multiple of its best gets no better further in; few values have ragged errors.
_HOPELESS, _HOPELESS_RAGGED = 4.0, 32.0
# How often the two ends of asymmetric ranges are taken in turn.
_ROUNDS, _ROUNDS_LARGE = 2, 1
# One end alone starts from the best of both: steps are so many times wider there, and made finer like all others.
_WIDER_ALONE = 8
_NOISE = np.float64(1e-6)


def least_squares_range(
    groups: np.ndarray, low: np.ndarray, high: np.ndarray, family: GridFamily, *, weights: int
) -> Ranges:
    """The range of every group whose grid has the smallest sum of squared errors.

    Power-of-two scales: every exponent that can matter, with the best zero point. Other scales: the ends of a group's
    range shrink, together or (asymmetric) in turn, by factors that are searched closer and closer around the best.

    Args:
        groups: float32 [g, n].
        low: their smallest values [g].
        high: their largest values [g].
        family: the grids.
        weights: size of the whole weight; the smaller, the closer the search.

    Returns:
        the ends, float64 [g]. Groups that are not finite or all 0 keep their own.
    """

    def find(groups: np.ndarray, low: np.ndarray, high: np.ndarray) -> Ranges:
        if family.is_integer and family.scale == "power_of_two":
            return _best_powers_of_two(groups, low, high, family)
        per_octave = next((fine for size, fine in _PER_OCTAVE if weights <= size), _PER_OCTAVE_LARGE)
        search = _Search(groups, low, high, family, least_gain=_NOISE)
        search.line(np.array([1.0, 1.0]), per_octave)
        if not family.symmetric:
            alone = max(per_octave // _WIDER_ALONE, _PER_OCTAVE_LARGE)
            for _ in range(_ROUNDS_LARGE if per_octave == _PER_OCTAVE_LARGE else _ROUNDS):
                search.line(np.array([1.0, 0.0]), alone)
                search.line(np.array([0.0, 1.0]), alone)
        return search.found

    return _of_usable(groups, low, high, find)


def _of_usable(
    groups: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    find: Callable[[np.ndarray, np.ndarray, np.ndarray], Ranges],
) -> Ranges:
    """What ``find`` makes of the groups that are finite and not all 0; others keep their own range."""
    low, high = np.minimum(low, 0).astype(np.float64), np.maximum(high, 0).astype(np.float64)
    usable = np.isfinite(low) & np.isfinite(high) & (low < high)
    if usable.any():
        chosen = groups if usable.all() else groups[usable]
        low[usable], high[usable] = find(chosen, low[usable], high[usable])
    return low, high


class _Search:
    """Factors [g, 2] of the ends of the groups' ranges, the best so far; symmetric ones are stretched to [-m, m]."""

    def __init__(
        self, groups: np.ndarray, low: np.ndarray, high: np.ndarray, family: GridFamily, *, least_gain: float = 0.0
    ) -> None:
        if family.symmetric:
            high = np.maximum(-low, high)
            low = -high
        self._groups, self._low, self._high, self._family = groups, low, high, family
        self._least_gain = least_gain
        self._every = np.arange(low.size)
        self._best = np.ones((low.size, 2))
        self._error = self._evaluate(self._best, self._every)

    @property
    def found(self) -> Ranges:
        return self._best[:, 0] * self._low, self._best[:, 1] * self._high

    def _evaluate(self, factors: np.ndarray, which: np.ndarray) -> np.ndarray:
        scale, zero = self._family.parameters(factors[:, 0] * self._low[which], factors[:, 1] * self._high[which])
        return squared_errors(self._groups, which, scale, zero, self._family)

    def _try(self, factors: np.ndarray, which: np.ndarray) -> np.ndarray:
        errors = self._evaluate(factors, which)
        better = errors < self._error[which] * (1 - self._least_gain)
        self._best[which[better]], self._error[which[better]] = factors[better], errors[better]
        return errors

    def line(self, mask: np.ndarray, steps: int) -> None:
        """Scale the factors that ``mask`` marks: outward a little, inward until hopeless, then ever finer.

        ``steps`` are those per octave.
        """
        origin, which = np.where(mask > 0, 1.0, self._best), self._every
        hopeless = _HOPELESS if steps == _PER_OCTAVE_LARGE else _HOPELESS_RAGGED
        for k in range(-steps // 4, steps * _OCTAVES):
            errors = self._try(origin[which] * np.exp2(-k / steps * mask), which)
            if k > 0:
                which = which[errors <= hopeless * self._error[which]]
            if not which.size:
                break
        width = 1 / steps
        for _ in range(2):
            center = self._best.copy()
            for step in np.linspace(-width, width, 9)[1:-1]:
                if step:
                    self._try(center * np.exp2(step * mask), self._every)
            width /= 4

    def square(self, coarse: tuple[float, ...], step: float) -> None:
        """Both factors at once: those of ``coarse``, then around the best, ever finer."""
        for factors in self._pairs(coarse):
            self._try(np.broadcast_to(factors, self._best.shape), self._every)
        for _ in range(_BLOCK_ROUNDS):
            center = self._best.copy()
            for factors in self._pairs(_AROUND):
                self._try(center + factors * step, self._every)
            step *= _FINER

    def _pairs(self, numbers: tuple[float, ...]) -> list[np.ndarray]:
        symmetric = self._family.symmetric
        return [np.array([low, high]) for low in numbers for high in ((low,) if symmetric else numbers)]


def squared_errors(
    groups: np.ndarray, which: np.ndarray, scale: np.ndarray, zero: np.ndarray, family: GridFamily
) -> np.ndarray:
    """Sums of squared errors, float64 [w], of rows ``which`` of ``groups`` on grids ``scale``, ``zero`` [w]."""
    total = np.zeros(which.size)
    for values in _blocks(groups, which):
        errors = family.fake(values, scale[:, None], zero[:, None])
        errors -= values
        total += np.einsum("ij,ij->i", errors, errors, dtype=np.float64)
    return total


def _blocks(groups: np.ndarray, which: np.ndarray) -> Iterator[np.ndarray]:
    """Rows ``which``, some columns at a time."""
    rows = groups if which.size == groups.shape[0] else groups[which]
    step = max(1, _BLOCK_ELEMENTS // max(which.size, 1))
    for first in range(0, groups.shape[1], step):
        yield rows[:, first : first + step]


def _best_powers_of_two(
    groups: np.ndarray, low: np.ndarray, high: np.ndarray, family: GridFamily
) -> tuple[np.ndarray, np.ndarray]:
    """As ``best_power_of_two``, for many groups; a group stops when cutting alone costs more than its best error."""
    exponents = covering_exponents(low, high, family)
    best = np.full(low.size, np.inf)
    chosen_exponents, chosen_bottoms = exponents.copy(), np.zeros(low.size, np.int64)
    which = np.arange(low.size)
    while which.size:
        now = exponents[which]
        bottoms, errors = _best_windows(groups, which, now, windows(low[which], high[which], now, family), family)
        better = errors < best[which]
        index = which[better]
        best[index], chosen_exponents[index], chosen_bottoms[index] = errors[better], now[better], bottoms[better]
        exponents[which] -= 1
        which = which[(_least_cut(groups, which, now, family) < best[which]) & (now > SMALLEST_EXPONENT)]
    return grid_range(chosen_exponents, chosen_bottoms, family)


def _least_cut(groups: np.ndarray, which: np.ndarray, exponents: np.ndarray, family: GridFamily) -> np.ndarray:
    """Below this squared error no window of these scales can come: what lies further from 0 than any level reaches."""
    levels = family.span / 2 + 0.5 if family.symmetric else float(family.span)
    reach = np.ldexp(levels, exponents).astype(np.float32)[:, None]
    total = np.zeros(which.size)
    for values in _blocks(groups, which):
        beyond = np.maximum(np.abs(values) - reach, 0)
        total += np.einsum("ij,ij->i", beyond, beyond, dtype=np.float64)
    return total


def _best_windows(
    groups: np.ndarray,
    which: np.ndarray,
    exponents: np.ndarray,
    bottoms: tuple[np.ndarray, np.ndarray, np.ndarray],
    family: GridFamily,
) -> tuple[np.ndarray, np.ndarray]:
    """The best bottom levels of the groups' windows, and their errors, by bisection: the errors are convex."""
    natural, first, last = bottoms
    scale = np.ldexp(1.0, exponents)
    qmin = family.limits[0]

    def errors(bottom: np.ndarray) -> np.ndarray:
        return squared_errors(groups, which, scale, (qmin - bottom).astype(np.float64), family)

    best, found = natural, errors(natural)
    while (first < last).any():
        middle = (first + last) // 2
        left, right = errors(middle), errors(np.minimum(middle + 1, last))
        first, last = np.where(left > right, middle + 1, first), np.where(left > right, last, middle)
        for candidate, error in ((middle, left), (np.minimum(middle + 1, bottoms[2]), right)):
            better = error < found * (1 - _NOISE)
            best, found = np.where(better, candidate, best), np.where(better, error, found)
    return best, found


# The ranges of blocks of weights whose grids have the smallest sums of squared errors.
#
# A block has a few dozen values: none of them lies far outside of the others, so that the best ends lie near the
# extremes, but what one end gains depends on the other. Both are searched together, on a grid that is made finer around
# the best.

# Factors of the extremes at first; of large weights fewer, as each block is one of very many.
_FACTORS = (1.1, 1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
_FACTORS_LARGE = (1.0, 0.93, 0.86, 0.78)
_LARGE_WEIGHTS = 1 << 23
# Steps around the best, in parts of the step before; each of so many rounds.
_AROUND, _BLOCK_ROUNDS, _FINER = (-1.0, 0.0, 1.0), 3, 0.5
_STEP, _STEP_LARGE = 0.025, 0.035


def block_range(groups: np.ndarray, low: np.ndarray, high: np.ndarray, family: GridFamily, *, weights: int) -> Ranges:
    """As ``least_squares_range`` for blocks, on grids whose scales are no powers of two."""

    def find(groups: np.ndarray, low: np.ndarray, high: np.ndarray) -> Ranges:
        search = _Search(groups, low, high, family)
        search.square(*((_FACTORS_LARGE, _STEP_LARGE) if weights > _LARGE_WEIGHTS else (_FACTORS, _STEP)))
        return search.found

    return _of_usable(groups, low, high, find)


# Weights worked on at a time: with their copies they stay in the second-level cache.
_CHUNK_ELEMENTS = 1 << 17


def weight_range(groups: np.ndarray, spec: WeightSpec, *, threads: int = 1) -> Ranges:
    """The range of every group by the spec's calibration method.

    Groups are taken in chunks, so memory beyond the result does not grow with the weight.

    Args:
        groups: float32 [g, n], n at least 1; one row shares a scale.
        spec: how the weight is to be represented.
        threads: chunks worked on at once; the result does not depend on it.

    Returns:
        minimum and maximum, float32 [g], for ``grid_for_range``. NaN or Inf in a group makes its range not finite; a
        group of zeros gets [0, 0].

    Raises:
        ValueError: the spec's type needs no range (float16, bfloat16, block formats).
    """
    family = GridFamily.of(spec)
    method = spec.calibration
    one: Callable[[np.ndarray], Ranges]
    if isinstance(method, MinMaxCalibration):
        one = extremes
    elif isinstance(method, PercentileCalibration):
        one = _Percentile(method.percentile, symmetric=family.symmetric)
    elif isinstance(method, NonOverflowCalibration):
        one = lambda chunk: covering_range(*extremes(chunk), family)  # noqa: E731
    elif spec.granularity == "per_block" and family.scale != "power_of_two":
        one = lambda chunk: block_range(chunk, *extremes(chunk), family, weights=groups.size)  # noqa: E731
    else:
        one = lambda chunk: least_squares_range(chunk, *extremes(chunk), family, weights=groups.size)  # noqa: E731
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="weights") as pool:
        parts = list(pool.map(one, _chunks(groups)))
    if not parts:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    low, high = (np.concatenate(ends).astype(np.float32) for ends in zip(*parts, strict=True))
    return low, high


def _chunks(groups: np.ndarray) -> Iterator[np.ndarray]:
    step = max(1, _CHUNK_ELEMENTS // max(groups.shape[1], 1))
    for first in range(0, groups.shape[0], step):
        yield groups[first : first + step]


def extremes(groups: np.ndarray) -> Ranges:
    """Smallest and largest value of every row."""
    return groups.min(axis=1), groups.max(axis=1)


class _Percentile:
    """The order statistics that ``Percentile`` gives for activations, row by row."""

    def __init__(self, percentile: float, *, symmetric: bool) -> None:
        self._share = (100.0 - percentile) / (100.0 if symmetric else 200.0)
        self._symmetric = symmetric

    def __call__(self, groups: np.ndarray) -> Ranges:
        cut = int(self._share * groups.shape[1])
        last = groups.shape[1] - 1 - cut
        if self._symmetric:
            high = np.partition(np.abs(groups), last, axis=1)[:, last]
            low = -high
        else:
            ordered = np.partition(groups, (cut, last), axis=1)
            low, high = ordered[:, cut], ordered[:, last]
        broken = np.isnan(groups).any(axis=1)
        return np.where(broken, np.nan, low), np.where(broken, np.nan, high)
