"""COCO's mean average precision: against its definition taken step by step, and against figures of pycocotools."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.errors import InvalidConfigError
from service.contracts.metrics import MeanAveragePrecision
from tests.unit.quantizer.evaluation.measuring import measured, value
from tests.unit.quantizer.toolbox import normal, rng
from worker.quantizer.evaluation.metrics.base import Seen
from worker.quantizer.evaluation.metrics.detection import AveragePrecision

METRIC = {"kind": "map", "boxes": "boxes", "scores": "scores", "classes": "classes"}
OVERLAPS = [0.5 + 0.05 * k for k in range(10)]


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


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0.0) * max(height, 0.0)
    areas = [max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0) for box in (a, b)]
    return common / (sum(areas) - common)


def brute(outputs: dict[str, np.ndarray], labels: dict[str, np.ndarray], limit: float, number: int) -> float | None:
    """Average precision of one class at one overlap, as its definition reads."""
    wanted = {
        sample: [box.astype(float) for box, k in zip(labels["boxes"][sample], row, strict=True) if k == number]
        for sample, row in enumerate(labels["classes"])
    }
    total = sum(map(len, wanted.values()))
    if not total:
        return None
    detections = [
        (float(outputs["scores"][sample, k]), sample, k)
        for sample in wanted
        for k in range(outputs["scores"].shape[1])
        if outputs["classes"][sample, k] == number and outputs["scores"][sample, k] > 0
    ]
    detections.sort(key=lambda found: -found[0])
    taken: set[tuple[int, int]] = set()
    right = []
    for _, sample, k in detections:
        candidates = [
            (overlap(outputs["boxes"][sample, k].astype(float), box), at)
            for at, box in enumerate(wanted[sample])
            if (sample, at) not in taken
        ]
        best = max(candidates, default=(0.0, -1))
        right.append(best[0] >= limit)
        if best[0] >= limit:
            taken.add((sample, best[1]))
    hits = np.cumsum(right).tolist()
    points = [(hit / total, hit / k) for k, hit in enumerate(hits, start=1)]
    levels = [max([p for r, p in points if r >= level], default=0.0) for level in np.linspace(0, 1, 101)]
    return sum(levels) / len(levels)


@given(seed=st.integers(0, 500), batch=st.sampled_from([1, 4, 50]))
def test_the_definition(seed: int, batch: int) -> None:
    outputs, labels = scene(seed)
    found = measured([METRIC], outputs, arrays=labels, batch=batch)
    each = {
        number: [brute(outputs, labels, limit, number) for limit in OVERLAPS]
        for number in range(3)
        if (labels["classes"] == number).any()
    }
    if not each:
        assert "no box" in found.undefined["map"]
        return
    expected = 100 * np.mean(list(each.values()))
    assert found.values["map"] == pytest.approx(expected, abs=1e-3)
    details = found.details["map"]
    assert details["ap50"] == pytest.approx(100 * np.mean([row[0] for row in each.values()]), abs=1e-3)
    assert details["ap75"] == pytest.approx(100 * np.mean([row[5] for row in each.values()]), abs=1e-3)
    for number, row in each.items():
        assert details[f"class {number}"] == pytest.approx(100 * np.mean(row), abs=1e-3)


# AP, AP50, AP75 and AR100 in percent by pycocotools 2.0.11 on these scenes.
PYCOCOTOOLS = {0: (12.4537, 26.8881, 9.5072, 45.0468), 3: (11.0494, 24.4306, 11.2996, 44.1712)}


@pytest.mark.parametrize("seed", sorted(PYCOCOTOOLS))
def test_the_figures_of_pycocotools(seed: int) -> None:
    outputs, labels = scene(seed, samples=20, most=7, found=15, classes=4)
    found = measured([METRIC], outputs, arrays=labels)
    details = found.details["map"]
    got = (found.values["map"], details["ap50"], details["ap75"], details["average_recall"])
    assert got == pytest.approx(PYCOCOTOOLS[seed], abs=1e-3)


def test_perfect_boxes() -> None:
    _, labels = scene(1)
    outputs = {
        "boxes": labels["boxes"],
        "scores": np.where(labels["classes"] >= 0, 0.9, 0.0).astype(np.float32),
        "classes": labels["classes"].astype(np.int64),
    }
    assert value(METRIC, outputs, arrays=labels) == 100.0
    assert value({**METRIC, "min_score": 0.9}, outputs, arrays=labels) == 0.0


def test_the_same_boxes_in_any_form() -> None:
    outputs, labels = scene(2)
    expected = value(METRIC, outputs, arrays=labels)

    def formed(boxes: np.ndarray, form: str) -> np.ndarray:
        a, b, c, d = np.moveaxis(boxes, -1, 0)
        forms = {
            "yxyx": (b, a, d, c),
            "xywh": (a, b, c - a, d - b),
            "cxcywh": ((a + c) / 2, (b + d) / 2, c - a, d - b),
        }
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


def test_counts_instead_of_padding() -> None:
    outputs, labels = scene(3)
    expected = value(METRIC, outputs, arrays=labels)
    counts = (labels["classes"] >= 0).sum(axis=1)
    truth = {"boxes": labels["boxes"], "kinds": np.maximum(labels["classes"], 0), "count": counts}
    metric = {**METRIC, "labels": {"classes": "kinds", "counts": "count"}}
    assert value(metric, outputs, arrays=truth) == expected
    longer = {name: np.concatenate([array, array], axis=1) for name, array in outputs.items()}
    longer["count"] = np.full(6, 8)
    assert value({**METRIC, "counts": "count"}, longer, arrays=labels) == expected


def test_scores_per_class() -> None:
    outputs, labels = scene(4)
    scores = np.zeros((6, 8, 3), np.float32)
    at = outputs["classes"].astype(int)[..., None]
    np.put_along_axis(scores, at, outputs["scores"][..., None], axis=2)
    metric = {"kind": "map", "boxes": 0, "scores": 1}
    split = {"boxes": outputs["boxes"], "scores": scores}
    assert value(metric, split, arrays=labels) == pytest.approx(value(METRIC, outputs, arrays=labels), abs=1e-3)


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


def test_one_sample_may_come_without_its_axis() -> None:
    outputs, labels = scene(6, samples=3)
    meter = AveragePrecision(MeanAveragePrecision.model_validate(METRIC))
    for k in range(3):
        truth = {f"labels/{name}": array[k : k + 1] for name, array in labels.items()}
        meter.update(Seen({name: array[k] for name, array in outputs.items()}, truth, 1))
    assert meter.value() == pytest.approx(value(METRIC, outputs, arrays=labels), abs=1e-4)


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
