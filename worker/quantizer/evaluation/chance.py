"""Chance levels: what decisions that ignore the input reach, by metric, and which output the labels judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.contracts.compatibility import class_count
from service.contracts.dataset import UNLABELLED
from service.contracts.evaluation import DEFAULT_METRIC, EvaluationSpec
from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import ClassMetric, Metric, PerClassAccuracy, TopKMetric
from service.contracts.metrics.kinds import CountedMetric
from service.contracts.model import TensorInfo
from service.contracts.report import MetricFigures
from worker.quantizer.data import OpenDataset
from worker.quantizer.evaluation.metrics.base import Array
from worker.quantizer.evaluation.metrics.distances import class_scores

# Values that a prediction without knowledge of the sample has.
WITHOUT_SKILL = {"r2": 0.0, "pearson": 0.0, "spearman": 0.0}


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


def judged_by(spec: EvaluationSpec, outputs: Sequence[TensorInfo], data: OpenDataset) -> Judged | None:
    """What the class numbers of ``data`` are to judge; None if nothing."""
    if data.labels is None or not outputs:
        return None
    metrics = spec.metrics
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


def guessed_share(labels: Array, classes: int | None, rank: int) -> float:
    """Share of hits of naming always the ``rank`` most frequent classes; at least that of naming any."""
    shares = np.sort(np.unique(labels, return_counts=True)[1] / len(labels))[::-1]
    evenly = 0.0 if classes is None else min(1.0, rank / classes)
    return max(evenly, min(1.0, float(shares[:rank].sum())))


def with_chance(
    metrics: Sequence[MetricFigures], spec: EvaluationSpec, outputs: tuple[TensorInfo, ...], data: OpenDataset
) -> tuple[MetricFigures, ...]:
    """The same figures with their chance levels, where these are known.

    Args:
        metrics: as measured.
        spec: that declares them.
        outputs: of the model.
        data: that they were measured on.
    """
    declared = {metric.name: metric for metric in spec.metrics}

    def chance(found: MetricFigures) -> float | None:
        return _chance(found, declared.get(found.name), spec, outputs, data)

    return tuple(found.model_copy(update={"chance": chance(found)}) for found in metrics)


def _chance(
    found: MetricFigures,
    metric: Metric | None,
    spec: EvaluationSpec,
    outputs: tuple[TensorInfo, ...],
    data: OpenDataset,
) -> float | None:
    """In the metric's unit; None where it is not known."""
    if found.kind in WITHOUT_SKILL:
        return WITHOUT_SKILL[found.kind]
    classes = classes_of(metric, outputs) if metric is not None else output_classes(outputs, 0)
    if found.kind == "perplexity":
        return None if classes is None else float(classes)
    labels, judged = data.labels, judged_by(spec, outputs, data)
    if labels is None or judged is None:
        return None
    labels = labels[labels != UNLABELLED]
    if not len(labels):
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


def classes_of(metric: Metric, outputs: tuple[TensorInfo, ...]) -> int | None:
    """Classes of the output that the metric reads, where its shape tells."""
    names = [tensor.name for tensor in outputs]
    for ref in metric.output_refs().values():
        name = find_output(ref, names)
        return None if name is None else output_classes(outputs, names.index(name))
    return None
