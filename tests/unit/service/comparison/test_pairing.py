"""Pairs of decisions, against counting by hand and against simulated models of known quality."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.comparison.pairing import paired
from service.comparison.samples import Decisions

SIDES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60)


def decisions(quantized: object, expected: object, *, labeled: bool = True) -> Decisions:
    return Decisions(np.asarray(quantized, dtype=np.int64), np.asarray(expected, dtype=np.int32), labeled)


@given(SIDES)
def test_sides_are_counted(samples: list[tuple[int, int, int]]) -> None:
    first, second, labels = (list(column) for column in zip(*samples, strict=True))
    found = paired(decisions(first, labels), decisions(second, labels))
    assert found is not None
    lost = [k for k, (a, b, label) in enumerate(samples) if a == label != b]
    won = [k for k, (a, b, label) in enumerate(samples) if b == label != a]
    assert found.flipped.tolist() == sorted(lost + won)
    assert tuple(found.counts) == (len(lost), len(won), len(samples))
    low, high = found.interval_percent
    assert low - 1e-9 <= found.drop_percent <= high + 1e-9
    assert found.drop_percent == pytest.approx(100 * (len(lost) - len(won)) / len(samples))
    back = paired(decisions(second, labels), decisions(first, labels))
    assert back is not None
    assert back.p_value == pytest.approx(found.p_value)
    assert back.interval_percent == pytest.approx((-high, -low), abs=1e-6)
    assert not (found.significantly_worse() and back.significantly_worse())


def test_only_the_same_samples_are_paired() -> None:
    one = decisions([0, 1], [0, 1])
    assert paired(one, decisions([0, 1], [1, 0])) is None
    assert paired(one, decisions([0, 1, 2], [0, 1, 2])) is None
    assert paired(one, decisions([0, 1], [0, 1], labeled=False)) is None
    assert paired(decisions([], []), decisions([], [])) is None


def test_equal_models_are_rarely_called_worse_and_worse_ones_mostly() -> None:
    random = np.random.default_rng(5)
    labels = np.zeros(1000, dtype=np.int32)

    def alarms(wrong: float, flips: float, drop: float) -> int:
        found = 0
        for _ in range(200):
            base = random.random(1000) < wrong
            other = np.where(random.random(1000) < flips, ~base, base) | (random.random(1000) < drop)
            pair = paired(decisions(base, labels), decisions(other, labels))
            assert pair is not None
            found += pair.significantly_worse()
        return found

    # of half right ones flips go both ways alike
    assert alarms(0.5, 0.05, 0.0) <= 14, "one in forty of equal models at most, but for luck"
    assert alarms(0.1, 0.02, 0.03) >= 190
