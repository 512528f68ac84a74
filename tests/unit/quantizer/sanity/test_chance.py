"""Chance against brute force and exact sums; the alarm's promises on simulated models."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.quantizer.evaluation.chance import guessed_share
from worker.quantizer.sanity.decisions import (
    HitCounts,
    best_classes,
    hits_of,
    tail_at_least,
    tail_at_most,
)


@given(count=st.integers(1, 60), data=st.data())
def test_tails_are_exact(count: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, count))
    share = data.draw(st.fractions(0, 1, max_denominator=50))

    def exact(values: range) -> Fraction:
        return sum((comb(count, k) * share**k * (1 - share) ** (count - k) for k in values), Fraction(0))

    assert tail_at_least(hits, count, float(share)) == pytest.approx(float(exact(range(hits, count + 1))), abs=1e-12)
    assert tail_at_most(hits, count, float(share)) == pytest.approx(float(exact(range(hits + 1))), abs=1e-12)


@given(labels=st.lists(st.integers(0, 3), min_size=2, max_size=6), rank=st.integers(1, 2), seed=st.integers(0, 1000))
def test_expected_hits_are_those_of_all_permutations(labels: list[int], rank: int, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(len(labels), 4))
    decided = best_classes(scores, rank)
    orders = list(permutations(labels))
    hits = [sum(label in row for label, row in zip(order, decided.tolist(), strict=True)) for order in orders]
    expected = sum(hits) / len(orders) / len(labels)
    assert hits_of(decided, np.array(labels)).expected == pytest.approx(expected)


@given(count=st.integers(1, 2000), classes=st.integers(2, 1000), seed=st.integers(0, 10_000))
def test_a_useful_model_raises_no_alarm(count: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    decided = np.where(rng.random(count) < 0.9, labels, rng.integers(0, classes, count))
    assert not hits_of(decided[:, None], labels).is_chance


@given(hits=st.integers(0, 4), classes=st.integers(2, 1000))
def test_four_samples_are_too_few_for_an_alarm(hits: int, classes: int) -> None:
    assert not HitCounts(4, hits, 1 / classes).is_chance


def test_guesses_of_many_samples_are_an_alarm() -> None:
    rng = np.random.default_rng(0)
    alarms = [
        hits_of(rng.integers(0, classes, (300, 1)), rng.integers(0, classes, 300)).is_chance
        for classes in (2, 5, 10, 100, 1000)
        for _ in range(40)
    ]
    assert np.mean(alarms) > 0.95


@pytest.mark.parametrize("missed", [0.2, 0.6])
def test_rare_classes_count(missed: float) -> None:
    """95 % of one class: naming it always is chance; finding some of the others is not, at nearly the same accuracy."""
    rng = np.random.default_rng(1)
    labels = (rng.random(2000) < 0.05).astype(np.int64)
    always, some = np.zeros_like(labels), np.where(rng.random(2000) < missed, 0, labels)
    constant = hits_of(always[:, None], labels)
    assert constant.percent == pytest.approx(100 * constant.expected)
    assert not constant.shows_skill
    assert hits_of(some[:, None], labels).shows_skill


def test_nan_decides_for_nothing() -> None:
    scores = np.array([[0.1, np.nan], [0.2, 0.1]])
    assert best_classes(scores, 1).tolist() == [[-1], [0]]
    assert hits_of(best_classes(scores, 1), np.array([0, 0])).hits == 1


@pytest.mark.parametrize(
    ("labels", "classes", "rank", "share"),
    [([0, 0, 0, 1], 4, 1, 0.75), ([0, 1, 2, 3], 4, 1, 0.25), ([0, 1], 4, 2, 1.0), ([0, 1, 2, 3], 4, 2, 0.5)],
)
def test_share_of_guesses(labels: list[int], classes: int, rank: int, share: float) -> None:
    assert guessed_share(np.array(labels), classes, rank) == pytest.approx(share)
