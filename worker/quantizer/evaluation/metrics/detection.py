"""COCO's mean average precision (Lin et al. 2014), by the rules of pycocotools without areas; and what becomes of the
float model's boxes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from service.contracts.metrics import BoxAgreement, ConfidenceShift, MeanAveragePrecision
from service.contracts.metrics.detection import MatchedBoxes
from worker.quantizer.evaluation.contributions import DenseSums, Hits, Remade, quotients
from worker.quantizer.evaluation.metrics.base import Array, Meter, MetricBatch
from worker.quantizer.evaluation.metrics.boxes import Detections, detections, overlaps_of, truths

_RECALLS = np.linspace(0.0, 1.0, 101)
# An overlap of 1 is one up to rounding.
_WHOLE = 1.0 - 1e-10


@dataclass
class _Class:
    """What is kept of one class, by samples that hold it."""

    scores: list[Array] = field(default_factory=list)  # one per detection
    right: list[Array] = field(default_factory=list)  # whether each is right at each overlap [overlap, detection]
    ignored: list[Array] = field(default_factory=list)  # whether it counts neither way there [overlap, detection]
    boxes: list[int] = field(default_factory=list)  # how many true ones there are
    samples: list[int] = field(default_factory=list)  # their numbers

    def without(self, left_out: Array) -> _Class:
        """The same without some of all samples [sample]."""
        kept = [place for place, number in enumerate(self.samples) if not left_out[number]]
        return _Class(
            [self.scores[place] for place in kept],
            [self.right[place] for place in kept],
            [self.ignored[place] for place in kept],
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
        found = detections(seen.outputs, seen.samples, self._metric)
        for one, wanted in zip(found, truths(seen.labels, self._metric.labels), strict=True):
            for number in np.union1d(one.classes, wanted.classes).tolist():
                kept = self._classes.setdefault(number, _Class())
                self._add(kept, one.of(one.classes == number), wanted.of(wanted.classes == number))
            self._samples += 1

    def _add(self, kept: _Class, found: Detections, wanted: Detections) -> None:
        best = found.of(np.argsort(-found.scores, kind="stable")[: self._metric.max_detections])
        overlaps = overlaps_of(best.boxes, wanted.boxes, wanted.crowds)
        right = match(overlaps[:, ~wanted.crowds], self._overlaps)
        # what lies in a crowd is no error; any number may
        within = overlaps[:, wanted.crowds].max(axis=1, initial=-1.0)
        kept.boxes.append(int((~wanted.crowds).sum()))
        kept.samples.append(self._samples)
        kept.scores.append(best.scores)
        kept.right.append(right)
        kept.ignored.append(~right & (within >= np.minimum(self._overlaps, _WHOLE)[:, None]))

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
        number: average_precision(
            np.concatenate(kept.scores),
            np.concatenate(kept.right, axis=1),
            np.concatenate(kept.ignored, axis=1),
            sum(kept.boxes),
        )
        for number, kept in classes.items()
        if sum(kept.boxes)
    }


def _mean(found: dict[int, tuple[Array, Array]]) -> float:
    """Mean of the average precisions in percent."""
    return 100.0 * float(np.mean([precisions for precisions, _ in found.values()]))


def average_precision(scores: Array, right: Array, ignored: Array, boxes: int) -> tuple[Array, Array]:
    """Average precision and largest recall of one class.

    Args:
        scores: of its detections [k].
        right: whether each is right at each overlap [overlap, k].
        ignored: whether it counts neither way there [overlap, k].
        boxes: true boxes there are.

    Returns:
        Two arrays [overlap] in [0, 1].
    """
    if not len(scores):
        return np.zeros(len(right)), np.zeros(len(right))
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(right[:, order], axis=1)
    recall = hits / boxes
    counted = np.cumsum(~ignored[:, order], axis=1)
    # before the first one that counts there is no precision, and no recall either
    precision = hits / np.maximum(counted, 1)
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
            if candidates[best] >= min(limit, _WHOLE):
                free[best], row[k] = False, True
    return right


class MatchMeter(Meter):
    """Pairs the boxes of the float model with those of the measured one: each takes the free one of its class that it
    overlaps most, the highest scores first.
    """

    def __init__(self, metric: MatchedBoxes) -> None:
        self._metric = metric

    def pairs(self, seen: MetricBatch) -> list[tuple[Detections, Detections, Array]]:
        """By sample: boxes of the float model, those of the measured one, and places of the pairs [pair, 2]."""
        found = []
        sides = (detections(given, seen.samples, self._metric) for given in (seen.reference, seen.outputs))
        for before, after in zip(*sides, strict=True):
            one, other = (self._best(some) for some in (before, after))
            overlaps = overlaps_of(one.boxes, other.boxes)
            overlaps[one.classes[:, None] != other.classes[None, :]] = -1.0
            found.append((one, other, taken(overlaps, self._metric.overlap)))
        return found

    def _best(self, found: Detections) -> Detections:
        """As many of each class as count, the highest scores first."""
        found = found.of(np.argsort(-found.scores, kind="stable"))
        kept = np.zeros(len(found.scores), bool)
        for number in np.unique(found.classes):
            kept[np.flatnonzero(found.classes == number)[: self._metric.max_detections]] = True
        return found.of(kept)


class BoxAgreementRate(MatchMeter):
    """Boxes with a twin, of all boxes of both models, in percent."""

    def __init__(self, metric: BoxAgreement) -> None:
        super().__init__(metric)
        self._sums: Hits = Hits()

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        counts = [[2 * len(places), len(one.scores) + len(other.scores)] for one, other, places in self.pairs(seen)]
        self._sums.add(np.array(counts), samples=seen.samples)

    def value(self) -> float | None:
        """In percent; None if neither model returns a box."""
        if not self._sums.units or not self._sums.total[1]:
            self.undefined = f"neither model returns a box with a score above {self._metric.min_score:g}"
            return None
        return self._sums.value


class ScoreShift(MatchMeter):
    """Mean absolute change of the score over pairs of boxes."""

    def __init__(self, metric: ConfidenceShift) -> None:
        super().__init__(metric)
        # absolute and signed change, and how many
        self._sums: DenseSums = DenseSums(lambda sums: quotients(sums[:, 0], sums[:, 2]))

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        rows = []
        for one, other, places in self.pairs(seen):
            change = other.scores[places[:, 1]] - one.scores[places[:, 0]]
            rows.append([np.abs(change).sum(), change.sum(), len(change)])
        self._sums.add(np.array(rows, np.float64), samples=seen.samples)

    def value(self) -> float | None:
        """None if no box of the float model has a twin."""
        if not self._sums.units or not self._sums.total[2]:
            self.undefined = "no box of the float model has a twin"
            return None
        return self._sums.value

    def details(self) -> dict[str, float]:
        """The mean with its sign, and how many pairs there are."""
        if not self._sums.units or not self._sums.total[2]:
            return {}
        _, signed, pairs = self._sums.total
        return {"signed": float(signed / pairs), "pairs": float(pairs)}


def taken(overlaps: Array, limit: float) -> Array:
    """Pairs [pair, 2]: each row, in turn, takes the free column that it overlaps most, by the limit or more."""
    free = np.ones(overlaps.shape[1], bool)
    found = []
    for row, line in enumerate(overlaps):
        candidates = np.where(free, line, -1.0)
        best = int(candidates.argmax()) if len(line) else -1
        if best >= 0 and candidates[best] >= min(limit, _WHOLE):
            free[best] = False
            found.append((row, best))
    return np.array(found, np.int64).reshape(-1, 2)
