"""What differs between AdaRound and AdaQuant, as the solvers see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from service.contracts.algorithms import AdaQuant, AdaRound
from worker.quantizer.finetune.reconstruction.unit import Parameter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Spec = AdaRound | AdaQuant


@dataclass(frozen=True)
class Freedom:
    """What may move beside the integers' next neighbours, for the moments solver.

    Attributes:
        far: integers may move further than to the next one up or down.
        bias: the bias follows.
        scale: weight scales follow where their kind allows it.
    """

    far: bool
    bias: bool
    scale: bool


@dataclass(frozen=True)
class Descent:
    """How the gradient solver goes about it.

    Attributes:
        together: all parameters of a block move at once; False: one after the other.
        wavers: the variables never come to rest, so that their mean, and the best of them on the way, are worth a look.
        dampened: values are held at what they are rounded to as strongly as the error is curved there.
        moves_scales: scales of several channels may move.
        warm_start: share of the steps in which a plateau means nothing yet.
        finish: share of the steps that is still taken on a plateau.
    """

    together: bool
    wavers: bool
    dampened: bool = False
    moves_scales: bool = False
    warm_start: float = 0.0
    finish: float = 0.0


@dataclass(frozen=True)
class Regularizer:
    """AdaRound's term at one step: weight * sum(1 - |2 h - 1|^beta); weight 0 during the warm start."""

    weight: float = 0.0
    beta: float = 2.0


NO_REGULARIZER = Regularizer()


@dataclass(frozen=True)
class Result:
    """A parameter as it will be stored.

    Attributes:
        present: float32: what the network computes with.
        integers: on an integer grid.
        values: float32, before any rounding.
        scale: float32, if it moved.
    """

    present: np.ndarray
    integers: np.ndarray | None
    values: np.ndarray | None
    scale: np.ndarray | None = None


class Movable(Protocol):
    """A parameter in the hands of Adam."""

    @property
    def variables(self) -> list[Tensor]:
        """What Adam moves."""

    def value(self) -> Tensor:
        """What the unit computes with now."""

    def absorb(self, gradient: Tensor, regularizer: Regularizer) -> None:
        """Set the gradients of ``variables`` from the gradient of the last ``value``."""

    def result(self) -> Result:
        """As it would be stored now."""


@dataclass(frozen=True)
class Method(ABC):
    """AdaRound or AdaQuant, with its options."""

    spec: Spec

    @property
    @abstractmethod
    def freedom(self) -> Freedom:
        """What the moments solver may move."""

    @property
    @abstractmethod
    def descent(self) -> Descent:
        """How the gradient solver goes about it."""

    @abstractmethod
    def moves(self, parameter: Parameter) -> bool:
        """True if the gradient solver moves ``parameter``."""

    @abstractmethod
    def movable(self, parameter: Parameter, device: torch.device, residual: float) -> Movable:
        """What Adam moves for a parameter that moves.

        Args:
            parameter: as it is.
            device: to compute on.
            residual: root of the mean squared error of the unit's output.
        """

    def penalty(self, error: float, channels: int, weights: int) -> float:
        """Weight of the regularizer; 0 for none.

        Args:
            error: mean squared error of the unit's output.
            channels: of the output.
            weights: that the unit has.
        """
        return 0.0

    def regularizer(self, penalty: float, step: int, end: int) -> Regularizer:
        """The regularizer at one step of a descent that ends before step ``end``."""
        return NO_REGULARIZER
