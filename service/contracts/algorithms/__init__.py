"""Algorithms beyond calibration, discriminated on ``method``. They run in the order in which a config lists them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.contracts.algorithms.base import Refinement
from service.contracts.algorithms.equalization import BiasCorrection, CrossLayerEqualization, SmoothQuant
from service.contracts.algorithms.finetune import AdaQuant, AdaRound, Finetuning, LearningRateAdjust
from service.contracts.algorithms.order import algorithm_contradictions, in_order
from service.contracts.algorithms.precision import Autopilot, MixedPrecision, with_levels
from service.contracts.algorithms.sensitivity import SensitivityAnalysis

Algorithm = Annotated[
    CrossLayerEqualization
    | SmoothQuant
    | BiasCorrection
    | AdaRound
    | AdaQuant
    | SensitivityAnalysis
    | MixedPrecision
    | Autopilot,
    Field(discriminator="method"),
]

__all__ = [
    "AdaQuant",
    "AdaRound",
    "Algorithm",
    "Autopilot",
    "BiasCorrection",
    "CrossLayerEqualization",
    "Finetuning",
    "LearningRateAdjust",
    "MixedPrecision",
    "Refinement",
    "SensitivityAnalysis",
    "SmoothQuant",
    "algorithm_contradictions",
    "in_order",
    "with_levels",
]
