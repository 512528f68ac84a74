"""Metrics in pairs, against formulas, simulated models of known quality, and what holds for all numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.comparison.means import MeanDifference, mean_differences

VALUES = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=3, max_size=60)


def compared(first: object, second: object, confidence: float = 0.95) -> MeanDifference:
    columns = [{"loss": np.asarray(values, dtype=np.float64)} for values in (first, second)]
    return mean_differences(columns[0], columns[1], confidence)["loss"]


@given(VALUES)
def test_sides_may_be_exchanged(values: list[tuple[float, float]]) -> None:
    first, second = (np.array(column) for column in zip(*values, strict=True))
    there, back = compared(first, second), compared(second, first)
    assert there.difference == pytest.approx(first.mean() - second.mean(), abs=1e-6)
    assert there.interval[0] <= there.difference <= there.interval[1]
    assert back.interval == pytest.approx((-there.interval[1], -there.interval[0]), rel=1e-9, abs=1e-6)
    assert back.p_value == pytest.approx(there.p_value)
    assert 0.0 <= there.p_value <= 1.0
    assert (there.method == "bootstrap") <= (len(values) >= 20)


def test_few_samples_are_judged_by_student() -> None:
    # t = 2 / (sqrt(10/4) / sqrt(5)) = 2.828 of 4 degrees of freedom: p = 0.0474 of any table
    found = compared([2.0, 3, 4, 5, 6], [2.0, 2, 2, 2, 2])
    assert (found.method, found.samples) == ("student", 5)
    assert found.difference == 2.0
    assert found.p_value == pytest.approx(0.0474, abs=5e-4)
    assert found.interval == pytest.approx((2 - 2.776 * np.sqrt(0.5), 2 + 2.776 * np.sqrt(0.5)), abs=1e-3)


def test_equal_files_differ_in_nothing() -> None:
    same = np.random.default_rng(0).normal(size=500)
    found = compared(same, same)
    assert (found.difference, found.interval, found.p_value) == (0.0, (0.0, 0.0), 1.0)
    assert compared(same + 1.0, same).p_value < 1e-9


@pytest.mark.parametrize(("samples", "times"), [(30, 200), (300, 100), (1500, 25)])
def test_intervals_hold_the_truth_and_equal_models_are_rarely_called_different(samples: int, times: int) -> None:
    random = np.random.default_rng(samples)
    held = alarms = 0
    for _ in range(times):
        first = random.exponential(size=samples)
        second = first + random.normal(0.1, 0.5, samples) * random.exponential(size=samples)
        found = compared(second, first)
        held += found.interval[0] <= 0.1 <= found.interval[1]
        alarms += compared(second - 0.1, first).p_value <= 0.05
    assert held >= 0.88 * times
    assert alarms <= 0.12 * times


def test_a_p_value_that_no_set_reaches_is_students() -> None:
    random = np.random.default_rng(1)
    first = random.normal(size=400)
    found = compared(first + random.normal(1.0, 0.5, 400), first)
    assert found.method == "bootstrap"
    assert 0.0 < found.p_value < 1e-6


def test_only_columns_that_both_have_in_one_length_are_compared() -> None:
    first = {"a": np.arange(4.0), "b": np.arange(4.0), "c": np.arange(2.0)}
    second = {"a": np.arange(4.0), "b": np.arange(5.0), "c": np.arange(2.0), "d": np.arange(4.0)}
    assert set(mean_differences(first, second, 0.95)) == {"a"}
    assert mean_differences({}, second, 0.95) == {}
