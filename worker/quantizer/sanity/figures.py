"""What is found behind the first look: outlier channels after calibration, metrics that guessing would reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import Metric, PerClassAccuracy, TopKMetric
from service.contracts.report import MetricFigures
from service.contracts.report.layers import Finding
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.outliers import Outliers, find_outliers
from worker.quantizer.sanity.decisions import NO_SKILL, guessed_share, judged_by, output_classes
from worker.quantizer.sanity.kind import FindingKind, declare

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
    if labels is None or judged is None or not len(labels):
        return None
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
