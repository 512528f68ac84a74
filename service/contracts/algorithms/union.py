"""The algorithms that there are."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from service.contracts.algorithms.base import AlgorithmBase
from service.contracts.algorithms.equalization import (
    Awq,
    BiasCorrection,
    CrossLayerEqualization,
    OutlierChannels,
    SmoothQuant,
)
from service.contracts.algorithms.finetune import AdaQuant, AdaRound
from service.contracts.algorithms.precision import Autopilot, MixedPrecision
from service.contracts.algorithms.sensitivity import SensitivityAnalysis
from service.contracts.algorithms.training import QuantizationAwareTraining

Algorithm = Annotated[
    CrossLayerEqualization
    | OutlierChannels
    | SmoothQuant
    | Awq
    | BiasCorrection
    | AdaRound
    | AdaQuant
    | QuantizationAwareTraining
    | SensitivityAnalysis
    | MixedPrecision
    | Autopilot,
    Field(discriminator="method"),
]

ALGORITHMS: dict[str, type[AlgorithmBase]] = {
    member.model_fields["method"].default: member for member in get_args(get_args(Algorithm)[0])
}
