"""Whether one model is better than another on the same samples: paired decisions, and paired means of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from service.comparison.samples import Decisions
from service.contracts.distributions import Pairs, mcnemar, paired_interval, student_quantile, student_share
from service.contracts.report import Interval

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Pairing:
    """The second model against the first on the same samples."""

    labeled: bool  # whether right means as the label, or as the float model decides
    counts: Pairs  # samples right in the first alone (lost), right in the second alone (won), and all
    drop_percent: float  # what the first's share of right samples is above the second's, in percent of all samples
    interval_percent: tuple[float, float]  # of ``drop_percent``, by Tango's score interval of paired shares
    p_value: float  # chance of sides as unequal as these if neither model were better, by McNemar's exact test
    first: Decisions  # what the first model decides
    second: Decisions  # what the second one does
    flipped: npt.NDArray[np.int64]  # numbers of the samples that one alone gets right, int64 [flip], rising

    @property
    def significant(self) -> bool:
        """True if chance alone makes a difference as large in one pair of twenty or fewer."""
        return self.p_value <= 1.0 - CONFIDENCE

    def significantly_worse(self, alpha: float = 1.0 - CONFIDENCE) -> bool:
        """True if the second model is worse, and chance alone makes such a difference with ``alpha`` or less."""
        return self.drop_percent > 0 and self.p_value <= alpha


def paired(first: Decisions, second: Decisions) -> Pairing | None:
    """Compare two models; None where they were not asked about the same samples."""
    if first.labeled != second.labeled or not first.counted.any():
        return None
    if not np.array_equal(first.expected, second.expected):
        return None
    before, after = first.right, second.right
    pairs = Pairs(int((before & ~after).sum()), int((~before & after).sum()), int(first.counted.sum()))
    low, high = paired_interval(pairs, CONFIDENCE)
    return Pairing(
        labeled=first.labeled,
        counts=pairs,
        drop_percent=100.0 * (pairs.lost - pairs.won) / pairs.samples,
        interval_percent=(100.0 * low, 100.0 * high),
        p_value=mcnemar(pairs.lost, pairs.won),
        first=first,
        second=second,
        flipped=np.flatnonzero(before != after),
    )


# Sets drawn by the bootstrap, so many at a time; the seed is fixed: the same two files give the same figures.
_SETS, _PART, _SEED = 4000, 500, 0
# More samples are put into so many groups at random; each group is then one independent draw.
_MOST_GROUPS = 1000
# With fewer samples the bootstrap is too coarse; with fewer still nobody can tell.
_FEWEST_DRAWN, _FEWEST = 20, 3
# Standard errors that are smaller, relative to the figures or to the largest of the sets, are rounding.
_ROUNDING, _SAME = 1e-9, 1e-6
# Of the sets, so many have to have a spread.
_FEWEST_KNOWN = 0.99
_Matrix = npt.NDArray[np.float64]
Method = Literal["bootstrap", "student"]


@dataclass(frozen=True)
class MeanDifference:
    """One metric of the first model less that of the second."""

    difference: float  # in the metric's unit
    interval: tuple[float, float]  # where it lies with the confidence asked for
    p_value: float  # chance of a difference as large if there were none
    method: Method  # bootstrap, or student for fewer than 20 samples
    samples: int  # that it rests on

    def drop(self, better: Literal["higher", "lower"]) -> MeanDifference:
        """By how much the second is worse."""
        low, high = self.interval
        return self if better == "higher" else replace(self, difference=-self.difference, interval=(-high, -low))

    def told_interval(self, confidence: float) -> Interval:
        """As reports tell it."""
        low, high = self.interval
        return Interval(low=low, high=high, confidence=confidence, method=self.method, samples=self.samples)


def mean_differences(
    first: Mapping[str, _Matrix], second: Mapping[str, _Matrix], confidence: float
) -> dict[str, MeanDifference]:
    """Compare all metrics that both have, by the paired bootstrap.

    The interval is the symmetric bootstrap-t of Hall 1988, "On symmetric bootstrap confidence intervals", and the
    p-value that of the same statistic; beyond what the sets can tell it is Student's.

    Args:
        first: by metric what each sample says of it [sample].
        second: likewise; columns of another length are left out.
        confidence: of the intervals.
    """
    names = [name for name, one in first.items() if name in second and len(one) == len(second[name]) >= _FEWEST]
    if not names:
        return {}
    differences = np.stack([first[name] - second[name] for name in names], axis=1)
    sizes = np.array([max(np.abs(first[name]).max(), np.abs(second[name]).max()) for name in names])
    groups = _grouped(differences)
    means, errors = groups.mean(axis=0), groups.std(axis=0, ddof=1) / math.sqrt(len(groups))
    errors[errors <= _ROUNDING * sizes] = 0.0
    drawn = _statistics(groups, means) if len(groups) >= _FEWEST_DRAWN else None
    told = {}
    for k, name in enumerate(names):
        sets = None if drawn is None else drawn[:, k]
        found = _PairedFound(float(differences[:, k].mean()), float(errors[k]), float(sizes[k]), sets, len(groups),
                       len(differences))  # fmt: skip
        told[name] = _told(found, confidence)
    return told


@dataclass(frozen=True)
class _PairedFound:
    """What is known of one metric's difference."""

    difference: float  # over all samples
    error: float  # its standard error, 0 where all samples differ alike
    size: float  # of the figures that were taken from each other
    drawn: _Matrix | None  # |difference| of drawn sets in their standard errors [set]; None: not drawn
    groups: int  # independent draws
    samples: int  # in all


def _told(found: _PairedFound, confidence: float) -> MeanDifference:
    difference, error, freedom = found.difference, found.error, found.groups - 1
    if error == 0.0:
        # every sample differs alike: the sign test's p-value, so many fair coins fall alike
        p_value = 1.0 if abs(difference) <= _ROUNDING * found.size else 2.0**-freedom
        return MeanDifference(difference, (difference, difference), p_value, "student", found.samples)
    statistic = abs(difference) / error
    p_value = min(1.0, 2.0 * student_share(-statistic, freedom))
    times = None
    if found.drawn is not None and np.isfinite(found.drawn).mean() > _FEWEST_KNOWN:
        known = found.drawn[np.isfinite(found.drawn)]
        times, beyond = float(np.quantile(known, confidence)), int((known >= statistic).sum())
        by_sets = (beyond + 1) / (len(known) + 1)
        p_value = by_sets if beyond else min(by_sets, p_value)
    method: Method = "student" if times is None else "bootstrap"
    reach = error * (student_quantile(0.5 + confidence / 2.0, freedom) if times is None else times)
    return MeanDifference(difference, (difference - reach, difference + reach), p_value, method, found.samples)


def _grouped(differences: _Matrix) -> _Matrix:
    """Means of at most so many groups of samples, chosen at random: neighbours may be alike."""
    samples = len(differences)
    if samples <= _MOST_GROUPS:
        return differences
    groups = np.random.default_rng(_SEED).permutation(samples) % _MOST_GROUPS
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(_MOST_GROUPS))
    sums = np.add.reduceat(differences[order], starts, axis=0)
    found: _Matrix = sums / np.bincount(groups, minlength=_MOST_GROUPS)[:, None]
    return found


def _statistics(groups: _Matrix, means: _Matrix) -> _Matrix:
    """|mean of a set - mean of all| in standard errors of the set, by set and metric; NaN where it has none."""
    count = len(groups)
    random = np.random.default_rng(_SEED)
    found = []
    for _ in range(_SETS // _PART):
        chosen = random.integers(0, count, (_PART, count)) + (np.arange(_PART) * count)[:, None]
        weights = np.bincount(chosen.reshape(-1), minlength=_PART * count).reshape(_PART, count).astype(np.float64)
        moved = weights @ (groups - means) / count
        squares = weights @ np.square(groups - means) / count
        errors = np.sqrt(np.maximum(squares - np.square(moved), 0.0) / (count - 1))
        room: Any = np.full(errors.shape, np.nan)
        found.append(np.divide(np.abs(moved), errors, out=room, where=errors > _SAME * errors.max(axis=0)))
    return np.concatenate(found)
