"""Algorithms beyond calibration, discriminated on ``method``."""

from __future__ import annotations

from typing import Literal

from service.contracts.base import Contract


class BiasCorrection(Contract):
    """Adds to every bias what rounding the weights took from the layer's mean output: b += (W - W~) E[x].

    E[x] is the mean input per channel on the calibration data (closed form; Nagel et al. 2019, Data-Free
    Quantization, section 4.2).
    """

    method: Literal["bias_correction"] = "bias_correction"


Algorithm = BiasCorrection
