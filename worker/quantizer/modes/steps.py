"""The algorithms by their names in a config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.contracts.algorithms import Algorithm
from worker.quantizer.equalization.bias_correction import BiasCorrectionStep
from worker.quantizer.equalization.cross_layer import CrossLayerEqualizationStep
from worker.quantizer.equalization.outlier_channels import OutlierChannelsStep
from worker.quantizer.equalization.smooth_quant import SmoothQuantStep
from worker.quantizer.finetune.step import FinetuneStep
from worker.quantizer.refine.step import Step
from worker.quantizer.search.autopilot import AutopilotStep
from worker.quantizer.search.mixed_precision import MixedPrecisionStep
from worker.quantizer.search.sensitivity import SensitivityStep
from worker.quantizer.training.step import TrainingStep

# Each takes the config's entry of its method.
STEPS: dict[str, Callable[[Any], Step[Any]]] = {
    "adaquant": FinetuneStep,
    "adaround": FinetuneStep,
    "bias_correction": BiasCorrectionStep,
    "cross_layer_equalization": CrossLayerEqualizationStep,
    "smooth_quant": SmoothQuantStep,
    "awq": SmoothQuantStep,
    "outlier_channels": OutlierChannelsStep,
    "qat": TrainingStep,
    "sensitivity": SensitivityStep,
    "mixed_precision": MixedPrecisionStep,
    "autopilot": AutopilotStep,
}


def step_of(algorithm: Algorithm) -> Step[Any]:
    """The step that an entry of ``algorithms`` asks for."""
    return STEPS[algorithm.method](algorithm)
