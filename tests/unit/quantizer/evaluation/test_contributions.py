"""What samples add to each metric: left out in turn, it is the metric of the other samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.quantizer.evaluation.measuring import measured
from tests.unit.quantizer.toolbox import rng
from worker.quantizer.evaluation.contributions import CountSums, DenseSums, Hits, Sums, quotients
from worker.quantizer.evaluation.decisions import metric_columns

SAMPLES, GROUPS = 30, 4
DRAW = rng(1)
SCORES = DRAW.standard_normal((SAMPLES, 5)).astype(np.float32)
TWIN = (SCORES + 0.3 * DRAW.standard_normal(SCORES.shape)).astype(np.float32)
LABELS = DRAW.integers(0, 5, SAMPLES)
MAPS = DRAW.standard_normal((SAMPLES, 5, 3, 4)).astype(np.float32)
MASKS = DRAW.integers(0, 5, (SAMPLES, 3, 4))
MASKS[3] = 0  # of every other sample class 0 may be ignored
STEPS = DRAW.standard_normal((SAMPLES, 6, 5)).astype(np.float32)
WORDS = DRAW.integers(1, 5, (SAMPLES, 3))
NUMBERS = DRAW.standard_normal((SAMPLES, 3)).astype(np.float32) + 5
TARGETS = NUMBERS + DRAW.standard_normal(NUMBERS.shape).astype(np.float32)
BITS = (TARGETS > 5).astype(np.int64)
BOXES = np.concatenate([DRAW.uniform(0, 5, (SAMPLES, 4, 2)), DRAW.uniform(5, 9, (SAMPLES, 4, 2))], axis=2)
TRUE_BOXES = (BOXES[:, :2] + 0.3 * DRAW.standard_normal((SAMPLES, 2, 4))).astype(np.float32)
TRUE_CLASSES = DRAW.integers(0, 2, (SAMPLES, 2))
BOX_SCORES = DRAW.uniform(0.1, 1.0, (SAMPLES, 4, 2)).astype(np.float32)

OF_CLASSES = [
    {"kind": "top1"}, {"kind": "accuracy_at_k", "k": 2}, {"kind": "per_class_accuracy"},
    {"kind": "per_class_accuracy", "reduce": "worst"}, {"kind": "f1"}, {"kind": "f1", "average": "micro"},
    {"kind": "precision", "average": "weighted"}, {"kind": "recall", "positive_class": 2}, {"kind": "mean_iou"},
]  # fmt: skip
CASES: list[tuple[dict[str, Any], dict[str, np.ndarray], np.ndarray | None]] = [
    *((metric, {"y": SCORES}, LABELS) for metric in OF_CLASSES),
    *(({**metric, "ignore_index": 0}, {"y": MAPS}, MASKS) for metric in OF_CLASSES),
    ({"kind": "perplexity"}, {"y": STEPS[:, :3]}, WORDS),
    ({"kind": "perplexity", "shift": True}, {"y": STEPS[:, :3]}, WORDS),
    ({"kind": "word_error_rate"}, {"y": STEPS}, WORDS), ({"kind": "f1", "threshold": 5.0}, {"y": NUMBERS}, BITS),
    *(({"kind": kind}, {"y": NUMBERS}, TARGETS) for kind in ("rmse", "mae", "r2", "pearson", "spearman")),
]  # fmt: skip


def check(metric: dict[str, Any], outputs: dict[str, np.ndarray], labels: np.ndarray | None, **more: Any) -> None:
    def of(chosen: np.ndarray) -> Any:
        cut = {key: {name: array[chosen] for name, array in arrays.items()} for key, arrays in more.items() if arrays}
        made = {name: array[chosen] for name, array in outputs.items()}
        return measured([metric], made, None if labels is None else labels[chosen], **cut)

    whole = of(np.arange(SAMPLES))
    (name, value), (found,) = *whole.values.items(), whole.contributions.values()
    assert found.units == SAMPLES and found.by_sample
    assert found.value == pytest.approx(value, rel=1e-5, abs=1e-4)
    if metric["kind"] == "psnr":
        return  # its peak is that of all samples
    groups = rng(2).permutation(SAMPLES) % GROUPS
    if isinstance(found, Sums):
        weights = rng(3).integers(0, 3, (2, SAMPLES)).astype(float)
        drawn = found.value_of(found.of(weights))
        for row, got in zip(weights, drawn, strict=True):
            expected = of(np.repeat(np.arange(SAMPLES), row.astype(int))).values[name]
            assert got == pytest.approx(expected, rel=1e-5, abs=1e-4)
    for k, got in enumerate(found.without(groups)):
        assert got == pytest.approx(of(np.flatnonzero(groups != k)).values[name], rel=1e-5, abs=1e-4)


@pytest.mark.parametrize(
    ("metric", "outputs", "labels"), CASES, ids=[f"{k} {case[0]['kind']}" for k, case in enumerate(CASES)]
)
def test_left_out_samples_do_not_count(metric: dict[str, Any], outputs: Any, labels: np.ndarray | None) -> None:
    check(metric, outputs, labels)


@pytest.mark.parametrize("kind", ["agreement", "cosine", "sqnr", "psnr", "l2", "kl"])
def test_nor_do_they_against_the_float_model(kind: str) -> None:
    check({"kind": kind}, {"y": TWIN}, None, reference={"y": SCORES})


@pytest.mark.parametrize("kind", ["box_agreement", "confidence_shift"])
def test_nor_do_boxes_of_two_models(kind: str) -> None:
    before = {"boxes": BOXES.astype(np.float32), "scores": BOX_SCORES}
    after = {"boxes": before["boxes"] + 0.1, "scores": BOX_SCORES + 0.1 * rng(8).random(BOX_SCORES.shape)}
    check({"kind": kind, "boxes": 0, "scores": 1, "min_score": 0.5}, after, None, reference=before)


def test_nor_do_their_boxes() -> None:
    labels = {"boxes": "true_boxes", "classes": "true_classes"}
    metric = {"kind": "map", "boxes": "boxes", "scores": "scores", "labels": labels}
    outputs = {"boxes": BOXES.astype(np.float32), "scores": BOX_SCORES}
    check(metric, outputs, None, arrays={"true_boxes": TRUE_BOXES, "true_classes": TRUE_CLASSES})


def test_only_whole_samples_are_shares_of_samples_and_tell_them_apart() -> None:
    (found,) = measured([{"kind": "top1"}], {"y": SCORES}, LABELS).contributions.values()
    assert isinstance(found, Hits) and found.of_samples
    assert np.array_equal(found.right, SCORES.argmax(axis=1) == LABELS)
    (pixels,) = measured([{"kind": "top1"}], {"y": MAPS}, MASKS).contributions.values()
    assert isinstance(pixels, Hits) and not pixels.of_samples
    counted = measured([{"kind": "top1", "ignore_index": 2}], {"y": SCORES}, LABELS)
    (some,) = counted.contributions.values()
    assert isinstance(some, Hits) and some.of_samples
    assert np.array_equal(some.right, (SCORES.argmax(axis=1) == LABELS)[LABELS != 2])
    # what does not tell samples apart has none
    batches = DenseSums(lambda sums: sums[:, 0])
    batches.add(np.ones((1, 1)), samples=8)
    counts = CountSums(lambda sums: sums[:, 0])
    counts.add(np.arange(8), np.zeros(8, np.int64), np.ones(8), size=8, samples=8)
    one_alone = dense(np.array([[1.0, 1.0], [0, 0], [0, 0]]), lambda sums: quotients(sums[:, 0], sums[:, 1]))
    found = metric_columns({"by_batch": batches, "counts": counts, "undefined": one_alone}, 8)
    assert set(found) == {"counts"}
    assert metric_columns({"undefined": one_alone}, 3) == {}


RANDOM = np.random.default_rng(3)


def dense(values: Any, value_of: Any) -> DenseSums:
    found = DenseSums(value_of)
    for start in range(0, len(values), 7):
        found.add(values[start : start + 7], samples=len(values[start : start + 7]))
    return found


def test_of_a_mean_they_are_the_samples_own_values_and_of_a_root_what_they_move_it_by() -> None:
    losses = RANDOM.exponential(size=50)
    mean = dense(np.stack([losses, np.ones(50)], axis=1), lambda sums: quotients(sums[:, 0], sums[:, 1]))
    assert metric_columns({"loss": mean}, 50)["loss"] == pytest.approx(losses)
    hits = Hits()
    hits.add(np.array([[1.0, 1], [0, 1], [1, 1], [1, 1]]), samples=4)
    assert metric_columns({"top1": hits}, 4)["top1"] == pytest.approx([100, 0, 100, 100])
    # of a root they are what the sample moves it by
    squares = RANDOM.exponential(size=40)
    root = dense(np.stack([squares, np.ones(40)], axis=1), lambda sums: np.sqrt(quotients(sums[:, 0], sums[:, 1])))
    whole = np.sqrt(squares.mean())
    left_out = [np.sqrt(np.delete(squares, k).mean()) for k in range(40)]
    assert metric_columns({"rmse": root}, 40)["rmse"] == pytest.approx([40 * whole - 39 * f for f in left_out])
