"""Intervals of metrics and of differences, by bootstrap or Student's t, and whether two models differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from service.contracts.distributions import (
    Pairs,
    mcnemar,
    paired_interval,
    student_quantile,
    student_share,
    unseen_share,
    wilson,
)
from service.contracts.report import Flips, Interval
from worker.quantizer.evaluation.contributions import (
    PART_ELEMENTS,
    Array,
    Contributions,
    DenseSums,
    Hits,
    Sums,
    quotients,
)

# How a metric spreads over other samples of the same kind: a bootstrap by sample, or Student's t over parts.

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
    """

    value: float  # the figure of all samples
    without: Array  # with one group of samples left out at a time [group]
    drawn: Array | None  # of sets of samples drawn with replacement [set]; None: not drawn
    samples: int  # independent ones that it rests on
    scale: float = 0.0  # size of the figures that it is the difference of; 0: it is none

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


# From here on a decision was made with confidence.
CONFIDENT = 0.9


@dataclass(frozen=True)
class MetricDifference:
    """What the first of two models has above the second, in the metric's unit, measured on the same samples."""

    interval: Interval | None  # where it lies; None if nobody can tell
    p_value: float | None  # chance of a difference as large as this if neither were better; None if nobody can tell
    flips: Flips | None = None  # of a share of samples: which changed sides


class Figure:
    """A metric of one model. How it spreads is found out once, for its interval and for all comparisons.

    Args:
        found: what each sample adds to it.
        is_share: it is in percent of something, of 0 at least and of 100 at most.
    """

    def __init__(self, found: Contributions, *, is_share: bool = False) -> None:
        self.found = found
        self.is_share = is_share or isinstance(found, Hits)

    @cached_property
    def spread(self) -> Spread | None:
        """How it spreads; None if nobody can tell."""
        return spread_of(self.found)

    def interval(self, confidence: float) -> Interval | None:
        """Where it lies with ``confidence``; None if nobody can tell.

        Wilson's interval of a share of samples, else by the bootstrap. Where all parts of all samples are right, or all
        are wrong, the rule of three says how many samples may have others.
        """
        found = self.found
        if isinstance(found, Hits) and found.of_samples:
            right = found.right
            if not len(right):
                return None
            low, high = wilson(int(right.sum()), len(right), confidence)
            return _in_percent(low, high, confidence, "wilson", len(right))
        if self.spread is None:
            return None
        if isinstance(found, Hits) and self.spread.value in (0.0, 100.0):
            share = unseen_share(self.spread.samples, confidence)
            low, high = (0.0, share) if self.spread.value == 0.0 else (1.0 - share, 1.0)
            return _in_percent(low, high, confidence, "rule_of_three", self.spread.samples)
        return self.spread.interval(confidence)

    def above(self, other: Figure, confidence: float, *, confident: Array | None = None) -> MetricDifference | None:
        """What it has above another model's, in pairs; None if their samples do not match.

        Shares of samples are compared by Tango's interval and McNemar's test, other metrics by a bootstrap by sample.
        Where no sample of a metric in percent has changed, the rule of three says which share of them may change, and
        the difference is taken to be within as many points.

        Args:
            other: the same metric of the other model.
            confidence: of the interval.
            confident: samples of which this model was confident, bool [sample]; None: not known.
        """
        mine, its = self.found, other.found
        if mine.units != its.units:
            return None
        if isinstance(mine, Hits) and isinstance(its, Hits) and mine.of_samples and its.of_samples:
            return _of_shares(mine, its, confidence, confident)
        if self.spread is None or other.spread is None:
            return None
        spread = self.spread - other.spread
        if self.is_share and _unchanged(mine, its, spread):
            share = unseen_share(spread.samples, confidence)
            return MetricDifference(_in_percent(-share, share, confidence, "rule_of_three", spread.samples), 1.0)
        return MetricDifference(spread.interval(confidence), spread.p_value)


def interval_of(found: Contributions, confidence: float) -> Interval | None:
    """Where a metric lies with ``confidence``; see ``Figure.interval``."""
    return Figure(found).interval(confidence)


def difference_of(
    one: Contributions, other: Contributions, confidence: float, *, is_share: bool = False
) -> MetricDifference | None:
    """What the first of two models has above the second, in pairs; see ``Figure.above``."""
    return Figure(one, is_share=is_share).above(Figure(other, is_share=is_share), confidence)


def negated(interval: Interval | None, around: float = 0.0) -> Interval | None:
    """The interval of ``around`` minus the figure."""
    if interval is None:
        return None
    return interval.model_copy(update={"low": around - interval.high, "high": around - interval.low})


def _unchanged(one: Contributions, other: Contributions, spread: Spread) -> bool:
    """No sample adds anything else; of what is made anew: no part of the samples makes a difference."""
    if isinstance(one, Sums) and isinstance(other, Sums):
        return one.same_as(other)
    return spread.value == 0.0 and not spread.without.any()


def _of_shares(one: Hits, other: Hits, confidence: float, confident: Array | None) -> MetricDifference | None:
    first, second = one.right, other.right
    if len(first) != len(second) or not len(first):
        return None
    lost, won = first & ~second, second & ~first
    pairs = Pairs(int(lost.sum()), int(won.sum()), len(first))
    low, high = paired_interval(pairs, confidence)
    # where some samples do not count nobody can tell which of the others are these
    known = confident if confident is not None and len(confident) == len(lost) else None
    sure = None if known is None else int((lost & known).sum())
    flips = Flips(lost=pairs.lost, won=pairs.won, confident=sure)
    interval = _in_percent(low, high, confidence, "mcnemar", len(first))
    return MetricDifference(interval, mcnemar(pairs.lost, pairs.won), flips)


def _in_percent(low: float, high: float, confidence: float, method: str, samples: int) -> Interval:
    found = {"low": 100.0 * low, "high": 100.0 * high, "confidence": confidence, "method": method, "samples": samples}
    return Interval.model_validate(found)


# Whether two models differ in a metric by more than chance, for those who judge drafts.

# A difference that chance makes of two equal models less often than this is none of chance.
_CHANCE = 0.05


@dataclass(frozen=True)
class PairedFacts:
    """What it takes to compare a model's value of a metric with another model's."""

    # of a share of samples: "1" for each that is right, "0" for the others; None: it is another metric
    right: str | None
    value: float = 0.0  # of any other metric, over all samples
    without: tuple[float, ...] = ()  # the same with one group of samples left out at a time
    samples: int = 0  # how many there are


class Evidence:
    """What a model's value of a metric rests on. Nothing is computed before it is compared, or kept as a document.

    Args:
        facts: if they are known already.
        found: what each sample adds to the metric, else; not to be changed any more.
    """

    def __init__(self, facts: PairedFacts | None = None, *, found: Contributions | None = None) -> None:
        self._facts, self._found = facts, found

    @staticmethod
    def of(found: Contributions | None) -> Evidence | None:
        """From what each sample adds to the metric; None if it does not tell."""
        return None if found is None else Evidence(found=found)

    @staticmethod
    def of_means(values: Sequence[float]) -> Evidence:
        """Of a mean of values, each on samples of its own."""
        sums = DenseSums(lambda found: quotients(found[:, 0], found[:, 1]))
        sums.add(np.stack([np.array(values, np.float64), np.ones(len(values))], axis=1), samples=len(values))
        return Evidence(found=sums)

    @staticmethod
    def from_document(document: Mapping[str, Any] | None) -> Evidence | None:
        """The inverse of ``document_of``, after a way through JSON."""
        return (
            None if document is None else Evidence(PairedFacts(**{**document, "without": tuple(document["without"])}))
        )

    @property
    def facts(self) -> PairedFacts | None:
        """Found out at the first time; None if nobody can tell, as from fewer than three samples."""
        if self._found is not None:
            self._facts, self._found = _facts_of(self._found), None
        return self._facts


def document_of(evidence: Evidence | None) -> dict[str, Any] | None:
    """The facts for a checkpoint; None if there are none."""
    facts = None if evidence is None else evidence.facts
    return None if facts is None else asdict(facts)


def surely_differ(one: Evidence | None, other: Evidence | None) -> bool:
    """True if two models differ by more than chance would make of two equal ones, measured on the same samples.

    Of a share of samples McNemar's test says so, of other metrics Student's t over samples left out in turn, both
    two-sided at 5 %.
    """
    mine, its = None if one is None else one.facts, None if other is None else other.facts
    if mine is None or its is None or (mine.right is None) != (its.right is None):
        return False
    if mine.right is not None and its.right is not None:
        if len(mine.right) != len(its.right):
            return False
        pairs = list(zip(mine.right, its.right, strict=True))
        return mcnemar(pairs.count(("1", "0")), pairs.count(("0", "1"))) < _CHANCE
    if len(mine.without) != len(its.without):
        return False
    p_value = (_spread(mine) - _spread(its)).p_value
    return p_value is not None and p_value < _CHANCE


def _facts_of(found: Contributions) -> PairedFacts | None:
    if isinstance(found, Hits) and found.of_samples:
        return PairedFacts("".join("1" if hit else "0" for hit in found.right.tolist()))
    spread = spread_of(found, draw=False)
    return None if spread is None else PairedFacts(None, spread.value, tuple(spread.without.tolist()), spread.samples)


def _spread(facts: PairedFacts) -> Spread:
    return Spread(facts.value, np.array(facts.without), None, facts.samples)
