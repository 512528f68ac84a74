"""Decisions of the float model beside the labels: whose they are, what guessing would hit, which classes never occur.

Decisions that do not depend on the samples hit a label as often as they would one of permuted labels: with d_i the set
of the k classes decided for sample i and f_c the share of class c among the labels, the expected share of hits is
mean_i sum_{c in d_i} f_c. For k = 1 that is the chance agreement of Cohen's kappa (1960). It takes classes of unequal
size into account: a model that always names the most frequent class is no better than guessing, whatever its accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from service.contracts.compatibility import class_count
from service.contracts.evaluation import DEFAULT_METRIC
from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import ClassMetric, Metric, TopKMetric
from service.contracts.metrics.kinds import CountedMetric
from service.contracts.model import TensorInfo
from service.contracts.report.layers import Finding
from worker.quantizer.data import Dataset
from worker.quantizer.evaluation.metrics.distances import class_scores
from worker.quantizer.refine.case import Case
from worker.quantizer.sanity.kind import declare
from worker.quantizer.sanity.look import Array

# Chance of an alarm about a model that guesses nothing, and of silence about one that does.
SIGNIFICANCE = 0.01
# A useful model gets at least this share of what guessing leaves over.
_USEFUL = 0.5
# Where even this share is ruled out there is no need to look at more samples.
_WEAK = 0.1
_FEWEST = 10
# Labels per class from which on a class without any is a surprise: it has a chance of e^-8 where all are as frequent.
_PER_CLASS = 8
_TOLD = 5

AT_CHANCE = declare(
    "float-metric-at-chance",
    "critical",
    "{metric} of the float model is {value:.2f} % on {samples} samples; decisions that know nothing of them reach "
    "{chance:.2f} %",
    hint="The quantized model can only be compared with a float model that works on this data: check preprocessing, "
    "labels and the order of the classes. No statement about accuracy is made.",
    undermines_verdict=True,
)
NO_SKILL = declare(
    "float-metric-without-skill",
    "critical",
    "{metric} of the float model is {value:g} on {samples} samples; {chance:g} takes no model at all",
    hint="Check preprocessing, targets and the metric's output: the float model has to work on this data first. No "
    "statement about accuracy is made.",
    undermines_verdict=True,
)
LABELS_SHIFTED = declare(
    "labels-shifted",
    "critical",
    "the float model is right on {value:.2f} % of {samples} samples with the labels as they are, and on "
    "{shifted:.2f} % with {step:+d} added to each",
    hint="Class numbers start at 0, in the order of the model's outputs: store the labels with {step:+d} added.",
    undermines_verdict=True,
)
ONE_CLASS = declare(
    "labels-of-one-class",
    "warning",
    "all {count} labels are class {label}",
    hint="A metric of classes tells little where there is but one: give samples of all of them.",
)
NEVER_LABELLED = declare(
    "labels-never-occur",
    "info",
    "{missing} of {classes} classes never occur in {count} labels: {told}",
    hint="What quantization does to them is not measured: check that the labels number the classes as the model does, "
    "and give samples of all of them.",
)
NEVER_DECIDED = declare(
    "labels-never-decided",
    "warning",
    "class {label} is the label of {count} samples, and the float model decides for it on none of {samples}",
    hint="Check that the labels number the classes as the model does.",
)


@dataclass(frozen=True)
class Judged:
    """Decisions for classes, one per sample.

    Attributes:
        metric: that speaks of them.
        position: of the output.
        rank: how many of the best classes may hold the label.
        classes: of the output; None: not known before it has run.
    """

    metric: str
    position: int
    rank: int
    classes: int | None

    def scores(self, outputs: list[Array]) -> Array | None:
        """Scores [samples, classes] or class numbers [samples]; None if the output holds neither."""
        output = outputs[self.position]
        if not isinstance(output, np.ndarray):
            return None
        if output.dtype.kind in "iu":
            return output.reshape(-1) if output.size == len(output) else None
        scores = class_scores(output)
        return scores if scores is not None and scores.ndim == 2 else None


def judged_by(case: Case, data: Dataset) -> Judged | None:
    """What the class numbers of ``data`` are to judge; None if nothing."""
    outputs = case.summary.outputs
    if data.labels is None or not outputs:
        return None
    metrics = case.config.evaluation.metrics
    if not metrics:
        return Judged(DEFAULT_METRIC, 0, 1, class_count(outputs[0]))
    for metric in metrics:
        if isinstance(metric, ClassMetric) and _is_of_samples(metric, data):
            name = find_output(metric.output, [tensor.name for tensor in outputs])
            position = next(k for k, tensor in enumerate(outputs) if tensor.name == name)
            return Judged(metric.name, position, rank_of(metric), class_count(outputs[position]))
    return None


def _is_of_samples(metric: ClassMetric, data: Dataset) -> bool:
    """One decision for the best class per sample, by the labels of the dataset."""
    named = metric.labels in (None, None if data.selection.labels is None else data.selection.labels.name)
    by_threshold = isinstance(metric, CountedMetric) and metric.threshold is not None
    return named and metric.ignore_index is None and metric.class_axis in (None, 1) and not by_threshold


def rank_of(metric: Metric) -> int:
    """How many of the best classes may hold the label."""
    return metric.rank if isinstance(metric, TopKMetric) else 1


def output_classes(outputs: tuple[TensorInfo, ...], position: int) -> int | None:
    """Classes of an output, where its shape tells."""
    return class_count(outputs[position]) if position < len(outputs) else None


@dataclass(frozen=True)
class HitCounts:
    """Decisions beside labels.

    Attributes:
        count: samples.
        hits: of them right.
        expected: share of hits that independent decisions would have.
    """

    count: int
    hits: int
    expected: float

    @property
    def percent(self) -> float:
        """Share of hits."""
        return 100.0 * self.hits / self.count

    @property
    def shows_skill(self) -> bool:
        """True if guessing hardly hits so often."""
        return tail_at_least(self.hits, self.count, self.expected) < SIGNIFICANCE

    @property
    def is_chance(self) -> bool:
        """True if the hits do not exceed guessing, and there are enough samples that a useful model's would."""
        return self.count >= _FEWEST and not self.shows_skill and self._excludes(_USEFUL)

    @property
    def is_clear(self) -> bool:
        """True if more samples would hardly change the answer."""
        return self.shows_skill or (self.is_chance and self._excludes(_WEAK))

    def _excludes(self, skill: float) -> bool:
        """True if a model that gets this share of what guessing leaves over would hardly hit so seldom."""
        return tail_at_most(self.hits, self.count, self.expected + skill * (1.0 - self.expected)) < SIGNIFICANCE


def hits_of(decided: Array, labels: Array) -> HitCounts:
    """Count hits, and those to expect of independent decisions.

    Args:
        decided: the k best classes of each sample, int64 [samples, k].
        labels: class numbers int64 [samples]; of one class alone every share is known, and 1 / classes is expected.
    """
    found, counts = np.unique(labels, return_counts=True)
    place = np.minimum(np.searchsorted(found, decided), len(found) - 1)
    known = np.where(found[place] == decided, counts[place] / len(labels), 0.0)
    hit = (decided == labels[:, None]).any(axis=1)
    return HitCounts(len(labels), int(hit.sum()), min(1.0, float(known.sum(axis=1).mean())))


def best_classes(scores: Array, rank: int) -> Array:
    """The ``rank`` classes of the highest scores, ties to the smaller number: int64 [rows, rank]; -1 for NaN."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :rank]
    order[np.isnan(scores).any(axis=1)] = -1
    return order.astype(np.int64)


def guessed_share(labels: Array, classes: int | None, rank: int) -> float:
    """Share of hits of naming always the ``rank`` most frequent classes; at least that of naming any."""
    shares = np.sort(np.unique(labels, return_counts=True)[1] / len(labels))[::-1]
    evenly = 0.0 if classes is None else min(1.0, rank / classes)
    return max(evenly, min(1.0, float(shares[:rank].sum())))


def tail_at_least(hits: int, count: int, share: float) -> float:
    """P(X >= hits) of X ~ Binomial(count, share)."""
    if hits <= 0:
        return 1.0
    return _sum(range(hits, count + 1), count, share)


def tail_at_most(hits: int, count: int, share: float) -> float:
    """P(X <= hits) of X ~ Binomial(count, share)."""
    return 1.0 if hits >= count else _sum(range(hits + 1), count, share)


def _sum(values: Sequence[int], count: int, share: float) -> float:
    if share <= 0.0 or share >= 1.0:
        return 1.0 if (0 if share <= 0.0 else count) in values else 0.0
    yes, no = math.log(share), math.log1p(-share)
    whole = math.lgamma(count + 1)
    terms = (
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * yes + (count - k) * no) for k in values
    )
    return min(1.0, math.fsum(terms))


def label_findings(labels: Array, classes: int | None) -> Iterator[Finding]:
    """Judge class numbers.

    Args:
        labels: int64 [samples], all of them.
        classes: of the model; None: not known.
    """
    found = np.unique(labels)
    if len(found) == 1 and len(labels) > 1 and (classes is None or classes > 1):
        yield ONE_CLASS(count=len(labels), label=int(found[0]))
    elif classes is not None and len(labels) >= _PER_CLASS * classes:
        missing = np.setdiff1d(np.arange(classes), found)
        if missing.size:
            told = ", ".join(map(str, missing[:_TOLD])) + (", ..." if missing.size > _TOLD else "")
            yield NEVER_LABELLED(missing=int(missing.size), classes=classes, count=len(labels), told=told)


def decision_findings(decided: Array, labels: Array) -> Iterator[Finding]:
    """Labels that the float model never decides for, where there are enough of them.

    Args:
        decided: best class of each sample, int64 [samples].
        labels: int64 [samples].
    """
    found, counts = np.unique(labels, return_counts=True)
    often = dict(zip(found.tolist(), counts.tolist(), strict=True))
    never = np.setdiff1d(found[counts >= _PER_CLASS], decided).tolist()
    for label in never[:_TOLD]:
        yield NEVER_DECIDED({"label": label}, label=label, count=often[label], samples=len(labels))
