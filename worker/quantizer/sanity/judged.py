"""Which output decides for which classes, by the metrics that are declared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.contracts.compatibility import class_count
from service.contracts.evaluation import DEFAULT_METRIC
from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import ClassMetric, Metric, TopKMetric
from service.contracts.metrics.classes import CountedMetric
from service.contracts.model import TensorInfo
from worker.quantizer.data import Dataset
from worker.quantizer.evaluation.metrics.distances import class_scores
from worker.quantizer.refine.case import Case
from worker.quantizer.sanity.look import Array


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
