"""Streaming figures, against scikit-learn and numpy over everything at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, top_k_accuracy_score

from tests.unit.quantizer.toolbox import normal, rng
from worker.quantizer.evaluation.metrics import IDENTICAL_DB, Accuracy, Agreement, Distance


def accuracy(scores: np.ndarray, labels: np.ndarray, batch: int = 7) -> dict[str, float]:
    found = Accuracy()
    for start in range(0, len(labels), batch):
        assert found.update(scores[start : start + batch], labels[start : start + batch])
    return found.metrics


@pytest.mark.parametrize(("classes", "batch"), [(2, 7), (5, 200), (6, 1), (10, 7)])
def test_accuracy_equals_scikit_learns(classes: int, batch: int) -> None:
    scores, labels = normal(200, classes), rng(1).integers(0, classes, 200)
    metrics = accuracy(scores, labels, batch)
    assert metrics["top1"] == pytest.approx(100 * accuracy_score(labels, scores.argmax(axis=1)))
    assert ("top5" in metrics) == (classes > 5)
    if classes > 5:
        expected = top_k_accuracy_score(labels, scores, k=5, labels=range(classes))
        assert metrics["top5"] == pytest.approx(100 * expected)
    assert accuracy(scores.reshape(200, classes, 1, 1), labels) == accuracy(scores, labels)


@given(
    scores=hnp.arrays(np.float32, st.tuples(st.integers(1, 30), st.just(8)), elements=st.sampled_from([0.0, 0.5, 1.0])),
    seed=st.integers(0, 100),
)
def test_ties_are_decided_as_arg_max_decides(scores: np.ndarray, seed: int) -> None:
    labels = rng(seed).integers(0, 8, len(scores))
    metrics = accuracy(scores, labels)
    first_five = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    assert metrics["top1"] == pytest.approx(100 * (scores.argmax(axis=1) == labels).mean())
    assert metrics["top5"] == pytest.approx(100 * (first_five == labels[:, None]).any(axis=1).mean())


def test_class_numbers_are_judged_as_they_are() -> None:
    labels = rng(1).integers(0, 6, 50)
    guessed = np.where(rng(2).random(50) < 0.7, labels, 0)
    assert accuracy(guessed, labels) == {"top1": pytest.approx(100 * accuracy_score(labels, guessed))}
    assert accuracy(guessed.reshape(50, 1), labels) == accuracy(guessed, labels)


@pytest.mark.parametrize(
    "output",
    [
        normal(4, 3),
        normal(4, 6, 5, 5),
        normal(4),
        normal(4, 1),
        normal(3, 9),
        np.zeros((4, 9), bool),
        np.zeros((4, 2), np.int64),
    ],
    ids=["too few classes", "map", "rank 1", "one class", "another length", "booleans", "integer pairs"],
)
def test_what_is_no_classification_is_refused(output: np.ndarray) -> None:
    found = Accuracy()
    assert not found.update(output, np.array([0, 1, 5, 2]))
    assert found.metrics == {}


def distance(x: np.ndarray, y: np.ndarray, parts: int = 3) -> Distance:
    found = Distance()
    for a, b in zip(np.array_split(x, parts), np.array_split(y, parts), strict=True):
        found.update(a, b)
    return found


def test_the_ends_of_a_distance() -> None:
    x, zeros = normal(6, 5), np.zeros((6, 5), np.float32)
    for same in (x, zeros):
        found = distance(same, same)
        assert (found.sqnr_db, found.cosine) == (IDENTICAL_DB, pytest.approx(1.0))
    assert (distance(zeros, x).sqnr_db, distance(zeros, x).cosine) == (-IDENTICAL_DB, None)
    assert (distance(x, zeros).sqnr_db, distance(x, zeros).cosine) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_distance_is_undefined_where_values_are_not_finite(bad: float) -> None:
    x = normal(6, 5)
    y = x.copy()
    y[2, 2] = bad
    assert distance(x, y).sqnr_db is None
    assert distance(x, y).cosine is None
    assert distance(y, x).sqnr_db is None
    assert Distance().sqnr_db is None
    assert Distance().cosine is None


def agreement(x: np.ndarray, y: np.ndarray) -> float | None:
    found = Agreement()
    for a, b in zip(np.array_split(x, 3), np.array_split(y, 3), strict=True):
        found.update(a, b)
    return found.percent


def test_agreement_of_scores_of_one_position_is_that_of_class_scores() -> None:
    x = normal(60, 7)
    y = x + normal(60, 7, seed=1)
    assert agreement(x, y) == pytest.approx(100 * (x.argmax(axis=1) == y.argmax(axis=1)).mean())
    assert agreement(x.reshape(60, 7, 1, 1), y.reshape(60, 7, 1, 1)) == agreement(x, y)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool])
def test_agreement_of_integers_is_equality(dtype: type) -> None:
    x, y = rng(1).integers(0, 2, (30, 3)).astype(dtype), rng(2).integers(0, 2, (30, 3)).astype(dtype)
    assert agreement(x, y) == pytest.approx(100 * (x == y).mean())


@pytest.mark.parametrize("shape", [(12,), (12, 1), (12, 1, 1, 1)])
def test_a_single_score_decides_nothing(shape: tuple[int, ...]) -> None:
    assert agreement(normal(*shape), normal(*shape, seed=1)) is None
