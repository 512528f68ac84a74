"""AdaRound and AdaQuant as the solvers see them: what moves, and how.

AdaRound (Nagel et al. 2020, Up or Down?) rounds every weight up or down, W~ = s (floor(W / s) + h(alpha)). In AdaQuant
(Hubara et al. 2020, Improving Post Training Neural Quantization) the weights themselves move, and rounding passes
gradients straight through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from service.contracts.algorithms import AdaQuant, AdaRound
from worker.quantizer.finetune.blocks import BlockParameter
from worker.quantizer.numerics.integer import IntegerGrid

if TYPE_CHECKING:
    import torch

    from worker.quantizer.finetune.gradient.network import Moving, SoftRounding

Spec = AdaRound | AdaQuant

_AUTOMATIC_PENALTY = 3.0
# On a plateau the weights are between two integers: so many of the steps are left to bring them there.
_FINISH = 0.3


@dataclass(frozen=True)
class Freedom:
    """What may move beside the integers' next neighbours, for the moments solver."""

    far: bool  # integers may move further than to the next one up or down
    bias: bool  # the bias follows
    scale: bool  # weight scales follow where their kind allows it


@dataclass(frozen=True)
class GradientSettings:
    """How the gradient solver goes about it."""

    together: bool  # all parameters of a block move at once; False: one after the other
    # the variables never come to rest, so that their mean, and the best of them on the way, are worth a look
    wavers: bool
    dampened: bool = False  # values are held at what they are rounded to as strongly as the error is curved there
    moves_scales: bool = False  # scales of several channels may move
    warm_start: float = 0.0  # share of the steps in which a plateau means nothing yet
    finish: float = 0.0  # share of the steps that is still taken on a plateau


@dataclass(frozen=True)
class AdaRoundMethod:
    """AdaRound with its options."""

    spec: AdaRound

    @property
    def freedom(self) -> Freedom:
        """What the moments solver may move."""
        return Freedom(
            far=self.spec.unrestricted is True, bias=self.spec.update_bias, scale=self.spec.scale_refit is True
        )

    @property
    def gradient_settings(self) -> GradientSettings:
        """Layers of a block come one after another.

        While weights lie between two integers, those behind make up for it, and fit no longer once all are rounded.
        """
        return GradientSettings(together=False, wavers=False, warm_start=self.spec.warm_start, finish=_FINISH)

    def moves(self, parameter: BlockParameter) -> bool:
        """Only integers are rounded up or down."""
        return parameter.kind == "weight" and isinstance(parameter.grid, IntegerGrid)

    def movable(self, parameter: BlockParameter, device: torch.device, residual: float) -> SoftRounding:
        """What Adam moves for a parameter that moves."""
        from worker.quantizer.finetune.gradient.network import SoftRounding  # with torch, which takes a second

        return SoftRounding(parameter, device)

    def penalty(self, error: float, channels: int, weights: int) -> float:
        """Weight of the regularizer.

        One that is not given lets it count a few times as much as ``error``, the mean squared error of the block's
        output at first; ``weights`` is how many the block has.

        With the paper's 0.01 it is thousands of times the error of an 8-bit layer, and next to nothing where a few
        channels set the scale of all: the first forgets the error, the second leaves weights between two integers.
        """
        if self.spec.reg_param is not None:
            return self.spec.reg_param
        return _AUTOMATIC_PENALTY * error * channels / max(weights, 1)

    def regularizer(self, penalty: float, step: int, end: int) -> tuple[float, float]:
        """Weight r and beta of AdaRound's term, r sum(1 - |2 h - 1|^beta), at one step of a descent that ends before
        step ``end``: none at first, then beta falls on a cosine.
        """
        begin = self.spec.warm_start * self.spec.num_iterations
        if step < begin:
            return 0.0, 2.0
        part = (step - begin) / max(end - begin, 1.0)
        high, low = self.spec.beta_range
        return penalty, low + 0.5 * (high - low) * (1.0 + math.cos(math.pi * part))


@dataclass(frozen=True)
class AdaQuantMethod:
    """AdaQuant with its options."""

    spec: AdaQuant

    @property
    def freedom(self) -> Freedom:
        """What the moments solver may move."""
        return Freedom(far=True, bias=self.spec.update_bias, scale=self.spec.update_scales)

    @property
    def gradient_settings(self) -> GradientSettings:
        """Weights of a block move all at once, and go back and forth between two integers to the end."""
        return GradientSettings(
            together=True, wavers=True, dampened=self.spec.dampening, moves_scales=self.spec.update_scales
        )

    def moves(self, parameter: BlockParameter) -> bool:
        """All parameters, biases where they are to follow."""
        return parameter.kind != "bias" or self.spec.update_bias

    def movable(self, parameter: BlockParameter, device: torch.device, residual: float) -> Moving:
        """The same; ``residual`` is the root of the mean squared error of the block's output."""
        from worker.quantizer.finetune.gradient.network import Moving  # with torch, which takes a second

        unit = None
        if self.spec.learning_rate is not None:
            unit = np.asarray(1.0, np.float32)
        elif parameter.kind == "bias":
            unit = np.asarray(residual, np.float32)
        move_scale = self.spec.update_scales and parameter.free_scale
        return Moving(parameter, device, unit=unit, move_scale=move_scale)

    def penalty(self, error: float, channels: int, weights: int) -> float:
        """There is no regularizer."""
        return 0.0

    def regularizer(self, penalty: float, step: int, end: int) -> tuple[float, float]:
        """There is none."""
        return 0.0, 2.0


Method = AdaRoundMethod | AdaQuantMethod
METHODS: Mapping[str, Callable[[Any], Method]] = {"adaround": AdaRoundMethod, "adaquant": AdaQuantMethod}
