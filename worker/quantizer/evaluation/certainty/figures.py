"""Intervals of metrics and of what one model has above another, whatever the metric is made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from service.contracts.distributions import Pairs, mcnemar, paired_interval, unseen_share, wilson
from service.contracts.report import Flips, Interval
from worker.quantizer.evaluation.certainty.contributions import Array, Contributions, Hits, Sums
from worker.quantizer.evaluation.certainty.resampling import Spread, spread_of

# From here on a decision was made with confidence.
CONFIDENT = 0.9


@dataclass(frozen=True)
class MetricDifference:
    """What the first of two models has above the second, in the metric's unit, measured on the same samples.

    Attributes:
        interval: where it lies; None if nobody can tell.
        p_value: chance of a difference as large as this if neither were better; None if nobody can tell.
        flips: of a share of samples: which changed sides.
    """

    interval: Interval | None
    p_value: float | None
    flips: Flips | None = None


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
