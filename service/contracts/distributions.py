"""Quantiles and tails of the normal and of Student's distribution, in plain Python."""

from __future__ import annotations

import math
from statistics import NormalDist

_NORMAL = NormalDist()
# Beyond so many degrees of freedom Student's distribution is the normal one to six digits.
_MANY = 1e6
_ROUNDS = 200
_TINY = 1e-300


def normal_quantile(share: float) -> float:
    """Where the standard normal distribution function reaches ``share`` in (0, 1)."""
    return _NORMAL.inv_cdf(share)


def normal_share(value: float) -> float:
    """The standard normal distribution function."""
    return _NORMAL.cdf(value)


def student_share(value: float, freedom: float) -> float:
    """Student's distribution function with ``freedom`` degrees of freedom.

    By the incomplete beta function, Abramowitz and Stegun 26.7.1.
    """
    if freedom > _MANY:
        return normal_share(value)
    tail = 0.5 * _incomplete_beta(freedom / (freedom + value * value), freedom / 2.0, 0.5)
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


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction, in Lentz's way (Numerical Recipes, 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
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
