"""Metrics of sequences: word error rate and perplexity."""

from __future__ import annotations

import math

import numpy as np

from service.contracts.metrics import Perplexity, WordErrorRate
from worker.quantizer.evaluation.contributions import DenseSums, percent, quotients
from worker.quantizer.evaluation.metrics.base import (
    Array,
    Arrays,
    Meter,
    MetricBatch,
    UnfitError,
    by_sample,
    fitted,
    parts,
)
from worker.quantizer.evaluation.metrics.distances import log_softmax


def edit_distance(wanted: Array, got: Array) -> int:
    """Fewest insertions, deletions and substitutions that turn one sequence [m] into the other [n] (Levenshtein).

    One row of the table at a time: the only dependence within a row, on the left neighbour, is a running minimum.
    """
    steps = np.arange(len(got) + 1)
    row = steps.copy()
    for word in wanted:
        best = np.minimum(row[1:] + 1, row[:-1] + (got != word))
        row = np.concatenate([row[:1] + 1, best])
        row = np.minimum.accumulate(row - steps) + steps
    return int(row[-1])


class WordErrors(Meter):
    """Edits over words, in percent."""

    def __init__(self, metric: WordErrorRate) -> None:
        self._metric = metric
        self._sums: DenseSums = DenseSums(percent)  # edits and words

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        decided = self._decided(seen.outputs["output"])
        labels = seen.labels["labels"]
        if labels.ndim != 2 or len(labels) != len(decided):
            raise UnfitError(
                "labels", f"labels have shape {list(labels.shape)}, not [{len(decided)}, words]: one row per sample"
            )
        steps = self._lengths(seen.outputs.get("output_lengths"), "output_lengths", decided)
        lengths = self._lengths(seen.labels.get("label_lengths"), "label_lengths", labels)
        counts = []
        for row, count, wanted, words in zip(decided, steps, labels, lengths, strict=True):
            truth = self._split(self._unpadded(wanted[:words].astype(np.int64)))
            got = self._split(self._decoded(row[:count]))
            counts.append((edit_distance(*_numbered(truth, got)), len(truth)))
        self._sums.add(np.array(counts, np.int64).reshape(-1, 2), samples=seen.samples)

    def _decided(self, output: Array) -> Array:
        """Class numbers [n, time]."""
        scores = output.dtype.kind == "f"
        if output.ndim != (3 if scores else 2) or output.dtype.kind not in "fiu":
            told = f"it is {output.dtype}{list(output.shape)}, neither scores [n, time, class] nor numbers [n, time]"
            raise UnfitError("output", told)
        best: Array = output.argmax(axis=-1) if scores else output.astype(np.int64)
        return best.T if self._metric.time_first else best

    @staticmethod
    def _lengths(given: Array | None, place: str, rows: Array) -> list[int]:
        if given is None:
            return [rows.shape[1]] * len(rows)
        if given.size != len(rows) or given.dtype.kind not in "iu":
            raise UnfitError(place, f"lengths are {given.dtype}{list(given.shape)}, not integers [{len(rows)}]")
        lengths = [int(length) for length in given.reshape(-1)]
        wrong = [length for length in lengths if not 0 <= length <= rows.shape[1]]
        if wrong:
            raise UnfitError(place, f"a length is {wrong[0]}; sequences have 0 to {rows.shape[1]}")
        return lengths

    def _decoded(self, row: Array) -> Array:
        row = self._unpadded(row)
        if self._metric.decode == "argmax":
            return row
        merged = row[np.concatenate([[True], row[1:] != row[:-1]])] if len(row) else row
        kept: Array = merged[merged != self._metric.blank]
        return kept

    def _unpadded(self, row: Array) -> Array:
        kept: Array = row[row != self._metric.padding]
        return kept

    def _split(self, row: Array) -> list[tuple[int, ...]]:
        separator = self._metric.separator
        if separator is None:
            return [(number,) for number in row.tolist()]
        ends = np.flatnonzero(row == separator)
        words = (tuple(word[word != separator].tolist()) for word in np.split(row, ends))
        return [word for word in words if word]

    def value(self) -> float | None:
        """In percent; None without a word in the labels."""
        if not self.details()["words"]:
            self.undefined = "the labels contain no word"
            return None
        return self._sums.value

    def details(self) -> dict[str, float]:
        """What the rate is made of."""
        edits, words = self._sums.total if self._sums.units else (0.0, 0.0)
        return {"edits": float(edits), "words": float(words)}


def _numbered(*sequences: list[tuple[int, ...]]) -> list[Array]:
    """Words as numbers, equal ones for equal words."""
    numbers: dict[tuple[int, ...], int] = {}
    return [np.array([numbers.setdefault(word, len(numbers)) for word in sequence], np.int64) for sequence in sequences]


class PerplexityMeter(Meter):
    """exp(mean -log p(label))."""

    def __init__(self, metric: Perplexity) -> None:
        self._metric = metric
        self._sums: DenseSums = DenseSums(_exponential)  # -log p(label) and labels
        self._classes: int | None = None

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        output, labels = seen.outputs["output"], seen.labels["labels"]
        if output.dtype.kind != "f" or output.ndim < 2:
            raise UnfitError("output", f"it is {output.dtype}{list(output.shape)}, not scores [n, ..., class]")
        labels = fitted(labels, output.shape[:-1], "labels", "the output predicts")
        if self._metric.shift:
            if output.ndim < 3:
                raise UnfitError("shift", f"the output {list(output.shape)} has no axis of positions")
            output, labels = output[:, :-1], labels[:, 1:]
        self._classes = output.shape[-1]
        rows, flat = output.reshape(-1, self._classes), labels.reshape(-1).astype(np.int64)
        kept = flat != self._metric.ignore_index
        self._checked(flat[kept])
        losses = np.zeros(len(flat))
        for part in parts(*rows.shape):
            chosen = kept[part]
            losses[part][chosen] = -self._log_probability(rows[part][chosen], flat[part][chosen])
        columns = [by_sample(values.reshape(labels.shape), seen.samples).sum(axis=1) for values in (losses, kept)]
        self._sums.add(np.stack(columns, axis=1), samples=seen.samples)

    def check(self, labels: Arrays) -> None:
        """Labels must be classes of the output."""
        flat = labels["labels"].reshape(-1).astype(np.int64)
        self._checked(flat[flat != self._metric.ignore_index])

    def _checked(self, labels: Array) -> None:
        classes = self._classes or 0
        wrong = labels[(labels < 0) | (labels >= classes)]
        if wrong.size:
            raise UnfitError("labels", f"label {wrong[0]} is not a class of the output, which has 0 to {classes - 1}")

    def _log_probability(self, rows: Array, labels: Array) -> Array:
        if self._metric.scores == "logits":
            return np.take_along_axis(log_softmax(rows), labels[:, None], axis=1)[:, 0]
        own = np.take_along_axis(rows, labels[:, None], axis=1)[:, 0].astype(np.float64)
        if self._metric.scores == "probabilities":
            with np.errstate(divide="ignore"):
                logarithm: Array = np.log(own)
            return logarithm
        return own

    def value(self) -> float | None:
        """1 for certainty, the number of classes for a guess; None where it is beyond float64."""
        if not self._sums.units or not self._sums.total[1]:
            self.undefined = "no label counts"
            return None
        value = self._sums.value
        if not math.isfinite(value):
            self.undefined = "a label has probability 0, or the output is not finite"
            return None
        return value


def _exponential(sums: Array) -> Array:
    """Of the mean of sums and counts [set, 2]."""
    with np.errstate(over="ignore"):
        found: Array = np.exp(quotients(sums[:, 0], sums[:, 1]))
    return found
