"""How a metric spreads over other samples of the same kind: a bootstrap by sample, or Student's t over parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from service.contracts.distributions import student_quantile, student_share
from service.contracts.report import Interval
from worker.quantizer.evaluation.certainty.contributions import PART_ELEMENTS, Array, Contributions, Sums

# Sets drawn by the bootstrap; the seed is fixed, so that two models are compared on the same sets: in pairs.
_SETS, _SEED = 1000, 0
# More samples are put into so many groups at random; each group is then one independent draw.
_MOST_GROUPS = 1000
# A metric that has to be made anew is made without each of so many parts.
_PARTS = 20
# With fewer units, or sets beyond the quantile, the bootstrap is too coarse; with fewer still nobody can tell.
_FEWEST_UNITS, _FEWEST_BEYOND, _FEWEST = 20, 10, 3
# So many of the drawn sets may be without a figure, or without a spread.
_MOST_UNDEFINED = 0.01
# Standard errors that are smaller, relative to the largest, are rounding.
_SAME = 1e-6
# So is one this small relative to the figure: the samples do not differ.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Spread:
    """What is known of how a figure spreads.

    Two of the same samples may be taken from each other: both have left out, and drawn, the same ones.

    Attributes:
        value: the figure of all samples.
        without: with one group of samples left out at a time [group].
        drawn: of sets of samples drawn with replacement [set]; None: not drawn.
        samples: independent ones that it rests on.
        scale: size of the figures that it is the difference of; 0: it is none.
    """

    value: float
    without: Array
    drawn: Array | None
    samples: int
    scale: float = 0.0

    def __sub__(self, other: Spread) -> Spread:
        drawn = None if self.drawn is None or other.drawn is None else self.drawn - other.drawn
        scale = max(self._rounded_at, other._rounded_at)
        return Spread(self.value - other.value, self.without - other.without, drawn, self.samples, scale)

    @property
    def standard_error(self) -> float | None:
        """By the jackknife (Tukey 1958), groups of samples left out in turn; None for fewer than three, or undefined.

        Its square is (m - 1) / m sum (f_k - mean f)^2, f_k without group k of m; 0 where the samples do not differ,
        rounding aside.
        """
        found, count = self.without, len(self.without)
        if count < _FEWEST or not np.isfinite(found).all():
            return None
        error = math.sqrt((count - 1) / count * float(np.square(found - found.mean()).sum()))
        return 0.0 if error <= _ROUNDING * self._rounded_at else error

    @property
    def _rounded_at(self) -> float:
        """Size of the figures that were rounded."""
        return max(abs(self.value), self.scale)

    @property
    def p_value(self) -> float | None:
        """Chance of a figure as far from 0, if 0 were the truth: Student's t with the jackknife's standard error.

        Where no part of the samples differs from another that has no error; then it is the sign test's: so many fair
        coins fall alike.
        """
        error = self.standard_error
        if error is None:
            return None
        if error == 0.0:
            return 1.0 if abs(self.value) <= _ROUNDING * self._rounded_at else 2.0 ** (1 - len(self.without))
        return min(1.0, 2.0 * student_share(-abs(self.value) / error, len(self.without) - 1))

    def interval(self, confidence: float) -> Interval | None:
        """Where the figure lies with ``confidence``; None if nobody can tell, as where the samples do not differ."""
        error = self.standard_error
        if not error:
            return None
        times, method = self._bootstrap(confidence), "bootstrap"
        if times is None:
            times, method = student_quantile(0.5 + confidence / 2.0, len(self.without) - 1), "student"
        low, high = self.value - times * error, self.value + times * error
        return Interval(low=low, high=high, confidence=confidence, method=method, samples=self.samples)

    def _bootstrap(self, confidence: float) -> float | None:
        """So many standard errors hold the figure; None where the bootstrap cannot tell.

        The symmetric bootstrap-t of Hall 1988, "On symmetric bootstrap confidence intervals": of skewed or heavy tails
        it is farther from too narrow than intervals by quantiles of the drawn figures are. The standard error of a
        drawn set is that of what the jackknife says each sample moves the figure by.
        """
        units = len(self.without)
        if self.drawn is None or units < _FEWEST_UNITS or (1.0 - confidence) * _SETS < _FEWEST_BEYOND:
            return None
        moved = (units - 1) * (self.without.mean() - self.without)
        sets = drawn_sets(units)
        variances = sets @ np.square(moved) / units - np.square(sets @ moved / units)
        errors = np.sqrt(np.maximum(variances, 0.0) / (units - 1))
        known = np.isfinite(self.drawn) & (errors > _SAME * errors.max())
        if np.count_nonzero(known) < (1.0 - _MOST_UNDEFINED) * len(known):
            return None
        return float(np.quantile(np.abs(self.drawn[known] - self.value) / errors[known], confidence))


def spread_of(found: Contributions, *, draw: bool = True) -> Spread | None:
    """How a metric spreads; None for fewer than three units, or where it is undefined.

    Args:
        found: what each sample adds to it.
        draw: sets of samples, too, where the samples allow it.
    """
    units = found.units
    if units < _FEWEST:
        return None
    if not isinstance(found, Sums):
        value = found.value
        return Spread(value, found.without(_groups(units, _PARTS)), None, units) if math.isfinite(value) else None
    if units > _MOST_GROUPS:
        found = found.grouped(_groups(units, _MOST_GROUPS))
    value = found.value
    if not math.isfinite(value):
        return None
    can_draw = draw and found.by_sample and found.units >= _FEWEST_UNITS
    return Spread(value, found.without(np.arange(found.units)), _drawn(found) if can_draw else None, units)


def _drawn(found: Sums) -> Array:
    """The metric of the drawn sets [set]; a few sets at a time, since there may be many columns."""
    sets, step = drawn_sets(found.units), max(1, PART_ELEMENTS // len(found.total))
    parts = [found.value_of(found.of(sets[start : start + step])) for start in range(0, len(sets), step)]
    return np.concatenate(parts)


def _groups(units: int, count: int) -> Array:
    """The number of each unit's group, at random: neighbours may be alike."""
    found: Array = np.random.default_rng(_SEED).permutation(units) % min(count, units)
    return found


@lru_cache(maxsize=2)
def drawn_sets(units: int) -> Array:
    """How often each unit is in each set, float32 [set, unit]; the same ones at every call."""
    chosen = np.random.default_rng(_SEED).integers(0, units, (_SETS, units))
    chosen += (np.arange(_SETS) * units)[:, None]
    return np.bincount(chosen.reshape(-1), minlength=_SETS * units).reshape(_SETS, units).astype(np.float32)
