"""Metrics of model outputs, streaming over batches.

``Metrics`` binds what a config declares to a model's outputs; its ``start`` gives a ``MetricSet`` that takes batches
and gives {name: value}. numpy alone: torchmetrics would bring torch into every run.
"""

from worker.quantizer.evaluation.metrics.classes import Accuracy
from worker.quantizer.evaluation.metrics.custom import MetricFunction
from worker.quantizer.evaluation.metrics.distances import IDENTICAL_DB, AgreementRate, Distance, Distances
from worker.quantizer.evaluation.metrics.metric_set import Metrics, MetricSet, metric_words, rounded

__all__ = [
    "IDENTICAL_DB",
    "Accuracy",
    "AgreementRate",
    "Distance",
    "Distances",
    "MetricFunction",
    "MetricSet",
    "Metrics",
    "metric_words",
    "rounded",
]
