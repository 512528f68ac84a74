"""Metrics that a config may declare: what is measured on the models' outputs, without a line of user code."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.contracts.metrics.base import LabelRef, MetricBase, MetricFacts, OutputRef
from service.contracts.metrics.detection import (
    BoxAgreement,
    BoxLabels,
    ConfidenceShift,
    DetectionMetric,
    MeanAveragePrecision,
)
from service.contracts.metrics.graph import FunctionMetric, GraphInput, GraphMetric, GraphSource
from service.contracts.metrics.kinds import (
    F1,
    KL,
    L2,
    MAE,
    PSNR,
    R2,
    RMSE,
    SQNR,
    AccuracyAtK,
    Agreement,
    ClassMetric,
    Cosine,
    FidelityMetric,
    MeanIoU,
    Pearson,
    PerClassAccuracy,
    Perplexity,
    Precision,
    Recall,
    Spearman,
    Top1,
    Top5,
    TopKMetric,
    WordErrorRate,
)

Metric = Annotated[
    Top1
    | Top5
    | AccuracyAtK
    | PerClassAccuracy
    | F1
    | Precision
    | Recall
    | MeanIoU
    | MeanAveragePrecision
    | BoxAgreement
    | ConfidenceShift
    | RMSE
    | MAE
    | R2
    | Pearson
    | Spearman
    | WordErrorRate
    | Perplexity
    | Agreement
    | Cosine
    | SQNR
    | PSNR
    | KL
    | L2
    | GraphMetric
    | FunctionMetric,
    Field(discriminator="kind"),
]

__all__ = [
    "F1",
    "KL",
    "L2",
    "MAE",
    "PSNR",
    "R2",
    "RMSE",
    "SQNR",
    "AccuracyAtK",
    "Agreement",
    "BoxAgreement",
    "BoxLabels",
    "ClassMetric",
    "ConfidenceShift",
    "Cosine",
    "DetectionMetric",
    "FidelityMetric",
    "FunctionMetric",
    "GraphInput",
    "GraphMetric",
    "GraphSource",
    "LabelRef",
    "MeanAveragePrecision",
    "MeanIoU",
    "Metric",
    "MetricBase",
    "MetricFacts",
    "OutputRef",
    "Pearson",
    "PerClassAccuracy",
    "Perplexity",
    "Precision",
    "Recall",
    "Spearman",
    "Top1",
    "Top5",
    "TopKMetric",
    "WordErrorRate",
]
