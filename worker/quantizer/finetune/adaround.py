"""AdaRound (Nagel et al. 2020, Up or Down?): every weight is rounded up or down, W~ = s (floor(W / s) + h(alpha))."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from service.contracts.algorithms import AdaRound
from worker.quantizer.finetune.reconstruction.method import NO_REGULARIZER, Descent, Freedom, Method, Regularizer
from worker.quantizer.finetune.reconstruction.unit import Parameter
from worker.quantizer.numerics.integer import IntegerGrid

if TYPE_CHECKING:
    import torch

    from worker.quantizer.finetune.gradient.parameters import SoftRounding

_AUTOMATIC_PENALTY = 3.0
# On a plateau the weights are between two integers: so many of the steps are left to bring them there.
_FINISH = 0.3


class AdaRoundMethod(Method):
    """What is AdaRound's own; see ``Method``."""

    spec: AdaRound

    @property
    def freedom(self) -> Freedom:
        """What the options allow."""
        return Freedom(
            far=self.spec.unrestricted is True, bias=self.spec.update_bias, scale=self.spec.scale_refit is True
        )

    @property
    def descent(self) -> Descent:
        """Layers of a block come one after another.

        While weights lie between two integers, those behind make up for it, and fit no longer once all are rounded.
        """
        return Descent(together=False, wavers=False, warm_start=self.spec.warm_start, finish=_FINISH)

    def moves(self, parameter: Parameter) -> bool:
        """Only integers are rounded up or down."""
        return parameter.kind == "weight" and isinstance(parameter.grid, IntegerGrid)

    def movable(self, parameter: Parameter, device: torch.device, residual: float) -> SoftRounding:
        """A soft rounding."""
        from worker.quantizer.finetune.gradient.parameters import SoftRounding  # with torch, which takes a second

        return SoftRounding(parameter, device)

    def penalty(self, error: float, channels: int, weights: int) -> float:
        """One that is not given lets the term count a few times as much as the error there is at first.

        With the paper's 0.01 it is thousands of times the error of an 8-bit layer, and next to nothing where a few
        channels set the scale of all: the first forgets the error, the second leaves weights between two integers.
        """
        if self.spec.reg_param is not None:
            return self.spec.reg_param
        return _AUTOMATIC_PENALTY * error * channels / max(weights, 1)

    def regularizer(self, penalty: float, step: int, end: int) -> Regularizer:
        """None at first, then beta falls on a cosine."""
        begin = self.spec.warm_start * self.spec.num_iterations
        if step < begin:
            return NO_REGULARIZER
        part = (step - begin) / max(end - begin, 1.0)
        high, low = self.spec.beta_range
        return Regularizer(penalty, low + 0.5 * (high - low) * (1.0 + math.cos(math.pi * part)))
