"""Random inputs in place of data: what a quantization can be tried with before there is any."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.calibration import TensorRange

_Axis = Annotated[int, Field(ge=0, le=2**31)]


class RandomCalibration(Contract):
    """Uniform random inputs, for trying what a quantization makes of a model's structure, size and speed.

    Ranges taken from them are not those of real data, so that nothing follows for accuracy. Drawn from the config's
    seed: the same config gives the same inputs.
    """

    samples: int = Field(default=8, ge=1, le=1024, description="Runs of the model, each on inputs of its own.")
    shapes: dict[str, tuple[_Axis, ...]] = Field(
        default_factory=dict,
        max_length=1000,
        description="Whole shape of an input, by name. Default: the model's own; free axes after the first are of "
        "sizes that names and types suggest and the model runs on, and masks are then ones.",
    )
    ranges: dict[str, TensorRange] = Field(
        default_factory=dict,
        max_length=1000,
        description="Range of an input's values by name, ends included; default: 0 to 1, for integers too.",
    )
