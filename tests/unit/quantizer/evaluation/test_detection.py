"""Metrics of detectors: average precision against figures of pycocotools, raw outputs, boxes of two models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.contracts.errors import InvalidConfigError
from service.contracts.metrics import MeanAveragePrecision
from tests.unit.quantizer.evaluation.measuring import measured, value
from tests.unit.quantizer.toolbox import normal, rng
from worker.quantizer.evaluation.metrics import MetricSet
from worker.quantizer.evaluation.metrics.base import MetricBatch
from worker.quantizer.evaluation.metrics.boxes import Detections, detections, kept_boxes
from worker.quantizer.evaluation.metrics.detection import AveragePrecision

METRIC = {"kind": "map", "boxes": "boxes", "scores": "scores", "classes": "classes"}


def scene(seed: int, samples: int = 6, most: int = 5, found: int = 8, classes: int = 3) -> tuple[dict, dict]:
    """Outputs and labels: true boxes, and detections that are shifted copies of them or made up."""
    random = rng(seed)
    truth = np.full((samples, most, 4), -1, np.float32)
    numbers = np.full((samples, most), -1, np.int32)
    outputs = {
        "boxes": np.zeros((samples, found, 4), np.float32),
        # of two digits, so that some are equal
        "scores": np.round(random.random((samples, found)), 2).astype(np.float32),
        "classes": random.integers(0, classes, (samples, found)).astype(np.float32),
    }
    for sample in range(samples):
        count = int(random.integers(0, most + 1))
        corner = random.random((most, 2)) * 50
        boxes = np.concatenate([corner, corner + 5 + random.random((most, 2)) * 30], axis=1)
        truth[sample, :count] = boxes[:count]
        numbers[sample, :count] = random.integers(0, classes, count)
        for k in range(found):
            of = int(random.integers(0, most))
            moved = boxes[of] + random.normal(0, 2, 4)
            moved[2:] = np.maximum(moved[2:], moved[:2] + 1)
            outputs["boxes"][sample, k] = moved
            if of < count and random.random() < 0.8:
                outputs["classes"][sample, k] = numbers[sample, of]
    return outputs, {"boxes": truth, "classes": numbers}


def coco_figures(found: MetricSet) -> tuple[float, ...]:
    """AP, AP50, AP75 and AR100 in percent."""
    return (found.values["map"], *(found.details["map"][name] for name in ("ap50", "ap75", "average_recall")))


# The figures of ``coco_figures`` by pycocotools 2.0.11 on these scenes.
PYCOCOTOOLS = {
    0: (12.4537, 26.8881, 9.5072, 45.0468), 1: (12.6739, 32.2890, 6.9154, 42.9340),
    2: (13.1421, 28.3809, 10.1735, 49.5404), 3: (11.0494, 24.4306, 11.2996, 44.1712),
}  # fmt: skip


@pytest.mark.parametrize("seed", sorted(PYCOCOTOOLS))
def test_the_figures_of_pycocotools(seed: int) -> None:
    outputs, labels = scene(seed, samples=20, most=7, found=15, classes=4)
    found = measured([METRIC], outputs, arrays=labels, batch=(1, 4, 7, 50)[seed])
    assert coco_figures(found) == pytest.approx(PYCOCOTOOLS[seed], abs=1e-3)
    details = found.details["map"]
    for number in range(4):  # of one class alone
        one = {**labels, "classes": np.where(labels["classes"] == number, number, -1)}
        assert value(METRIC, outputs, arrays=one) == pytest.approx(details[f"class {number}"], abs=1e-3)
    none = {**labels, "classes": np.full_like(labels["classes"], -1)}
    assert "no box" in measured([METRIC], outputs, arrays=none).undefined["map"]


def test_perfect_boxes_and_the_same_ones_in_any_form() -> None:
    _, labels = scene(1)
    outputs = {
        "boxes": labels["boxes"],
        "scores": np.where(labels["classes"] >= 0, 0.9, 0.0).astype(np.float32),
        "classes": labels["classes"].astype(np.int64),
    }
    assert value(METRIC, outputs, arrays=labels) == 100.0
    assert value({**METRIC, "min_score": 0.9}, outputs, arrays=labels) == 0.0
    # the same boxes in any form
    outputs, labels = scene(2)
    expected = value(METRIC, outputs, arrays=labels)

    def formed(boxes: np.ndarray, form: str) -> np.ndarray:
        a, b, c, d = np.moveaxis(boxes, -1, 0)
        forms = {"yxyx": (b, a, d, c), "xywh": (a, b, c - a, d - b), "cxcywh": ((a + c) / 2, (b + d) / 2, c - a, d - b)}
        return np.stack(forms[form], axis=-1)

    for form in ("yxyx", "xywh", "cxcywh"):
        turned = {**outputs, "boxes": formed(outputs["boxes"], form)}
        assert value({**METRIC, "box_format": form}, turned, arrays=labels) == pytest.approx(expected, abs=1e-3)
        truth = {**labels, "boxes": formed(labels["boxes"], form)}
        metric = {**METRIC, "labels": {"box_format": form}}
        assert value(metric, outputs, arrays=truth) == pytest.approx(expected, abs=1e-3)
    small = {**outputs, "boxes": outputs["boxes"] / np.array([100, 50, 100, 50], np.float32)}
    assert value({**METRIC, "box_scale": [100, 50]}, small, arrays=labels) == pytest.approx(expected, abs=1e-3)
    later = {**outputs, "classes": outputs["classes"] + 1}
    assert value({**METRIC, "class_offset": -1}, later, arrays=labels) == expected


def test_other_forms_of_detections() -> None:
    outputs, labels = scene(3)
    expected = value(METRIC, outputs, arrays=labels)
    counts = (labels["classes"] >= 0).sum(axis=1)
    truth = {"boxes": labels["boxes"], "kinds": np.maximum(labels["classes"], 0), "count": counts}
    metric = {**METRIC, "labels": {"classes": "kinds", "counts": "count"}}
    assert value(metric, outputs, arrays=truth) == expected
    longer = {name: np.concatenate([array, array], axis=1) for name, array in outputs.items()}
    longer["count"] = np.full(6, 8)
    assert value({**METRIC, "counts": "count"}, longer, arrays=labels) == expected
    # scores per class
    outputs, labels = scene(4)
    scores = np.zeros((6, 8, 3), np.float32)
    at = outputs["classes"].astype(int)[..., None]
    np.put_along_axis(scores, at, outputs["scores"][..., None], axis=2)
    metric = {"kind": "map", "boxes": 0, "scores": 1}
    split = {"boxes": outputs["boxes"], "scores": scores}
    assert value(metric, split, arrays=labels) == pytest.approx(value(METRIC, outputs, arrays=labels), abs=1e-3)
    # one sample may come without its axis
    outputs, labels = scene(6, samples=3)
    meter = AveragePrecision(MeanAveragePrecision.model_validate(METRIC))
    for k in range(3):
        truth = {f"labels/{name}": array[k : k + 1] for name, array in labels.items()}
        meter.update(MetricBatch({name: array[k] for name, array in outputs.items()}, truth, 1))
    assert meter.value() == pytest.approx(value(METRIC, outputs, arrays=labels), abs=1e-4)


def test_only_the_best_detections_count() -> None:
    outputs, labels = scene(5)
    kept = {name: np.zeros_like(array) for name, array in outputs.items()}
    for sample in range(6):
        for number in range(3):
            mine = np.flatnonzero(outputs["classes"][sample] == number)
            best = mine[np.argsort(-outputs["scores"][sample, mine], kind="stable")[:1]]
            for name in kept:
                kept[name][sample, best] = outputs[name][sample, best]
    assert value({**METRIC, "max_detections": 1}, outputs, arrays=labels) == value(METRIC, kept, arrays=labels)


@pytest.mark.parametrize(
    ("change", "labels", "place"),
    [
        ({"boxes": normal(6, 8, 5)}, {}, "boxes"),
        ({"boxes": normal(6, 8)}, {}, "boxes"),
        ({"scores": normal(6, 7)}, {}, "boxes"),
        ({"classes": normal(6, 7)}, {}, "classes"),
        ({}, {"boxes": normal(6, 5)}, "labels/boxes"),
        ({}, {"classes": np.zeros((6, 4), int)}, "labels/classes"),
        ({}, {"classes": np.zeros((6, 5), np.float32)}, "labels/classes"),
    ],
)
def test_what_does_not_fit(change: dict[str, Any], labels: dict[str, Any], place: str) -> None:
    outputs, truth = scene(1)
    with pytest.raises(InvalidConfigError) as caught:
        measured([METRIC], {**outputs, **change}, arrays={**truth, **labels})
    assert caught.value.errors[0].pointer == f"/config/evaluation/metrics/0/{place}"


# The same with every third true box a crowd.
WITH_CROWDS = {
    0: (9.5208, 21.5650, 6.1514, 42.3065), 1: (11.8386, 34.5707, 4.6554, 42.6959),
    2: (10.3776, 22.9453, 8.1560, 48.2759), 3: (6.9822, 16.7801, 6.2272, 38.4556),
}  # fmt: skip


@pytest.mark.parametrize("seed", sorted(WITH_CROWDS))
def test_what_lies_in_a_crowd_counts_neither_way(seed: int) -> None:
    outputs, labels = scene(seed, samples=20, most=7, found=15, classes=4)
    crowds = {"crowds": crowded(labels)}
    found = measured([{**METRIC, "labels": {"crowds": "crowds"}}], outputs, arrays={**labels, **crowds})
    assert coco_figures(found) == pytest.approx(WITH_CROWDS[seed], abs=1e-3)


def crowded(labels: dict) -> np.ndarray:
    """Every third true box is a crowd."""
    return (np.arange(labels["classes"].size) % 3 == 0).reshape(labels["classes"].shape).astype(np.uint8)


# Raw outputs.

STRIDES, SIDE = (8, 16), 32


def raw_scene(samples: int = 6) -> tuple[np.ndarray, dict]:
    """An output of yolov5's kind [n, 20, 5 + 3] with boxes in pixels, and labels near some of them."""
    random = rng(11)
    output = random.random((samples, 20, 8)).astype(np.float32)
    output[..., :2] *= SIDE
    output[..., 2:4] = 4 + 8 * output[..., 2:4]
    centers, sizes = output[:, :5, :2], output[:, :5, 2:4]
    boxes = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=2) + random.normal(0, 0.5, (samples, 5, 4))
    classes = output[:, :5, 5:].argmax(axis=2).astype(np.int32)
    return output, {"boxes": boxes.astype(np.float32), "classes": classes}


def yolox_of(output: np.ndarray) -> np.ndarray:
    """The same boxes relative to the cells of the grids, one by one."""
    cells = [(x, y, stride) for stride in STRIDES for y in range(SIDE // stride) for x in range(SIDE // stride)]
    found = output.copy()
    for k, (x, y, stride) in enumerate(cells):
        found[:, k, :2] = output[:, k, :2] / stride - [x, y]
        found[:, k, 2:4] = np.log(output[:, k, 2:4] / stride)
    return found


def test_raw_outputs_are_decoded() -> None:
    output, labels = raw_scene()
    scores = output[..., 4:5] * output[..., 5:]
    ready = {"boxes": output[..., :4], "scores": scores}
    separate = {"kind": "map", "boxes": "boxes", "scores": "scores", "box_format": "cxcywh", "nms_overlap": 0.65}
    expected = value(separate, ready, arrays=labels)
    assert 10.0 < expected < 80.0
    raw = {"kind": "map", "boxes": 0}
    assert value({**raw, "decode": "yolov5"}, {"raw": output}, arrays=labels) == pytest.approx(expected, abs=1e-3)
    turned = np.concatenate([output[..., :4], scores], axis=2).transpose(0, 2, 1)
    assert value({**raw, "decode": "yolov8"}, {"raw": turned}, arrays=labels) == pytest.approx(expected, abs=1e-3)
    yolox = {**raw, "decode": "yolox", "strides": STRIDES}
    assert value(yolox, {"raw": yolox_of(output)}, arrays=labels) == pytest.approx(expected, abs=1e-3)
    with pytest.raises(InvalidConfigError, match="give 20 boxes, and the output has 19"):
        value({**yolox, "image_size": [32, 32]}, {"raw": output[:, :19]}, arrays=labels)
    # two pictures beside each other: rows of cells are twice as long
    wide = np.stack([output[0, :16].reshape(4, 4, 8), output[1, :16].reshape(4, 4, 8)], axis=1).reshape(1, 32, 8)
    one = {**raw, "decode": "yolox", "strides": [8], "image_size": [32, 64], "nms_overlap": 1.0}
    got = detections({"boxes": wide}, 1, MeanAveragePrecision.model_validate(one))[0]
    assert got.boxes[:, [0, 2]].mean(axis=1).max() > SIDE


def test_suppression_keeps_what_no_better_box_of_its_class_overlaps() -> None:
    random = rng(5)
    corner = random.random((40, 2)) * 20
    boxes = np.concatenate([corner, corner + 5 + random.random((40, 2)) * 10], axis=1)
    found = Detections(boxes, random.integers(0, 2, 40), np.round(random.random(40), 1), np.zeros(40, bool))
    expected: list[int] = []
    for k in sorted(range(40), key=lambda place: -found.scores[place]):
        rivals = [one for one in expected if found.classes[one] == found.classes[k]]
        if all(overlap(boxes[k], boxes[one]) <= 0.3 for one in rivals):
            expected.append(k)
    assert 2 < len(expected) < 40
    assert kept_boxes(found, 0.3).tolist() == expected


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    width = max(min(one[2], other[2]) - max(one[0], other[0]), 0.0)
    height = max(min(one[3], other[3]) - max(one[1], other[1]), 0.0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return width * height / (areas - width * height)


# Boxes of two models.

BOXES = {"boxes": "boxes", "scores": "scores", "classes": "classes", "min_score": 0.5}


def test_boxes_of_two_models() -> None:
    before = {
        "boxes": np.array([[[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10], [60, 0, 70, 10]]], np.float32),
        "scores": np.array([[0.9, 0.8, 0.7, 0.4]], np.float32),
        "classes": np.array([[0, 1, 0, 0]]),
    }
    # the first moves a little, the second changes its class, the third is gone, the fourth has come
    after = {
        "boxes": before["boxes"] + 1,
        "scores": np.array([[0.8, 0.8, 0.5, 0.6]], np.float32),
        "classes": np.array([[0, 0, 0, 0]]),
    }
    agreement, shift = {"kind": "box_agreement", **BOXES}, {"kind": "confidence_shift", **BOXES}
    found = measured([agreement, shift], after, reference=before)
    assert found.values == pytest.approx({"box_agreement": 100 * 2 / 6, "confidence_shift": 0.1}, abs=1e-4)
    assert found.details["confidence_shift"] == pytest.approx({"signed": -0.1, "pairs": 1}, abs=1e-6)
    same = measured([agreement, shift], before, reference=before)
    assert same.values == {"box_agreement": 100.0, "confidence_shift": 0.0}
    strict = measured([{**agreement, "overlap": 0.9}, {**shift, "overlap": 0.9}], after, reference=before)
    assert strict.values == {"box_agreement": 0.0}
    assert "has a twin" in strict.undefined["confidence_shift"]
    none = measured([{**agreement, "min_score": 1.0}], after, reference=before)
    assert "above 1" in none.undefined["box_agreement"]
