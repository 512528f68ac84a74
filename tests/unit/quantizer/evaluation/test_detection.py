"""COCO's mean average precision against figures of pycocotools."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.contracts.errors import InvalidConfigError
from service.contracts.metrics import MeanAveragePrecision
from tests.unit.quantizer.evaluation.measuring import measured, value
from tests.unit.quantizer.toolbox import normal, rng
from worker.quantizer.evaluation.metrics.base import MetricBatch
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


# AP, AP50, AP75 and AR100 in percent by pycocotools 2.0.11 on these scenes.
PYCOCOTOOLS = {
    0: (12.4537, 26.8881, 9.5072, 45.0468), 1: (12.6739, 32.2890, 6.9154, 42.9340),
    2: (13.1421, 28.3809, 10.1735, 49.5404), 3: (11.0494, 24.4306, 11.2996, 44.1712),
}  # fmt: skip


@pytest.mark.parametrize("seed", sorted(PYCOCOTOOLS))
def test_the_figures_of_pycocotools(seed: int) -> None:
    outputs, labels = scene(seed, samples=20, most=7, found=15, classes=4)
    found = measured([METRIC], outputs, arrays=labels, batch=(1, 4, 7, 50)[seed])
    details = found.details["map"]
    got = (found.values["map"], details["ap50"], details["ap75"], details["average_recall"])
    assert got == pytest.approx(PYCOCOTOOLS[seed], abs=1e-3)
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
