"""Decisions of the float model beside the labels, and what guessing would hit.

Decisions that do not depend on the samples hit a label as often as they would one of permuted labels: with d_i the set
of the k classes decided for sample i and f_c the share of class c among the labels, the expected share of hits is
mean_i sum_{c in d_i} f_c. For k = 1 that is the chance agreement of Cohen's kappa (1960). It takes classes of unequal
size into account: a model that always names the most frequent class is no better than guessing, whatever its accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from service.contracts.compatibility import class_count
from service.contracts.dataset import UNLABELLED
from service.contracts.distributions import incomplete_beta
from service.contracts.evaluation import DEFAULT_METRIC
from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import ClassMetric, Metric, PerClassAccuracy, TopKMetric
from service.contracts.metrics.kinds import CountedMetric
from service.contracts.model import TensorInfo
from service.contracts.report import MetricFigures
from service.contracts.report.layers import Finding
from worker.quantizer.data import OpenDataset
from worker.quantizer.evaluation.metrics.distances import class_scores
from worker.quantizer.refine.channels import Outliers, find_outliers
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.sanity.kind import FindingKind, declare
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
    """Decisions for classes, one per sample."""

    metric: str  # that speaks of them
    position: int  # of the output
    rank: int  # how many of the best classes may hold the label
    classes: int | None  # of the output; None: not known before it has run

    def scores(self, outputs: list[Array]) -> Array | None:
        """Scores [samples, classes] or class numbers [samples]; None if the output holds neither."""
        output = outputs[self.position]
        if not isinstance(output, np.ndarray):
            return None
        if output.dtype.kind in "iu":
            return output.reshape(-1) if output.size == len(output) else None
        scores = class_scores(output)
        return scores if scores is not None and scores.ndim == 2 else None


def judged_by(case: Case, data: OpenDataset) -> Judged | None:
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


def _is_of_samples(metric: ClassMetric, data: OpenDataset) -> bool:
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
    """Decisions beside labels."""

    count: int  # samples
    hits: int  # of them right
    expected: float  # share of hits that independent decisions would have

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
    # Abramowitz and Stegun 26.5.24
    return 1.0 if hits <= 0 else 0.0 if hits > count else incomplete_beta(share, hits, count - hits + 1)


def tail_at_most(hits: int, count: int, share: float) -> float:
    """P(X <= hits) of X ~ Binomial(count, share)."""
    return 1.0 - tail_at_least(hits + 1, count, share)


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


# What is found behind the first look: outlier channels after calibration, metrics that guessing would reach.

# Values that a prediction without knowledge of the sample has.
_WITHOUT_SKILL = {"r2": 0.0, "pearson": 0.0, "spearman": 0.0}
# At 0 nothing was right.
_SHARES = ("f1", "precision", "recall", "mean_iou", "map")
_ENOUGH = 16
# Findings of each kind, the widest first, and channels that one names.
_MOST, _NAMED = 8, 8
ACTIVATION_OUTLIERS = declare(
    "outlier-channels",
    "info",
    "activation {tensor!r}: the range of channel {channels} is {ratio:.3g} times that of the median channel (of "
    "{count}), which is left {steps:.2g} of 256 steps{more}",
    hint="If accuracy has suffered, add the algorithm outlier_channels.",
)
WEIGHT_OUTLIERS = declare(
    "outlier-weight-channels",
    "info",
    "weight {tensor!r} of {node!r} has one scale, and the range of its output channel {channels} is {ratio:.3g} times "
    "that of the median channel (of {count}), which is left {steps:.2g} of 256 steps{more}",
    hint="If accuracy has suffered, set weight.granularity to per_channel, where the target has it, or add "
    "cross_layer_equalization or outlier_channels.",
)
TOO_FEW_CLASSES = declare(
    "metric-of-too-few-classes",
    "warning",
    "{metric} counts a label among the first {rank} of {classes} classes: it is 100 % whatever the model decides",
    hint="Measure top1, or accuracy_at_k with a smaller k.",
)
RUNTIME_DIFFERS = declare(
    "runtime-differs",
    "critical",
    "onnxruntime computes output {output!r} otherwise than the model says: against the float model {optimized} with "
    "its optimizations, {plain} without",
    hint="Exclude the layers before that output, or use another target; other runtimes may give either figure.",
)


def channel_findings(draft: Draft, bound: float | None) -> Iterator[Finding]:
    """One per tensor with outlier channels, the worst tensors of each kind.

    Args:
        draft: calibrated, before any algorithm.
        bound: see ``find_outliers``.
    """
    found = find_outliers(draft.graph, draft.plan, bound)
    for name, kind in (("activation", ACTIVATION_OUTLIERS), ("weight", WEIGHT_OUTLIERS)):
        worst = sorted((one for one in found if one.kind == name), key=lambda one: -one.ratio)
        for k, one in enumerate(worst[:_MOST]):
            yield _finding(kind, one, len(worst) - _MOST if k == _MOST - 1 else 0)


def _finding(kind: FindingKind, found: Outliers, more: int) -> Finding:
    """``more`` tensors are like it and have no finding of their own."""
    named = ", ".join(map(str, found.channels[:_NAMED]))
    named += f" and {len(found.channels) - _NAMED} more" if len(found.channels) > _NAMED else ""
    where: dict[str, str | int | float] = {
        "tensor": found.tensor,
        "node": found.node,
        "channels": ", ".join(map(str, found.channels)),
        "ratio": round(found.ratio, 3),
    }
    return kind(
        where,
        tensor=found.tensor,
        node=found.node,
        channels=named,
        ratio=found.ratio,
        count=found.spans.size,
        steps=256.0 / found.ratio,
        more=f"; {more} more tensors are like it" if more > 0 else "",
    )


def with_chance(metrics: Sequence[MetricFigures], case: Case) -> tuple[MetricFigures, ...]:
    """The same figures with what guessing would reach, where that is known."""
    declared = {metric.name: metric for metric in case.config.evaluation.metrics}
    return tuple(
        found.model_copy(update={"chance": _chance(found, declared.get(found.name), case)}) for found in metrics
    )


def figure_findings(metrics: Sequence[MetricFigures], case: Case, samples: int) -> Iterator[Finding]:
    """Metrics of the float model that take no model, and metrics that cannot fail.

    Args:
        metrics: with their chance.
        case: what was measured.
        samples: that it was measured on.
    """
    for found in metrics:
        limit = _without_skill(found)
        if limit is not None and samples >= _ENOUGH:
            yield NO_SKILL({"metric": found.name}, metric=found.name, value=found.float_, samples=samples, chance=limit)
    for metric in case.config.evaluation.metrics:
        classes = _classes(metric, case)
        if isinstance(metric, TopKMetric) and classes is not None and metric.rank >= classes:
            yield TOO_FEW_CLASSES({"metric": metric.name}, metric=metric.name, rank=metric.rank, classes=classes)


def _without_skill(found: MetricFigures) -> float | None:
    """What the float model's value does not exceed, though it takes no model; None if it does, or nobody knows."""
    value = found.float_
    if value is None:
        return None
    if found.kind == "perplexity":
        return found.chance if found.chance is not None and value >= found.chance else None
    limit = _WITHOUT_SKILL.get(found.kind, 0.0 if found.kind in _SHARES else None)
    return limit if limit is not None and value <= limit else None


def _chance(found: MetricFigures, metric: Metric | None, case: Case) -> float | None:
    """In the metric's unit; None where nobody knows."""
    if found.kind in _WITHOUT_SKILL:
        return _WITHOUT_SKILL[found.kind]
    classes = _classes(metric, case) if metric is not None else output_classes(case.summary.outputs, 0)
    if found.kind == "perplexity":
        return None if classes is None else float(classes)
    data = case.measured_on
    labels, judged = data.labels, judged_by(case, data)
    if labels is None or judged is None:
        return None
    labels = labels[labels != UNLABELLED]
    if metric is None:
        rank = {"top1": 1, "top5": 5}.get(found.name)
    elif isinstance(metric, PerClassAccuracy):
        seen = len(set(labels.tolist()))
        return round(100.0 * min(1.0, metric.rank / seen), 4) if metric.reduce == "mean" else None
    else:
        own = isinstance(metric, TopKMetric) and metric.ignore_index is None and metric.class_axis is None
        rank = metric.rank if isinstance(metric, TopKMetric) and own and metric.labels is None else None
    return None if rank is None else round(100.0 * guessed_share(labels, classes, rank), 4)


def _classes(metric: Metric, case: Case) -> int | None:
    """Classes of the output that the metric reads, where its shape tells."""
    outputs = case.summary.outputs
    names = [tensor.name for tensor in outputs]
    for ref in metric.output_refs().values():
        name = find_output(ref, names)
        return None if name is None else output_classes(outputs, names.index(name))
    return None
