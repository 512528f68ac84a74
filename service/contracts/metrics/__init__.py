"""Metrics that a config may declare: what is measured on the models' outputs, without a line of user code."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.contracts.metrics.base import Facts, LabelRef, MetricBase, OutputRef
from service.contracts.metrics.classes import (
    F1,
    AccuracyAtK,
    ClassMetric,
    MeanIoU,
    PerClassAccuracy,
    Precision,
    Recall,
    Top1,
    Top5,
    TopKMetric,
)
from service.contracts.metrics.detection import BoxLabels, MeanAveragePrecision
from service.contracts.metrics.function import FunctionMetric
from service.contracts.metrics.graph import GraphInput, GraphMetric, GraphSource
from service.contracts.metrics.sequences import Perplexity, WordErrorRate
from service.contracts.metrics.values import (
    KL,
    L2,
    MAE,
    PSNR,
    R2,
    RMSE,
    SQNR,
    Agreement,
    Cosine,
    FidelityMetric,
    Pearson,
    Spearman,
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
    "BoxLabels",
    "ClassMetric",
    "Cosine",
    "Facts",
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
