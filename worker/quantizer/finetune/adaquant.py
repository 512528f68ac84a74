"""AdaQuant (Hubara et al. 2020, Improving Post Training Neural Quantization): the weights themselves move, rounding
passes gradients straight through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from service.contracts.algorithms import AdaQuant
from worker.quantizer.finetune.reconstruction.method import Descent, Freedom, Method
from worker.quantizer.finetune.reconstruction.unit import Parameter

if TYPE_CHECKING:
    import torch

    from worker.quantizer.finetune.gradient.parameters import Moving


class AdaQuantMethod(Method):
    """What is AdaQuant's own; see ``Method``."""

    spec: AdaQuant

    @property
    def freedom(self) -> Freedom:
        """What the options allow."""
        return Freedom(far=True, bias=self.spec.update_bias, scale=self.spec.update_scales)

    @property
    def descent(self) -> Descent:
        """All at once; weights go back and forth between two integers to the end."""
        return Descent(together=True, wavers=True, dampened=self.spec.dampening, moves_scales=self.spec.update_scales)

    def moves(self, parameter: Parameter) -> bool:
        """All parameters, biases where they are to follow."""
        return parameter.kind != "bias" or self.spec.update_bias

    def movable(self, parameter: Parameter, device: torch.device, residual: float) -> Moving:
        """A parameter that moves through its rounding."""
        from worker.quantizer.finetune.gradient.parameters import Moving  # with torch, which takes a second

        unit = None
        if self.spec.learning_rate is not None:
            unit = np.asarray(1.0, np.float32)
        elif parameter.kind == "bias":
            unit = np.asarray(residual, np.float32)
        move_scale = self.spec.update_scales and parameter.free_scale
        return Moving(parameter, device, unit=unit, move_scale=move_scale)
