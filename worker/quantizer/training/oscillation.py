"""Weights that jump to and fro between two integers, and how they are held.

Nagel, Fournarakis, Bondarenko and Blankevoort 2022, Overcoming Oscillations in Quantization-Aware Training (arXiv
2203.11086), algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MOMENTUM = 0.01
# The threshold of freezing begins here where the one of the end is not above it: the authors let it fall from 0.1 over
# the whole training, so that it is near this in the second half.
_FIRST_THRESHOLD = 0.04
# A weight counts as oscillating above this frequency, as the paper counts them.
_OSCILLATING = 0.005
_BEGIN = 0.5

State = dict[str, np.ndarray[Any, Any]]


def freezing_threshold(final: float, step: int, total: int) -> float | None:
    """The frequency of jumps above which weights are frozen in one step; None in the first half of the training.

    It falls on half a cosine from 0.04, or ``final`` if that is more, to ``final`` in the last step.

    Args:
        final: jumps a step.
        step: from 0 on.
        total: steps of the training.
    """
    begin = math.ceil(_BEGIN * total)
    if step < begin:
        return None
    first = max(_FIRST_THRESHOLD, final)
    progress = min((step - begin) / max(total - 1 - begin, 1), 1.0)
    return final + (first - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


class Oscillations:
    """The jumps of one weight tensor: ``update`` after each step, then ``apply``.

    A jump counts if it goes against the one before it. The frequency of a weight is the exponential average of its
    jumps; a weight whose frequency is above the threshold is frozen at the rounded exponential average of its integer,
    for good. Weights that never oscillate are never written to.

    Args:
        momentum: of both averages, m of the paper.

    Attributes:
        may_hold: False as long as nothing can be frozen; known without asking the device.
    """

    def __init__(self, momentum: float = _MOMENTUM) -> None:
        self._momentum = momentum
        self.may_hold = False
        self._last: Tensor | None = None  # integers of the last step, as floats
        self._direction: Tensor  # int8: sign of the last jump, 0 before the first
        self._frequency: Tensor  # float32
        self._average: Tensor  # float32: of the integers; where frozen, the integer
        self._frozen: Tensor  # bool

    @torch.no_grad()
    def update(self, integers: Tensor, threshold: float | None) -> None:
        """Take in the integers after one step.

        Args:
            integers: saturated, of any dtype, and of the same shape each time.
            threshold: as of ``freezing_threshold``; None: nothing is frozen yet.
        """
        now = integers.detach().float()
        if self._last is None:
            self._start(now)
            return
        if self.may_hold:
            now = torch.where(self._frozen, self._average, now)
        sign = torch.sign(now - self._last).to(torch.int8)
        against = (sign * self._direction) < 0
        self._frequency.lerp_(against.float(), self._momentum)
        self._direction = torch.where(sign != 0, sign, self._direction)
        self._average.lerp_(now, self._momentum)
        self._last.copy_(now)
        if threshold is not None:
            self.may_hold = True
            fresh = (self._frequency > threshold) & ~self._frozen
            self._average = torch.where(fresh, torch.round(self._average), self._average)
            self._frozen |= fresh

    @torch.no_grad()
    def apply(self, master_weight: Tensor, scale: Tensor, zero: Tensor) -> None:
        """Put frozen weights to the centre of their integer, and take away their gradient, both in place.

        Called before the optimizer's step the gradient does not move them; called after it, what momentum has moved
        goes back, and they follow a scale that is learned.

        Args:
            master_weight: float weights, of the shape of the integers.
            scale: of the grid, spread over the shape.
            zero: zero points, spread likewise: weight = (integer - zero) scale.
        """
        if not self.may_hold:
            return
        centre = ((self._average - zero) * scale).to(master_weight.dtype)
        master_weight.copy_(torch.where(self._frozen, centre, master_weight))
        if master_weight.grad is not None:
            master_weight.grad.masked_fill_(self._frozen, 0.0)

    @property
    def count(self) -> int:
        """Weights of the tensor; 0 before the first update."""
        return 0 if self._last is None else self._last.numel()

    @property
    def oscillating(self) -> int:
        """Weights that jump more often than 0.005 a step and are not frozen."""
        return int(((self._frequency > _OSCILLATING) & ~self._frozen).sum()) if self.count else 0

    @property
    def frozen(self) -> int:
        """Weights that are held."""
        return int(self._frozen.sum()) if self.count else 0

    def state(self) -> State:
        """For a checkpoint; empty before the first update."""
        if self._last is None:
            return {}
        return {
            "last": self._last.cpu().numpy().copy(),
            "direction": self._direction.cpu().numpy().copy(),
            "frequency": self._frequency.cpu().numpy().copy(),
            "average": self._average.cpu().numpy().copy(),
            "frozen": self._frozen.cpu().numpy().copy(),
        }

    def load_state(self, state: Mapping[str, np.ndarray[Any, Any]], device: torch.device) -> None:
        """Go on from a checkpoint.

        Args:
            state: of ``state``.
            device: where the weights live.

        Raises:
            KeyError: it is of something else.
        """
        if not state:
            self._last, self.may_hold = None, False
            return
        names = ("last", "direction", "frequency", "average", "frozen")
        last, direction, frequency, average, frozen = (
            torch.from_numpy(np.array(state[name], order="C")).to(device) for name in names
        )
        self._last, self._direction, self._frequency = last, direction, frequency
        self._average, self._frozen = average, frozen
        self.may_hold = bool(state["frozen"].any())

    def _start(self, integers: Tensor) -> None:
        self._last = integers.clone()
        self._average = integers.clone()
        self._frequency = torch.zeros_like(integers)
        self._direction = torch.zeros_like(integers, dtype=torch.int8)
        self._frozen = torch.zeros_like(integers, dtype=torch.bool)


def shares(tensors: Iterable[Oscillations]) -> tuple[float, float]:
    """Parts in [0, 1] of all weights of several tensors that oscillate, and that are held."""
    found = list(tensors)
    count = max(sum(one.count for one in found), 1)
    return sum(one.oscillating for one in found) / count, sum(one.frozen for one in found) / count
