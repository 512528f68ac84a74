"""COCO's mean average precision (Lin et al. 2014), by the rules of pycocotools without crowds and areas."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from service.contracts.metrics import MeanAveragePrecision
from worker.quantizer.evaluation.contributions import Remade
from worker.quantizer.evaluation.metrics.base import Array, Meter, MetricBatch, UnfitError

_RECALLS = np.linspace(0.0, 1.0, 101)


@dataclass
class _Class:
    """What is kept of one class, by samples that hold it."""

    scores: list[Array] = field(default_factory=list)  # one per detection
    right: list[Array] = field(default_factory=list)  # whether each is right at each overlap [overlap, detection]
    boxes: list[int] = field(default_factory=list)  # how many true ones there are
    samples: list[int] = field(default_factory=list)  # their numbers

    def without(self, left_out: Array) -> _Class:
        """The same without some of all samples [sample]."""
        kept = [place for place, number in enumerate(self.samples) if not left_out[number]]
        return _Class(
            [self.scores[place] for place in kept],
            [self.right[place] for place in kept],
            [self.boxes[place] for place in kept],
            [self.samples[place] for place in kept],
        )


class AveragePrecision(Meter):
    """Mean over overlaps and classes of the area under the precision-recall curve, in percent."""

    def __init__(self, metric: MeanAveragePrecision) -> None:
        self._metric = metric
        self._overlaps = np.array(metric.overlaps)
        self._classes: dict[int, _Class] = {}
        self._samples = 0

    @property
    def contributions(self) -> Remade:
        """Made anew from the detections that are kept."""

        def without(left_out: Array) -> float:
            found = _precisions({number: kept.without(left_out) for number, kept in self._classes.items()})
            return _mean(found) if found else np.nan

        return Remade(self._samples, without)

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        samples = zip(_detections(seen, self._metric), _truths(seen, self._metric), strict=True)
        for (boxes, scores, classes), (true_boxes, true_classes) in samples:
            for number in np.union1d(classes, true_classes).tolist():
                mine, wanted = classes == number, true_boxes[true_classes == number]
                self._add(self._classes.setdefault(number, _Class()), boxes[mine], scores[mine], wanted)
            self._samples += 1

    def _add(self, kept: _Class, boxes: Array, scores: Array, wanted: Array) -> None:
        order = np.argsort(-scores, kind="stable")[: self._metric.max_detections]
        kept.boxes.append(len(wanted))
        kept.samples.append(self._samples)
        kept.scores.append(scores[order])
        kept.right.append(match(overlaps_of(boxes[order], wanted), self._overlaps))

    def value(self) -> float | None:
        """In percent; None if the labels hold no box."""
        found = _precisions(self._classes)
        if not found:
            self.undefined = "the labels contain no box"
            return None
        return _mean(found)

    def details(self) -> dict[str, float]:
        """AP at 0.5 and 0.75 where asked for, average recall, and AP per class; in percent."""
        found = _precisions(self._classes)
        if not found:
            return {}
        told = {}
        for overlap in (0.5, 0.75):
            at = np.flatnonzero(np.isclose(self._overlaps, overlap))
            if at.size:
                told[f"ap{round(100 * overlap)}"] = float(np.mean([p[at[0]] for p, _ in found.values()]))
        told["average_recall"] = float(np.mean([recalls for _, recalls in found.values()]))
        told |= {f"class {number}": float(precisions.mean()) for number, (precisions, _) in sorted(found.items())}
        return {word: 100.0 * value for word, value in told.items()}


def _precisions(classes: dict[int, _Class]) -> dict[int, tuple[Array, Array]]:
    """Average precision and recall at each overlap, by class that occurs in the labels."""
    return {
        number: average_precision(np.concatenate(kept.scores), np.concatenate(kept.right, axis=1), sum(kept.boxes))
        for number, kept in classes.items()
        if sum(kept.boxes)
    }


def _mean(found: dict[int, tuple[Array, Array]]) -> float:
    """Mean of the average precisions in percent."""
    return 100.0 * float(np.mean([precisions for precisions, _ in found.values()]))


def average_precision(scores: Array, right: Array, boxes: int) -> tuple[Array, Array]:
    """Average precision and largest recall of one class.

    Args:
        scores: of its detections [k].
        right: whether each is right at each overlap [overlap, k].
        boxes: true boxes there are.

    Returns:
        Two arrays [overlap] in [0, 1].
    """
    if not len(scores):
        return np.zeros(len(right)), np.zeros(len(right))
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(right[:, order], axis=1)
    recall = hits / boxes
    precision = hits / np.arange(1, len(order) + 1)
    # the best precision at this recall or a larger one
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    found = np.zeros(len(right))
    for k, (reached, best) in enumerate(zip(recall, envelope, strict=True)):
        at = np.searchsorted(reached, _RECALLS, side="left")
        found[k] = np.where(at < len(best), best[np.minimum(at, len(best) - 1)], 0.0).mean()
    return found, recall[:, -1]


def match(overlaps: Array, limits: Array) -> Array:
    """Which detections of one sample and class are right.

    Each detection, the best first, takes the free box that it overlaps most, if by the limit or more.

    Args:
        overlaps: IoU of detections, sorted by score, with true boxes [k, m].
        limits: overlaps from which on a box is found [l].

    Returns:
        bool [l, k].
    """
    count, boxes = overlaps.shape
    right = np.zeros((len(limits), count), bool)
    if not boxes:
        return right
    for row, limit in zip(right, limits, strict=True):
        free = np.ones(boxes, bool)
        for k in range(count):
            candidates = np.where(free, overlaps[k], -1.0)
            # of equal ones the last, as pycocotools does
            best = boxes - 1 - int(candidates[::-1].argmax())
            if candidates[best] >= min(limit, 1.0 - 1e-10):
                free[best], row[k] = False, True
    return right


def overlaps_of(boxes: Array, others: Array) -> Array:
    """Intersection over union of corner boxes [k, 4] and [m, 4]: [k, m]; 0 for boxes without an area."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = np.prod(np.maximum(high - low, 0.0), axis=2)
    areas = [np.prod(np.maximum(some[:, 2:] - some[:, :2], 0.0), axis=1) for some in (boxes, others)]
    union = areas[0][:, None] + areas[1][None, :] - common
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


def _detections(seen: MetricBatch, metric: MeanAveragePrecision) -> list[tuple[Array, Array, Array]]:
    """Boxes [k, 4], scores [k] and classes [k] of every sample."""
    boxes = _batched(seen.outputs["boxes"], 3, seen.samples, "boxes")
    many = 2 if metric.classes is not None else 3
    scores = _batched(seen.outputs["scores"], many, seen.samples, "scores")
    if boxes.shape[2] != 4 or scores.shape[:2] != boxes.shape[:2]:
        raise UnfitError("boxes", f"boxes are {list(boxes.shape)}, scores {list(scores.shape)}")
    if metric.classes is None:
        numbers = np.broadcast_to(np.arange(scores.shape[2]), scores.shape)
    else:
        numbers = _batched(seen.outputs["classes"], 2, seen.samples, "classes")
        if numbers.shape != scores.shape:
            raise UnfitError("classes", f"classes are {list(numbers.shape)}, scores {list(scores.shape)}")
    counts = _counts(seen.outputs.get("counts"), boxes.shape[1], len(boxes), "counts")
    scale = np.array([*metric.box_scale, *metric.box_scale])
    found = []
    for k, count in enumerate(counts):
        of_scores = scores[k, :count]
        at = np.nonzero((of_scores > metric.min_score) & (numbers[k, :count] >= 0))
        classes = numbers[k, :count][at].astype(np.int64) + metric.class_offset
        found.append((corners(boxes[k, at[0]], metric.box_format) * scale, of_scores[at].astype(np.float64), classes))
    return found


def _truths(seen: MetricBatch, metric: MeanAveragePrecision) -> list[tuple[Array, Array]]:
    """True boxes [m, 4] and their classes [m] of every sample."""
    boxes, classes = seen.labels["labels/boxes"], seen.labels["labels/classes"]
    if boxes.ndim != 3 or boxes.shape[2] != 4:
        raise UnfitError("labels/boxes", f"true boxes are {list(boxes.shape)}, not [n, most, 4]")
    if classes.shape != boxes.shape[:2]:
        raise UnfitError("labels/classes", f"classes are {list(classes.shape)}, not {list(boxes.shape[:2])}")
    counts = _counts(seen.labels.get("labels/counts"), boxes.shape[1], len(boxes), "labels/counts")
    found = []
    for k, count in enumerate(counts):
        kept = classes[k, :count] >= 0
        found.append((corners(boxes[k, :count][kept], metric.labels.box_format), classes[k, :count][kept]))
    return found


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
