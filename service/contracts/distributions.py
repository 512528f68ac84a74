"""Statistics in plain Python: the normal and Student distributions, intervals of shares, McNemar test."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

_NORMAL = NormalDist()
# Beyond so many degrees of freedom Student's distribution is the normal one to six digits.
_MANY = 1e6
_ROUNDS = 200
_TINY = 1e-300


def normal_quantile(share: float) -> float:
    """Where the standard normal distribution function reaches ``share`` in (0, 1)."""
    return _NORMAL.inv_cdf(share)


def student_share(value: float, freedom: float) -> float:
    """Student's distribution function with ``freedom`` degrees of freedom.

    By the incomplete beta function, Abramowitz and Stegun 26.7.1.
    """
    if freedom > _MANY:
        return _NORMAL.cdf(value)
    tail = 0.5 * incomplete_beta(freedom / (freedom + value * value), freedom / 2.0, 0.5)
    return 1.0 - tail if value > 0 else tail


def student_quantile(share: float, freedom: float) -> float:
    """Where Student's distribution function reaches ``share`` in (0, 1), by bisection."""
    if freedom > _MANY:
        return normal_quantile(share)
    if share == 0.5:
        return 0.0
    tail = min(share, 1.0 - share)
    low, high = -1.0, 0.0
    while student_share(low, freedom) > tail:
        low *= 2.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if student_share(middle, freedom) < tail:
            low = middle
        else:
            high = middle
    return high if share < 0.5 else -high


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction, in Lentz's way (Numerical Recipes, 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    factor = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c, d = 1.0, 1.0 / _apart(1.0 - (a + b) * x / (a + 1.0))
    found = d
    for m in range(1, 10 * _ROUNDS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _apart(1.0 + term * d)
            c = _apart(1.0 + term / c)
            found *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return factor * found / a


def _apart(value: float) -> float:
    """The value, kept away from zero."""
    return value if abs(value) > _TINY else _TINY


_SHARE_ROUNDS = 100


class Pairs(NamedTuple):
    """Samples grouped by the predictions of two models."""

    lost: int  # right in the first model alone
    won: int  # right in the second model alone
    samples: int  # all there are


def wilson(hits: int, samples: int, confidence: float) -> tuple[float, float]:
    """Interval of a share in [0, 1], from ``hits`` of ``samples``.

    Wilson 1927, "Probable inference, the law of succession, and statistical inference": the score interval. Unlike the
    interval of Wald it holds near 0 and 1 and for few samples.
    """
    z2 = normal_quantile(0.5 + confidence / 2.0) ** 2
    share = hits / samples
    middle = (share + z2 / (2.0 * samples)) / (1.0 + z2 / samples)
    half = math.sqrt(z2 * (share * (1.0 - share) / samples + z2 / (4.0 * samples**2))) / (1.0 + z2 / samples)
    # at the ends rounding would leave the share outside
    return (0.0 if hits == 0 else max(middle - half, 0.0)), (1.0 if hits == samples else min(middle + half, 1.0))


def paired_interval(pairs: Pairs, confidence: float) -> tuple[float, float]:
    """Interval of what the first model's share is above the second's, in [-1, 1].

    Tango 1998, "Equivalence test and confidence interval for the difference in proportions for the paired-sample
    design": all differences that the score test does not reject. It holds for few samples, and where none changed
    sides; benchmarks.coverage tells how well.
    """
    z = normal_quantile(0.5 + confidence / 2.0)
    difference = (pairs.lost - pairs.won) / pairs.samples
    return -_edge(Pairs(pairs.won, pairs.lost, pairs.samples), -difference, z), _edge(pairs, difference, z)


def _edge(pairs: Pairs, difference: float, z: float) -> float:
    """The largest difference that the score test keeps, by bisection."""
    low, high = difference, 1.0
    for _ in range(_SHARE_ROUNDS):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if _score(pairs, middle) > -z:
            low = middle
        else:
            high = middle
    return high


def _score(pairs: Pairs, delta: float) -> float:
    """Tango's statistic of the hypothesis that the difference is ``delta``; falls as ``delta`` grows."""
    lost, won, samples = pairs
    # the most likely share of won samples under the hypothesis solves 2n q^2 + b q + c = 0
    b = -lost - won + (2.0 * samples - lost + won) * delta
    c = -won * delta * (1.0 - delta)
    won_share = max((math.sqrt(max(b * b - 8.0 * samples * c, 0.0)) - b) / (4.0 * samples), 0.0)
    variance = samples * (2.0 * won_share + delta * (1.0 - delta))
    distance = lost - won - samples * delta
    if variance <= 0.0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def unseen_share(samples: int, confidence: float) -> float:
    """The share in [0, 1] of what was seen in none of ``samples`` is not larger, with ``confidence``.

    The rule of three (Hanley and Lippman-Hand 1983, "If nothing goes wrong, is everything all right?"), exact: a larger
    share p would have shown itself with a chance of 1 - (1 - p)^n.
    """
    return -math.expm1(math.log1p(-confidence) / samples)


def mcnemar(lost: int, won: int) -> float:
    """Chance of ``lost`` and ``won`` as far apart as these, or farther, if neither model were better.

    McNemar 1947, exact: samples that changed sides are tosses of a fair coin, two-sided. 1 where none changed.
    """
    total, fewer = lost + won, min(lost, won)
    if lost == won:
        return 1.0
    # the terms of the binomial in logarithms, so that they do not overflow; the largest comes last
    logarithms = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) - total * math.log(2.0)
        for k in range(fewer + 1)
    ]
    return min(1.0, 2.0 * math.fsum(math.exp(term) for term in logarithms))
