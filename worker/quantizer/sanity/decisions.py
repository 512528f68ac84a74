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

from service.contracts.distributions import incomplete_beta
from service.contracts.metrics import TopKMetric
from service.contracts.report import MetricFigures
from service.contracts.report.layers import Finding
from worker.quantizer.evaluation.chance import WITHOUT_SKILL, classes_of
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
    "{metric} of the float model is {value:.2f} % on {samples} samples, not significantly above "
    "chance level ({chance:.2f} %)",
    hint="Check preprocessing, labels and the order of the classes: the float model has to work on this "
    "data before a quantized model can be compared with it. No statement about accuracy is possible.",
    undermines_verdict=True,
)
NO_SKILL = declare(
    "float-metric-without-skill",
    "critical",
    ("{metric} of the float model is {value:g} on {samples} samples; a constant prediction reaches {chance:g}"),
    hint="Check preprocessing, targets and the output of the metric: the float model has to work on this "
    "data first. No statement about accuracy is possible.",
    undermines_verdict=True,
)
LABELS_SHIFTED = declare(
    "labels-shifted",
    "critical",
    "the float model predicts {value:.2f} % of {samples} samples correctly with the labels as "
    "stored, and {shifted:.2f} % with {step:+d} added to each label",
    hint=("Class numbers start at 0, in the order of the model's outputs: add {step:+d} to the stored labels."),
    undermines_verdict=True,
)
ONE_CLASS = declare(
    "labels-of-one-class",
    "warning",
    "all {count} labels are class {label}",
    hint="Add samples of all classes: a classification metric on one class shows little.",
)
NEVER_LABELLED = declare(
    "labels-never-occur",
    "info",
    "{missing} of {classes} classes do not occur in {count} labels: {told}",
    hint="Accuracy on these classes is not measured: check that labels and model number the classes "
    "alike, and add samples of all classes.",
)
NEVER_DECIDED = declare(
    "labels-never-decided",
    "warning",
    ("class {label} is the label of {count} samples, and the float model predicts it for none of {samples}"),
    hint="Check that labels and model number the classes in the same order.",
)


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

# At 0 nothing was right.
_SHARES = ("f1", "precision", "recall", "mean_iou", "map")
_ENOUGH = 16
# Findings of each kind, the widest first, and channels that one names.
_MOST, _NAMED = 8, 8
ACTIVATION_OUTLIERS = declare(
    "outlier-channels",
    "info",
    "activation {tensor!r}: the range of channel {channels} is {ratio:.3g} times that of the median "
    "channel (of {count}), which keeps {steps:.2g} of 256 steps{more}",
    hint="If accuracy dropped, add the algorithm outlier_channels.",
)
WEIGHT_OUTLIERS = declare(
    "outlier-weight-channels",
    "info",
    "weight {tensor!r} of {node!r} has one scale per tensor, and the range of output channel "
    "{channels} is {ratio:.3g} times that of the median channel (of {count}), which keeps "
    "{steps:.2g} of 256 steps{more}",
    hint="If accuracy dropped, set weight.granularity to per_channel where the target supports it, or add "
    "cross_layer_equalization or outlier_channels.",
)
TOO_FEW_CLASSES = declare(
    "metric-of-too-few-classes",
    "warning",
    "{metric} accepts a label among the top {rank} of {classes} classes: it is always 100 %",
    hint="Measure top1, or accuracy_at_k with a smaller k.",
)
RUNTIME_DIFFERS = declare(
    "runtime-differs",
    "critical",
    "onnxruntime's optimizations change output {output!r}: compared with the float model {optimized} "
    "with optimizations, {plain} without",
    hint=("Exclude the layers before that output, or use another target; other runtimes may give either result."),
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
        more=f"; {more} similar tensors" if more > 0 else "",
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
        classes = classes_of(metric, case.summary.outputs)
        if isinstance(metric, TopKMetric) and classes is not None and metric.rank >= classes:
            yield TOO_FEW_CLASSES({"metric": metric.name}, metric=metric.name, rank=metric.rank, classes=classes)


def _without_skill(found: MetricFigures) -> float | None:
    """What the float model's value does not exceed, though it takes no model; None if it does, or nobody knows."""
    value = found.float_
    if value is None:
        return None
    if found.kind == "perplexity":
        return found.chance if found.chance is not None and value >= found.chance else None
    limit = WITHOUT_SKILL.get(found.kind, 0.0 if found.kind in _SHARES else None)
    return limit if limit is not None and value <= limit else None
