"""Boxes of detectors: decoded from outputs, suppressed, and how far they overlap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from service.contracts.metrics import BoxLabels, DetectionMetric
from worker.quantizer.evaluation.metrics.base import Array, Arrays, UnfitError

# Boxes of a sample that non-maximum suppression looks at, the highest scores first.
_CANDIDATES = 1000
# exp of more than this is no size of a box in any picture.
_LARGEST_LOGARITHM = 16.0


@dataclass(frozen=True)
class Detections:
    """What a model finds in one sample, or what is labelled there."""

    boxes: Array  # corners x1, y1, x2, y2, float64 [k, 4]
    classes: Array  # int64 [k]
    scores: Array  # float64 [k]; of labels 1
    crowds: Array  # of labels: what is to be ignored, bool [k]

    def of(self, chosen: Array) -> Detections:
        """Those that are chosen, by a mask or by their places."""
        return Detections(self.boxes[chosen], self.classes[chosen], self.scores[chosen], self.crowds[chosen])


def detections(outputs: Arrays, samples: int, metric: DetectionMetric) -> list[Detections]:
    """The boxes of every sample that count, by the places of a metric.

    Raises:
        UnfitError: outputs that do not fit the metric, or one another.
    """
    if metric.decode == "none":
        boxes, scores, numbers = _separate(outputs, samples, metric)
        form = metric.box_format
    else:
        boxes, scores = _decoded(outputs["boxes"], samples, metric)
        numbers, form = np.broadcast_to(np.arange(scores.shape[2]), scores.shape), "cxcywh"
    counts = _counts(outputs.get("counts"), boxes.shape[1], len(boxes), "counts")
    scale = np.array([*metric.box_scale, *metric.box_scale])
    found = []
    for k, count in enumerate(counts):
        of_scores = scores[k, :count]
        at = np.nonzero((of_scores > metric.min_score) & (numbers[k, :count] >= 0))
        if metric.suppression is not None:
            best = np.argsort(-of_scores[at], kind="stable")[:_CANDIDATES]
            at = tuple(axis[best] for axis in at)
        some = Detections(
            corners(boxes[k, at[0]], form) * scale,
            numbers[k, :count][at].astype(np.int64) + metric.class_offset,
            of_scores[at].astype(np.float64),
            np.zeros(len(at[0]), bool),
        )
        found.append(some if metric.suppression is None else some.of(kept_boxes(some, metric.suppression)))
    return found


def truths(labels: Arrays, form: BoxLabels) -> list[Detections]:
    """The labelled boxes of every sample.

    Raises:
        UnfitError: arrays that do not fit one another.
    """
    boxes, classes = labels["labels/boxes"], labels["labels/classes"]
    if boxes.ndim != 3 or boxes.shape[2] != 4:
        raise UnfitError("labels/boxes", f"true boxes are {list(boxes.shape)}, not [n, most, 4]")
    crowds = labels.get("labels/crowds", np.zeros(boxes.shape[:2], bool))
    for place, array in (("classes", classes), ("crowds", crowds)):
        if array.shape != boxes.shape[:2]:
            raise UnfitError(f"labels/{place}", f"{place} are {list(array.shape)}, not {list(boxes.shape[:2])}")
    counts = _counts(labels.get("labels/counts"), boxes.shape[1], len(boxes), "labels/counts")
    found = []
    for k, count in enumerate(counts):
        kept = np.flatnonzero(classes[k, :count] >= 0)
        placed = corners(boxes[k, kept], form.box_format)
        found.append(Detections(placed, classes[k, kept].astype(np.int64), np.ones(len(kept)), crowds[k, kept] != 0))
    return found


def kept_boxes(found: Detections, limit: float) -> Array:
    """Places of the boxes that non-maximum suppression keeps, those of the highest scores first.

    A box goes if it overlaps a kept one of its class, of a higher score, by more than the limit.
    """
    order = np.argsort(-found.scores, kind="stable")
    boxes, classes = found.boxes[order], found.classes[order]
    alive = np.ones(len(order), bool)
    for k in range(len(order)):
        if alive[k]:
            rest = k + 1 + np.flatnonzero(alive[k + 1 :] & (classes[k + 1 :] == classes[k]))
            alive[rest] = overlaps_of(boxes[k : k + 1], boxes[rest])[0] <= limit
    return order[alive]


def overlaps_of(boxes: Array, others: Array, crowds: Array | None = None) -> Array:
    """Intersection over union of corner boxes [k, 4] and [m, 4]: [k, m]; 0 for boxes without an area.

    Over the first box's area alone where the other one is a crowd (bool [m]).
    """
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = np.prod(np.maximum(high - low, 0.0), axis=2)
    areas = [np.prod(np.maximum(some[:, 2:] - some[:, :2], 0.0), axis=1) for some in (boxes, others)]
    union = areas[0][:, None] + areas[1][None, :] - common
    if crowds is not None:
        union = np.where(crowds[None, :], areas[0][:, None], union)
    found: Array = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return found


def corners(boxes: Array, form: str) -> Array:
    """Boxes [k, 4] as x1, y1, x2, y2 in float64."""
    a, b, c, d = boxes.astype(np.float64).T
    if form == "yxyx":
        a, b, c, d = b, a, d, c
    elif form == "xywh":
        c, d = a + c, b + d
    elif form == "cxcywh":
        a, b, c, d = a - c / 2, b - d / 2, a + c / 2, b + d / 2
    return np.stack([a, b, c, d], axis=1)


def _separate(outputs: Arrays, samples: int, metric: DetectionMetric) -> tuple[Array, Array, Array]:
    """Boxes [n, k, 4], scores and classes [n, k] or [n, k, class] of outputs of their own."""
    boxes = _batched(outputs["boxes"], 3, samples, "boxes")
    many = 2 if metric.classes is not None else 3
    scores = _batched(outputs["scores"], many, samples, "scores")
    if boxes.shape[2] != 4 or scores.shape[:2] != boxes.shape[:2]:
        raise UnfitError("boxes", f"boxes are {list(boxes.shape)}, scores {list(scores.shape)}")
    if metric.classes is None:
        return boxes, scores, np.broadcast_to(np.arange(scores.shape[2]), scores.shape)
    numbers = _batched(outputs["classes"], 2, samples, "classes")
    if numbers.shape != scores.shape:
        raise UnfitError("classes", f"classes are {list(numbers.shape)}, scores {list(scores.shape)}")
    return boxes, scores, numbers


def _decoded(output: Array, samples: int, metric: DetectionMetric) -> tuple[Array, Array]:
    """Boxes [n, k, 4] as center and size, and scores [n, k, class], of a raw output."""
    raw = _batched(output, 3, samples, "boxes").astype(np.float64)
    if metric.decode == "yolov8":
        raw = raw.transpose(0, 2, 1)
    before = 4 if metric.decode == "yolov8" else 5  # columns in front of the class scores
    if raw.shape[2] <= before:
        raise UnfitError("boxes", f"{metric.decode} needs more than {before} values per box, not {raw.shape[2]}")
    scores = raw[..., before:] if before == 4 else raw[..., 4:5] * raw[..., 5:]
    if metric.decode != "yolox":
        return raw[..., :4], scores
    cells, strides = _cells(raw.shape[1], metric)
    sizes = np.exp(np.minimum(raw[..., 2:4], _LARGEST_LOGARITHM))
    return np.concatenate([raw[..., :2] + cells, sizes], axis=2) * strides, scores


def _cells(count: int, metric: DetectionMetric) -> tuple[Array, Array]:
    """Column and row of each cell [k, 2] and its stride [k, 1], grid by grid, row by row."""
    size = metric.image_size
    if size is None:  # a square: cells = sum over the strides of (side / stride)^2
        side = round(math.sqrt(count / sum(1.0 / stride**2 for stride in metric.strides)))
        size = (side, side)
    grids = [(size[0] // stride, size[1] // stride, stride) for stride in metric.strides]
    if sum(height * width for height, width, _ in grids) != count:
        told = f"strides {list(metric.strides)} of an image of {list(size)} give"
        whole = sum(height * width for height, width, _ in grids)
        raise UnfitError("image_size", f"{told} {whole} boxes, and the output has {count}")
    cells = [np.stack(np.meshgrid(np.arange(w), np.arange(h)), axis=-1).reshape(-1, 2) for h, w, _ in grids]
    strides = [np.full((height * width, 1), stride) for height, width, stride in grids]
    return np.concatenate(cells), np.concatenate(strides)


def _batched(output: Array, rank: int, samples: int, place: str) -> Array:
    """The output with an axis of samples, which models of one sample may leave out."""
    if output.ndim == rank - 1 and samples == 1:
        output = output[np.newaxis]
    if output.ndim != rank or len(output) != samples or output.dtype.kind not in "fiu":
        axes = ", ".join(["n", "k", "class" if place == "scores" else "4"][:rank])
        raise UnfitError(place, f"it is {output.dtype}{list(output.shape)}, not numbers [{axes}] of {samples} samples")
    return output


def _counts(given: Array | None, most: int, samples: int, place: str) -> list[int]:
    if given is None:
        return [most] * samples
    if given.size != samples or given.dtype.kind not in "fiu":
        raise UnfitError(place, f"counts are {given.dtype}{list(given.shape)}, not numbers [{samples}]")
    counts = [int(count) for count in given.reshape(-1)]
    wrong = [count for count in counts if not 0 <= count <= most]
    if wrong:
        raise UnfitError(place, f"a count is {wrong[0]}; there is room for {most}")
    return counts
