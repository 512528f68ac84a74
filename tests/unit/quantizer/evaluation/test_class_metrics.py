"""Metrics of classes and of distances, against scikit-learn and numpy over everything at once."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, f1_score, jaccard_score, precision_score, recall_score, top_k_accuracy_score

from service.contracts.errors import InvalidConfigError
from tests.unit.quantizer.evaluation.measuring import measured, value
from tests.unit.quantizer.toolbox import normal, rng
from worker.quantizer.evaluation.metrics import IDENTICAL_DB, Accuracy, AgreementRate, Distance

SKLEARN = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
PAIRS = np.zeros((4, 2), np.int64)
AVERAGES = ("macro", "micro", "weighted")
WORD_ERRORS = {"kind": "word_error_rate"}


def decided(samples: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels that agree more often than not."""
    labels = rng(seed).integers(0, classes, samples)
    scores = normal(samples, classes, seed=seed + 1)
    scores[np.arange(samples), labels] += 1.0
    return scores, labels


@given(
    samples=st.integers(1, 40),
    classes=st.integers(2, 9),
    k=st.integers(1, 9),
    seed=st.integers(0, 50),
    batch=st.sampled_from([1, 7, 64]),
)
def test_accuracy_at_k(samples: int, classes: int, k: int, seed: int, batch: int) -> None:
    scores, labels = decided(samples, classes, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of k as large as the number of classes
        expected = top_k_accuracy_score(labels, scores, k=k, labels=range(classes)) if classes > 2 else None
    if classes == 2:
        expected = accuracy_score(labels, scores.argmax(axis=1)) if k == 1 else 1.0
    got = value({"kind": "accuracy_at_k", "k": k}, {"y": scores}, labels, batch=batch)
    assert got == pytest.approx(100 * expected, abs=1e-4)
    if k in (1, 5):
        assert value({"kind": f"top{k}"}, {"y": scores}, labels, batch=batch) == got


def test_per_class_accuracy() -> None:
    scores, labels = decided(90, 5, 3)
    labels[labels == 3] = 4  # a class that does not occur
    right = scores.argmax(axis=1) == labels
    expected = {f"class {k}": 100 * right[labels == k].mean() for k in (0, 1, 2, 4)}
    macro = 100 * recall_score(labels, scores.argmax(axis=1), average="macro", labels=[0, 1, 2, 4])
    for reduce, combined in (("mean", macro), ("worst", min(expected.values()))):
        found = measured([{"kind": "per_class_accuracy", "reduce": reduce}], {"y": scores}, labels)
        assert found.details["per_class_accuracy"] == pytest.approx(expected, abs=1e-4)
        assert found.values["per_class_accuracy"] == pytest.approx(combined, abs=1e-4)


@pytest.mark.parametrize("kind", sorted(SKLEARN))
@given(
    average=st.sampled_from(AVERAGES), samples=st.integers(1, 30), classes=st.integers(2, 6), seed=st.integers(0, 40)
)
def test_f1_precision_and_recall(kind: str, average: str, samples: int, classes: int, seed: int) -> None:
    scores, labels = decided(samples, classes, seed)
    expected = SKLEARN[kind](labels, scores.argmax(axis=1), average=average, zero_division=0)
    assert value({"kind": kind, "average": average}, {"y": scores}, labels) == pytest.approx(100 * expected, abs=1e-4)


@pytest.mark.parametrize("kind", sorted(SKLEARN))
def test_one_class_alone_and_a_threshold_that_makes_every_score_a_decision(kind: str) -> None:
    scores, labels = decided(80, 4, 5)
    expected = SKLEARN[kind](labels == 2, scores.argmax(axis=1) == 2)
    found = measured([{"kind": kind, "positive_class": 2}], {"y": scores}, labels).values
    assert found == {f"{kind}_class_2": pytest.approx(100 * expected, abs=1e-4)}
    scores, labels = rng(1).random((50, 4)).astype(np.float32), rng(2).integers(0, 2, (50, 4))
    for average, dtype in zip(AVERAGES, (np.int64, np.float32, bool), strict=True):
        metric = {"kind": kind, "average": average, "threshold": 0.6}
        expected = SKLEARN[kind](labels, scores > 0.6, average=average, zero_division=0)
        assert value(metric, {"y": scores}, labels.astype(dtype)) == pytest.approx(100 * expected, abs=1e-4)
    one = f1_score(labels[:, 0], scores[:, 0] > 0.5)
    for output in (scores[:, 0], scores[:, :1]):
        found = value({"kind": "f1", "threshold": 0.5}, {"y": output}, labels[:, 0])
        assert found == pytest.approx(100 * one, abs=1e-4)


def maps(samples: int = 6, classes: int = 4, side: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    scores = normal(samples, classes, side, side, seed=seed)
    return scores, rng(seed + 1).integers(0, classes, (samples, side, side)).astype(np.uint8)


@given(samples=st.integers(1, 9), classes=st.integers(2, 5), side=st.integers(2, 6), seed=st.integers(0, 40))
def test_mean_iou_of_maps(samples: int, classes: int, side: int, seed: int) -> None:
    scores, labels = maps(samples, classes, side, seed)
    guessed = scores.argmax(axis=1)
    present = np.union1d(guessed, labels)
    expected = jaccard_score(labels.reshape(-1), guessed.reshape(-1), average=None, labels=present)
    found = measured([{"kind": "mean_iou"}], {"y": scores}, labels)
    assert found.values["mean_iou"] == pytest.approx(100 * expected.mean(), abs=1e-4)
    each = {f"class {k}": 100 * share for k, share in zip(present, expected, strict=True)}
    assert found.details["mean_iou"] == pytest.approx(each, abs=1e-4)


def test_the_same_map_in_any_form() -> None:
    scores, labels = maps()
    expected = value({"kind": "mean_iou"}, {"y": scores}, labels)
    last = np.moveaxis(scores, 1, -1)
    assert value({"kind": "mean_iou", "class_axis": 3}, {"y": last}, labels) == expected
    numbers = scores.argmax(axis=1).astype(np.int32)
    assert value({"kind": "mean_iou"}, {"y": numbers}, labels) == expected
    assert value({"kind": "mean_iou"}, {"y": numbers[:, None]}, labels[:, None]) == expected


@pytest.mark.parametrize("kind", ["mean_iou", "f1", "top1", "per_class_accuracy"])
def test_ignored_labels_do_not_count(kind: str) -> None:
    scores, labels = maps()
    labels[:, :2] = 255
    metric = {"kind": kind, "name": "m", "ignore_index": 255}
    kept_scores, kept_labels = np.moveaxis(scores, 1, -1)[labels != 255], labels[labels != 255]
    expected = value({"kind": kind, "name": "m"}, {"y": kept_scores}, kept_labels.astype(np.int64))
    assert value(metric, {"y": scores}, labels) == expected


def test_class_numbers_positions_and_scores_that_are_not_finite() -> None:
    labels, guessed = rng(1).integers(0, 6, 50), rng(2).integers(-1, 6, 50)
    assert value({"kind": "top1"}, {"y": guessed}, labels) == pytest.approx(100 * (labels == guessed).mean(), abs=1e-4)
    known = guessed >= 0  # a decision for no class misses, and is no false positive
    hits, wanted, got = (labels == guessed).sum(), len(labels), known.sum()
    for kind, of in (("precision", got), ("recall", wanted)):
        found = value({"kind": kind, "average": "micro"}, {"y": guessed}, labels)
        assert found == pytest.approx(100 * hits / of, abs=1e-4)
    # positions of sequences
    scores, labels = normal(6, 8, 5), rng(1).integers(0, 5, (6, 8))
    expected = 100 * (scores.argmax(axis=2) == labels).mean()
    assert value({"kind": "top1"}, {"y": scores}, labels) == pytest.approx(expected, abs=1e-4)
    # scores that are not finite are misses
    scores, labels = decided(20, 4, 1)
    scores[5:10] = np.nan
    right = (scores.argmax(axis=1) == labels) & ~np.isnan(scores).any(axis=1)
    for metric in ({"kind": "top1"}, {"kind": "recall", "average": "micro"}):
        assert value(metric, {"y": scores}, labels) == pytest.approx(100 * right.mean(), abs=1e-4)


@pytest.mark.parametrize(
    ("metric", "output", "labels", "place", "says"),
    [
        ({"kind": "top1"}, normal(9), np.zeros(9, int), "output", "neither class scores nor class numbers"),
        ({"kind": "top1"}, normal(9, 1), np.zeros(9, int), "output", "neither"),
        ({"kind": "top1"}, normal(9, 4), np.zeros((9, 3), int), "labels", r"shape \[7, 3\], but the output decides"),
        ({"kind": "top1"}, normal(9, 4), np.full(9, 4), "labels", "label 4 is not a class of the output, .* 0 to 3"),
        ({"kind": "mean_iou"}, normal(9, 4, 3, 3), np.full((9, 3, 3), -1), "labels", "ignore_index leaves it out"),
        ({"kind": "top5"}, np.zeros((9,), int), np.zeros(9, int), "output", "need scores"),
        ({"kind": "top1", "class_axis": 3}, normal(9, 4), np.zeros(9, int), "output", "neither"),
        ({"kind": "f1", "threshold": 0.5}, normal(9, 4), np.full((9, 4), 2), "labels", "0 or 1, not 2"),
        ({"kind": "f1", "threshold": 0.5}, np.zeros(9, int), np.zeros(9, int), "output", "takes scores"),
        ({"kind": "recall"}, np.full(9, 2_000_000), np.zeros(9, int), "output", "class number 2000000"),
        *(
            ({"kind": kind}, normal(9, 3), normal(9, 2), "labels", r"shape \[7, 2\], but the output is \[7, 3\]")
            for kind in ("rmse", "r2", "spearman")
        ),
        ({"kind": "perplexity"}, normal(5), np.zeros(5, int), "output", None),
        ({"kind": "perplexity"}, np.zeros((5, 3), int), np.zeros(5, int), "output", None),
        ({"kind": "perplexity"}, normal(5, 3), np.full(5, 3), "labels", None),
        ({"kind": "perplexity"}, normal(5, 4, 3), np.zeros((5, 3), int), "labels", None),
        ({"kind": "perplexity", "shift": True}, normal(5, 3), np.zeros(5, int), "shift", None),
        (WORD_ERRORS, normal(5, 4), np.zeros((5, 3), int), "output", None),
        (WORD_ERRORS, np.zeros((5, 4, 3), int), np.zeros((5, 3), int), "output", None),
        (WORD_ERRORS, normal(5, 4, 3), np.zeros(5, int), "labels", None),
        ({**WORD_ERRORS, "label_lengths": "far"}, normal(5, 4, 3), np.zeros((5, 3), int), "label_lengths", None),
        ({**WORD_ERRORS, "label_lengths": "truth"}, normal(5, 4, 3), np.zeros((5, 3), int), "label_lengths", None),
    ],
)
def test_what_does_not_fit_points_at_its_field(metric, output, labels, place, says) -> None:
    with pytest.raises(InvalidConfigError, match=says) as caught:
        measured(
            [{"kind": "sqnr"}, {**metric, "labels": "truth"}],
            {"y": output},
            arrays={"truth": labels, "far": np.full(len(labels), 4)},
        )
    assert caught.value.errors[0].pointer == f"/config/evaluation/metrics/1/{place}"
    assert caught.value.hint


def accuracy(scores: np.ndarray, labels: np.ndarray, batch: int = 7) -> dict[str, float]:
    found = Accuracy()
    for start in range(0, len(labels), batch):
        assert found.update(scores[start : start + batch], labels[start : start + batch])
    return found.metrics


@given(
    scores=hnp.arrays(np.float32, st.tuples(st.integers(1, 30), st.just(8)), elements=st.sampled_from([0.0, 0.5, 1.0])),
    seed=st.integers(0, 100),
    batch=st.sampled_from([1, 7, 64]),
)
def test_ties_are_decided_as_arg_max_decides(scores: np.ndarray, seed: int, batch: int) -> None:
    labels = rng(seed).integers(0, 8, len(scores))
    metrics = accuracy(scores, labels, batch)
    first_five = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    assert metrics["top1"] == pytest.approx(100 * (scores.argmax(axis=1) == labels).mean())
    assert metrics["top5"] == pytest.approx(100 * (first_five == labels[:, None]).any(axis=1).mean())


def test_class_numbers_are_judged_as_they_are() -> None:
    for classes in (2, 5, 6):
        scores, labels = normal(50, classes), rng(1).integers(0, classes, 50)
        found = accuracy(scores, labels)
        assert list(found) == (["top1", "top5"] if classes > 5 else ["top1"])
        assert accuracy(scores.reshape(50, classes, 1, 1), labels) == found
    labels = rng(1).integers(0, 6, 50)
    guessed = np.where(rng(2).random(50) < 0.7, labels, 0)
    assert accuracy(guessed, labels) == {"top1": pytest.approx(100 * accuracy_score(labels, guessed))}
    assert accuracy(guessed.reshape(50, 1), labels) == accuracy(guessed, labels)


@pytest.mark.parametrize(
    "output",
    [normal(4, 3), normal(4, 6, 5, 5), normal(4), normal(4, 1), normal(3, 9), np.zeros((4, 9), bool), PAIRS],
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

    # it is undefined where values are not finite
    for bad in (np.nan, np.inf):
        y = x.copy()
        y[2, 2] = bad
        for found in (distance(x, y), distance(y, x), Distance()):
            assert (found.sqnr_db, found.cosine) == (None, None)


def agreement(x: np.ndarray, y: np.ndarray) -> float | None:
    found = AgreementRate()
    for a, b in zip(np.array_split(x, 3), np.array_split(y, 3), strict=True):
        found.update(a, b)
    return found.percent


def test_agreement() -> None:
    # a single score decides nothing, and that of integers is equality
    for shape in ((12,), (12, 1), (12, 1, 1, 1)):
        assert agreement(normal(*shape), normal(*shape, seed=1)) is None
    x, y = rng(1).integers(0, 2, (30, 3)), rng(2).integers(0, 2, (30, 3))
    for dtype in (np.int64, bool):
        assert agreement(x.astype(dtype), y.astype(dtype)) == pytest.approx(100 * (x == y).mean())
