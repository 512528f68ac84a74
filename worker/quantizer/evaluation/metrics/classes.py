"""Metrics of decisions for classes, from counts; top1 and top5 where no metric is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from service.contracts.dataset import UNLABELLED
from service.contracts.metrics import F1, ClassMetric, MeanIoU, PerClassAccuracy, Precision, TopKMetric
from service.contracts.metrics.kinds import CountedMetric
from worker.quantizer.data import SampleBatch
from worker.quantizer.evaluation.contributions import CountSums, Hits, quotients
from worker.quantizer.evaluation.metrics.base import (
    Array,
    Arrays,
    Meter,
    MetricBatch,
    UnfitError,
    finite,
    fitted,
    parts,
)
from worker.quantizer.evaluation.metrics.distances import class_scores

# Class numbers beyond this are none.
_MOST_CLASSES = 1_000_000
# What is counted per class and sample.
_LABELLED, _DECIDED, _HIT = range(3)


def scores_last(output: Array, class_axis: int | None) -> Array | None:
    """Float scores [..., class]; None if the output holds none.

    Without ``class_axis``, classes are on the last axis, of maps [n, class, height, width] on the second.
    """
    if class_axis is None:
        scores = class_scores(output)
        return np.moveaxis(scores, 1, -1) if scores is not None and scores.ndim > 3 else scores
    if output.dtype.kind != "f" or output.ndim <= class_axis:
        return None
    return np.moveaxis(output, class_axis, -1)


def ranks(scores: Array, labels: Array) -> Array:
    """How many classes come before the label: those that score higher, and of equal ones those of smaller number.

    Args:
        scores: [rows, class].
        labels: class numbers [rows]; a label with score NaN comes last.
    """
    found = np.empty(len(labels), np.int64)
    numbers = np.arange(scores.shape[1])
    for part in parts(*scores.shape):
        wanted = labels[part, None]
        own = np.take_along_axis(scores[part], wanted, axis=1)
        before = (scores[part] > own) | ((scores[part] == own) & (numbers < wanted)) | np.isnan(own)
        found[part] = before.sum(axis=1)
    return found


class CountsByClass:
    """Per class: how often it was labelled, decided for, and both, by sample.

    Args:
        share: the metric in percent of counts labelled, decided and hit, each [set, class]; NaN where undefined.
    """

    def __init__(self, share: Callable[[Array, Array, Array], Array]) -> None:
        self.sums = CountSums(lambda sums: share(*_by_kind(sums)))

    def add(self, decided: Array, labels: Array, owners: Array, *, units: int, samples: int) -> None:
        """Count decisions [rows] for labels [rows]; a negative decision is for no class.

        Args:
            decided: class numbers.
            labels: class numbers.
            owners: the unit of each row: its sample within the batch, or 0 where samples cannot be told apart.
            units: of the batch.
            samples: of the batch.
        """
        size = 1 + int(max(labels.max(initial=-1), decided.max(initial=-1)))
        kinds = ((labels, slice(None), _LABELLED), (decided, decided >= 0, _DECIDED), (labels, decided == labels, _HIT))
        keys = np.concatenate([numbers[chosen] * 3 + kind for numbers, chosen, kind in kinds])
        places = np.concatenate([owners[chosen] for _, chosen, _ in kinds])
        self.sums.add(*_counted(places, keys, 3 * size), size=units, samples=samples)

    def add_counts(self, labelled: Array, decided: Array, hit: Array, *, samples: int) -> None:
        """Add counts [unit, class]; a unit is a sample, or the whole batch."""
        counts = np.stack([labelled, decided, hit], axis=2).reshape(len(labelled), -1)
        units, keys = np.nonzero(counts)
        self.sums.add(units, keys, counts[units, keys], size=len(counts), samples=samples)

    @property
    def totals(self) -> tuple[Array, Array, Array]:
        """Over all samples: labelled, decided and hit, each [1, class]."""
        return _by_kind(self.sums.total[None])


def _by_kind(sums: Array) -> tuple[Array, Array, Array]:
    """Labelled, decided and hit, each [set, class], of sums by key [set, k]."""
    filled = np.pad(sums, ((0, 0), (0, -sums.shape[1] % 3))).reshape(len(sums), -1, 3)
    return filled[..., _LABELLED], filled[..., _DECIDED], filled[..., _HIT]


def _counted(units: Array, keys: Array, size: int) -> tuple[Array, Array, Array]:
    """Units, keys and counts of the pairs that occur, of one pair per row; keys are below ``size``."""
    codes = units * size + keys
    room = (int(units.max(initial=0)) + 1) * size
    if room <= 8 * len(codes):  # faster where there are many rows
        counts = np.bincount(codes, minlength=room)
        known = np.flatnonzero(counts)
        counts = counts[known]
    else:
        known, counts = np.unique(codes, return_counts=True)
    return known // size, known % size, counts


class ClassMeter(Meter):
    """Brings output and labels into rows.

    Args:
        metric: its settings.
    """

    def __init__(self, metric: ClassMetric) -> None:
        self._ignored = metric.ignore_index
        self._axis = metric.class_axis
        self._classes: int | None = None
        # Samples of the last batch that can be told apart, and which of them each of its rows belongs to.
        self._units, self._owners = 0, np.zeros(0, np.int64)

    def rows(self, seen: MetricBatch) -> tuple[Array | None, Array, Array]:
        """Scores [rows, class] (None for an output of class numbers), decisions [rows] and labels [rows]."""
        output, given = seen.outputs["output"], seen.labels["labels"]
        scores = scores_last(output, self._axis)
        if scores is None:
            if output.dtype.kind not in "iub":
                raise UnfitError(
                    "output", f"it contains neither class scores nor class numbers: {output.dtype}{list(output.shape)}"
                )
            decided, labels = output.astype(np.int64), fitted(given, output.shape, "labels", "the output is")
        else:
            self._classes = scores.shape[-1]
            labels = fitted(given, scores.shape[:-1], "labels", "the output decides")
            decided = np.where(np.isnan(scores).any(axis=-1), -1, scores.argmax(axis=-1))
            scores = scores.reshape(-1, scores.shape[-1])
        flat, kept = self._kept(labels)
        apart = seen.samples and labels.ndim and len(labels) == seen.samples
        self._units = seen.samples if apart else 1
        self._owners = np.repeat(np.arange(self._units), kept.size // max(self._units, 1))[kept]
        decided = decided.reshape(-1)[kept]
        if decided.max(initial=0) >= _MOST_CLASSES:
            raise UnfitError("output", f"it contains class number {decided.max()}")
        return None if scores is None else scores[kept], decided, flat

    def check(self, labels: Arrays) -> None:
        """Labels must be classes of the output."""
        self._kept(labels["labels"])

    def _kept(self, labels: Array) -> tuple[Array, Array]:
        """Labels that count [rows], and which they are of all of them."""
        flat = labels.reshape(-1).astype(np.int64)
        kept = np.ones(len(flat), bool) if self._ignored is None else flat != self._ignored
        if labels.size == len(labels):  # one of each sample
            kept &= flat != UNLABELLED
        flat = flat[kept]
        most = _MOST_CLASSES if self._classes is None else self._classes
        wrong = flat[(flat < 0) | (flat >= most)]
        if wrong.size:
            told = f"label {wrong[0]} is not a class of the output, which has 0 to {most - 1}"
            raise UnfitError("labels", told + ("" if self._ignored is not None else "; ignore_index leaves it out"))
        return flat, kept


class TopK(ClassMeter):
    """Share of labels whose rank is below k, in percent; over all rows, or per class."""

    def __init__(self, metric: TopKMetric) -> None:
        super().__init__(metric)
        self._rank = metric.rank
        self._reduce = metric.reduce if isinstance(metric, PerClassAccuracy) else None
        self._sums: Hits | CountSums = Hits() if self._reduce is None else CountSums(self._of_classes)

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        scores, decided, labels = self.rows(seen)
        if scores is None and self._rank > 1:
            raise UnfitError("output", "it contains class numbers; top-k metrics need scores")
        hit = decided == labels if scores is None else ranks(scores, labels) < self._rank
        if isinstance(self._sums, Hits):
            found = [np.bincount(owners, minlength=self._units) for owners in (self._owners[hit], self._owners)]
            columns = np.stack(found, axis=1)
            small = columns.max(initial=0) <= 1
            self._sums.add(columns.astype(np.uint8) if small else columns, samples=seen.samples)
        else:
            units, keys = np.concatenate([self._owners, self._owners[hit]]), np.concatenate([labels, labels[hit]]) * 2
            keys[len(labels) :] += 1
            size = 2 * (1 + int(labels.max(initial=-1)))
            self._sums.add(*_counted(units, keys, size), size=self._units, samples=seen.samples)

    def _of_classes(self, sums: Array) -> Array:
        """The value of labels and hits by class, in turn [set, 2 class]."""
        shares = _shares_in_turn(sums)
        if self._reduce == "worst":
            worst: Array = np.where(np.isnan(shares), np.inf, shares).min(axis=1, initial=np.inf)
            return worst
        return _mean_of_known(shares)

    def value(self) -> float | None:
        """In percent; None without a label."""
        if self._reduce is not None:
            found = finite(self._sums.value)
        else:
            hits, labels = self._sums.total if self._sums.units else (0.0, 0.0)
            found = float(100.0 * hits / labels) if labels else None
        if found is None:
            self.undefined = "no label counts"
        return found

    def details(self) -> dict[str, float]:
        """In percent, by class that occurs in the labels; for per-class accuracy alone."""
        return {} if self._reduce is None else _by_class(_shares_in_turn(self._sums.total[None])[0])


def _by_class(shares: Array) -> dict[str, float]:
    """Shares [class] by name of the class, without those that are NaN."""
    return {f"class {k}": float(shares[k]) for k in np.flatnonzero(~np.isnan(shares))}


def _shares_in_turn(sums: Array) -> Array:
    """Shares in percent [set, class] of labels and hits by class, in turn [set, 2 class]."""
    filled = np.pad(sums, ((0, 0), (0, sums.shape[1] % 2)))
    return quotients(100.0 * filled[:, 1::2], filled[:, 0::2])


def _mean_of_known(shares: Array) -> Array:
    """Mean of each row [set, class] over what is not NaN; NaN without any."""
    known = ~np.isnan(shares)
    return quotients(np.where(known, shares, 0.0).sum(axis=1), known.sum(axis=1))


class IntersectionOverUnion(ClassMeter):
    """Mean over classes of hits / (labelled + decided - hits), in percent."""

    def __init__(self, metric: MeanIoU) -> None:
        super().__init__(metric)
        self._counts = CountsByClass(lambda *counts: _mean_of_known(self._shares(*counts)))
        self._sums: CountSums = self._counts.sums

    @staticmethod
    def _shares(labelled: Array, decided: Array, hit: Array) -> Array:
        return quotients(100.0 * hit, labelled + decided - hit)

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        _, decided, labels = self.rows(seen)
        self._counts.add(decided, labels, self._owners, units=self._units, samples=seen.samples)

    def value(self) -> float | None:
        """In percent; None without a label."""
        found = finite(self._sums.value)
        if found is None:
            self.undefined = "no label counts"
        return found

    def details(self) -> dict[str, float]:
        """In percent, by class that occurs."""
        return _by_class(self._shares(*self._counts.totals)[0])


class FScore(ClassMeter):
    """F1, precision or recall, in percent."""

    def __init__(self, metric: CountedMetric) -> None:
        super().__init__(metric)
        self._metric = metric
        self._counts = CountsByClass(self._of_counts)
        self._sums: CountSums = self._counts.sums

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        if self._metric.threshold is None:
            _, decided, labels = self.rows(seen)
            self._counts.add(decided, labels, self._owners, units=self._units, samples=seen.samples)
        else:
            self._add_yes_or_no(seen, self._metric.threshold)

    def check(self, labels: Arrays) -> None:
        """Labels must be classes of the output, or 0 and 1 with a threshold."""
        if self._metric.threshold is None:
            super().check(labels)
        else:
            self._yes_or_no(labels["labels"])

    def _yes_or_no(self, labels: Array) -> Array:
        known = (labels == 0) | (labels == 1)
        if self._ignored is not None:
            known |= labels == self._ignored
        if not known.all():
            raise UnfitError("labels", f"with a threshold labels are 0 or 1, not {labels[~known].flat[0]}")
        yes: Array = labels == 1
        return yes

    def _add_yes_or_no(self, seen: MetricBatch, threshold: float) -> None:
        output = seen.outputs["output"]
        if output.dtype.kind != "f":
            raise UnfitError("output", f"a threshold takes scores, not {output.dtype}")
        labels = fitted(seen.labels["labels"], output.shape, "labels", "the output is")
        wanted, decided, counted = self._yes_or_no(labels), output > threshold, np.ones(output.shape, bool)
        if self._ignored is not None:
            counted = labels != self._ignored
        wanted, decided, counted = (self._columns(array) for array in (wanted, decided, counted))
        apart = seen.samples and output.ndim and len(output) == seen.samples
        shape = (seen.samples if apart else 1, -1, wanted.shape[1])
        counts = (wanted & counted, decided & counted, wanted & decided & counted)
        labelled, made, hit = (array.reshape(shape).sum(axis=1) for array in counts)
        self._counts.add_counts(labelled, made, hit, samples=seen.samples)

    def _columns(self, array: Array) -> Array:
        """As [rows, class]; one class if there is no class axis."""
        axis = self._axis if self._axis is not None else (1 if array.ndim > 3 else array.ndim - 1)
        if axis == 0 or axis >= array.ndim:
            return array.reshape(-1, 1)
        moved = np.moveaxis(array, axis, -1)
        return moved.reshape(-1, moved.shape[-1])

    def value(self) -> float | None:
        """In percent; None where no class occurs."""
        metric, (labelled, decided, _) = self._metric, self._counts.totals
        found = finite(self._sums.value)
        if found is None and metric.positive_class is not None:
            self.undefined = f"class {metric.positive_class} does not occur"
        elif found is None:
            self.undefined = "no class is labelled" if (labelled + decided).any() else "no class occurs"
        return found

    def details(self) -> dict[str, float]:
        """In percent, by class that occurs in labels or decisions."""
        return _by_class(self._shares(*self._counts.totals)[0])

    def _of_counts(self, labelled: Array, decided: Array, hit: Array) -> Array:
        """The value of counts [set, class]."""
        metric = self._metric
        if metric.positive_class is not None:
            chosen = slice(metric.positive_class, metric.positive_class + 1)
            labelled, decided, hit = (array[:, chosen] for array in (labelled, decided, hit))
        elif metric.average == "micro":
            labelled, decided, hit = (array.sum(axis=1, keepdims=True) for array in (labelled, decided, hit))
        shares = self._shares(labelled, decided, hit)
        if metric.positive_class is None and metric.average == "weighted":
            return quotients((np.nan_to_num(shares) * labelled).sum(axis=1), labelled.sum(axis=1))
        return _mean_of_known(shares)

    def _shares(self, labelled: Array, decided: Array, hit: Array) -> Array:
        """In percent [set, class]; NaN for a class that does not occur."""
        if isinstance(self._metric, F1):
            above, below = 2.0 * hit, decided + labelled
        else:
            above, below = hit, decided if isinstance(self._metric, Precision) else labelled
        found: Array = np.where(labelled + decided > 0, np.nan_to_num(quotients(100.0 * above, below)), np.nan)
        return found


class Accuracy:
    """top1 and top5 of class scores against labels; top1 alone for a model that returns class numbers.

    A label is in the top k if fewer than k classes rank before it: those that score higher, and of those that score
    the same the ones with a smaller number (as arg max decides).
    """

    def __init__(self) -> None:
        self.fits = True  # as long as the first output classifies what the labels speak of
        self._hits = {"top1": Hits(), "top5": Hits()}
        self._has_top5 = False

    def take(self, batch: SampleBatch, outputs: Mapping[str, Any]) -> None:
        """Take in one batch of a model's outputs; from one on that does not fit there is no value."""
        first, labels = next(iter(outputs.values())), batch.labels
        can_fit = self.fits and isinstance(first, np.ndarray)
        self.fits = can_fit and labels is not None and self.update(batch.cut(first), labels)

    def update(self, output: np.ndarray, labels: np.ndarray) -> bool:
        """Take in one batch; False if the output is no classification of the labels. Samples without a label do not
        count.
        """
        known = labels != UNLABELLED
        if output.dtype.kind in "iu" and output.size == labels.size:
            found = {"top1": output.reshape(-1) == labels}
        else:
            scores = class_scores(output)
            if scores is None or scores.ndim != 2 or scores.shape[0] != labels.size or labels.max() >= scores.shape[1]:
                return False
            rank = ranks(scores, np.where(known, labels, 0))
            found = {"top1": rank < 1, "top5": rank < 5}
            self._has_top5 = scores.shape[1] > 5
        for name, hit in found.items():
            self._hits[name].add(np.stack([hit & known, known], axis=1).astype(np.uint8), samples=labels.size)
        return True

    @property
    def metrics(self) -> dict[str, float]:
        """In percent: top1, and top5 where there are more than five classes."""
        return {name: hits.value for name, hits in self.contributions.items()}

    @property
    def contributions(self) -> dict[str, Hits]:
        """Which samples are right, by name of the metric."""
        top1 = self._hits["top1"]
        if not top1.units or not self.fits or not top1.total[1]:
            return {}
        return {name: hits for name, hits in self._hits.items() if name == "top1" or self._has_top5}
