"""Algorithms beyond calibration, discriminated on ``method``. They run in the order in which a config lists them."""

from __future__ import annotations

from service.contracts.algorithms.base import AlgorithmBase
from service.contracts.algorithms.equalization import (
    Awq,
    BiasCorrection,
    CrossLayerEqualization,
    OutlierChannels,
    SmoothQuant,
)
from service.contracts.algorithms.finetune import AdaQuant, AdaRound, Finetuning, LearningRateAdjust
from service.contracts.algorithms.precision import (
    Autopilot,
    MixedPrecision,
    SelectivePrecision,
    SensitivityAnalysis,
    with_levels,
)
from service.contracts.algorithms.training import QuantizationAwareTraining
from service.contracts.algorithms.union import Algorithm, algorithm_contradictions, in_order

__all__ = [
    "AdaQuant",
    "AdaRound",
    "Algorithm",
    "AlgorithmBase",
    "Autopilot",
    "Awq",
    "BiasCorrection",
    "CrossLayerEqualization",
    "Finetuning",
    "LearningRateAdjust",
    "MixedPrecision",
    "OutlierChannels",
    "QuantizationAwareTraining",
    "SelectivePrecision",
    "SensitivityAnalysis",
    "SmoothQuant",
    "algorithm_contradictions",
    "in_order",
    "with_levels",
]
