"""Grids whose scales and zero points are learned, and weights that oscillate between two integers.

Scales move on a logarithm: s = s0 2^v with v = 0 at first, so that a step of the optimizer means the same for all (Jain
et al. 2020, Trained Quantization Thresholds, section 3.2). The gradient of s is that of Esser et al. 2020, Learned Step
Size Quantization, equation 3, times 1 / sqrt(N Q), section 2.2. Powers of two: s = s0 2^ceil(v), straight through the
ceiling (Jain et al., equation 4). Zero points: Bhalgat et al. 2020, LSQ+, section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from worker.quantizer.autodiff.program import as_tensor
from worker.quantizer.numerics.integer import Granularity, IntegerGrid, PerAxis, PerTensor, memory_type, snap_scale

# Where the exponent of a power of two starts: in the middle of what the ceiling takes to its scale.
_MIDDLE = -0.5
# A scale may become this many times smaller or larger: 2^16.
_FARTHEST = 16.0


class LearnedGrid(nn.Module):
    """An integer grid that moves.

    ``kind`` is that of the scale: float32, power_of_two or int16. With ``of_samples`` the first axis of its tensors
    counts samples.
    """

    base: Tensor

    def __init__(
        self, grid: IntegerGrid, kind: str, *, learn_zero: bool, device: torch.device, of_samples: bool = False
    ) -> None:
        super().__init__()
        self._grid, self._kind = grid, kind
        self._low, self._high = (float(limit) for limit in grid.limits)
        self.register_buffer("base", as_tensor(np.array(np.atleast_1d(grid.scale)), device))
        # v, in the shape of the grid's scale, [1] for one scale
        self.growth = nn.Parameter(torch.full_like(self.base, self._start))
        zero = as_tensor(np.array(grid.zero_point, np.float32), device)
        self.learns_zero, self._of_samples = learn_zero, of_samples
        # a float that is rounded when it is used; a parameter where it is learned
        if learn_zero:
            self.zero: Tensor = nn.Parameter(zero)
        else:
            self.register_buffer("zero", zero)
        self._limit()

    @property
    def granularity(self) -> Granularity:
        """What shares a scale."""
        return self._grid.granularity

    def scale(self) -> Tensor:
        """The scales as they are now, float32 in the shape of ``growth``; differentiable."""
        growth = self.growth.clamp(-_FARTHEST, _FARTHEST)
        if self._kind == "power_of_two":
            growth = growth + (torch.ceil(growth) - growth).detach()
            return self.base * torch.exp2(growth)
        scale = self.base * torch.exp2(growth)
        if self._kind == "float32":
            return scale
        snapped: Tensor = _snapped(scale.detach(), self._kind)
        return scale + (snapped - scale).detach()

    def forward(self, values: Tensor) -> Tensor:
        """``values`` as the grid represents them, same shape: as ``IntegerGrid.fake``."""
        values = values.float()  # autocast may give less
        scale = spread(self.scale(), self.granularity, values.shape)
        if self._steps is not None:
            low, high = self._steps
            return cast(Tensor, _LearnedStep.apply(values, scale, low, high, self._share(values)))  # type: ignore[no-untyped-call]
        zero = spread(self.zero, self.granularity, values.shape)
        made = _LearnedOffset.apply(values, scale, zero, self._low, self._high, self._share(values))  # type: ignore[no-untyped-call]
        return cast(Tensor, made)

    def _share(self, values: Tensor) -> float:
        """1 / sqrt(N Q): N elements of a weight, or of one sample, share a scale, Q is the largest step."""
        elements = values.numel() // (max(values.shape[0], 1) if self._of_samples and values.dim() else 1)
        return 1.0 / math.sqrt(max(elements // self.base.numel(), 1) * self._positive)

    @torch.no_grad()
    def integers(self, values: Tensor) -> Tensor:
        """Steps from the zero point that ``values`` are rounded to, as floats of the same shape."""
        scale = spread(self.scale(), self.granularity, values.shape)
        if self._steps is not None:
            return torch.round(values / scale).clamp(*self._steps)
        zero = torch.round(spread(self.zero, self.granularity, values.shape)).clamp(self._low, self._high)
        return torch.clamp(torch.round(values / scale), self._low - zero, self._high - zero)

    @torch.no_grad()
    def grid(self) -> IntegerGrid:
        """The grid as it is now."""
        scale = self.scale().cpu().numpy().astype(np.float32).reshape(self._grid.scale.shape)
        if not self.learns_zero:
            return replace(self._grid, scale=scale)
        return replace(self._grid, scale=scale, zero_point=self._zero_point())

    def follow(self, grid: IntegerGrid) -> None:
        """Go to where something else has moved the grid, if it has."""
        now = self.grid()
        if not np.array_equal(now.scale, grid.scale) or not np.array_equal(now.zero_point, grid.zero_point):
            self.restart(grid)

    @torch.no_grad()
    def restart(self, grid: IntegerGrid) -> None:
        """Start anew from another grid of the same type."""
        self.base.copy_(as_tensor(np.array(np.atleast_1d(grid.scale)), self.base.device))
        self.growth.fill_(self._start)
        self.zero.copy_(as_tensor(np.array(grid.zero_point, np.float32), self.zero.device))
        self._limit()

    @property
    def _start(self) -> float:
        return _MIDDLE if self._kind == "power_of_two" else 0.0

    @torch.no_grad()
    def _limit(self) -> None:
        """Limits from the zero point as plain numbers, where one pair serves all and stays."""
        zero_point = self._zero_point()
        self._grid = replace(self._grid, zero_point=zero_point)
        one = zero_point.size == 1 or not zero_point.any()
        offset = float(zero_point.reshape(-1)[0]) if one else 0.0
        self._steps = (self._low - offset, self._high - offset) if one and not self.learns_zero else None
        self._positive = max(abs(self._low - offset), abs(self._high - offset), 1.0)

    def _zero_point(self) -> np.ndarray:
        zero = torch.round(self.zero.detach()).clamp(self._low, self._high).cpu().numpy()
        return zero.astype(memory_type(self._grid.dtype)).reshape(self._grid.zero_point.shape)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._limit()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _snapped(scale: Tensor, kind: str) -> Tensor:
    """``snap_scale`` for tensors; numpy breaks a compiled graph here."""
    return as_tensor(snap_scale(scale.cpu().numpy().astype(np.float64), kind).astype(np.float32), scale.device)


def spread(scales: Tensor, granularity: Granularity, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """``granularity.spread`` for tensors, differentiable."""
    if isinstance(granularity, PerTensor):
        return scales.reshape(())
    if isinstance(granularity, PerAxis):
        return scales.reshape([-1 if k == granularity.axis % len(shape) else 1 for k in range(len(shape))])
    axis = granularity.axis % len(shape)
    return scales.repeat_interleave(granularity.size, dim=axis).narrow(axis, 0, shape[axis])


class _LearnedStep(torch.autograd.Function):
    """The zero point stays: the limits are plain numbers."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor, low: float, high: float, share: float) -> Tensor:
        ctx.save_for_backward(values, scale)
        ctx.limits = low, high, share
        return torch.div(values, scale).round_().clamp_(low, high).mul_(scale).add_(0.0)  # integers know no -0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, scale = ctx.saved_tensors
        low, high, share = ctx.limits
        gradient = gradients[0]
        quotient = torch.div(values, scale)
        steps = quotient.round()
        held = steps.clamp(low, high)
        inside = steps.eq_(held)  # as floats: products with masks of bools are slow
        by_values = gradient * inside
        if not ctx.needs_input_grad[1]:
            return by_values, None, None, None, None
        # q - W / s inside, q where it saturates
        by_scale = held.addcmul_(quotient, inside, value=-1.0).mul_(gradient)
        shared = by_scale.sum_to_size(scale.shape) * share
        return by_values, shared, None, None, None


class _LearnedOffset(torch.autograd.Function):
    """The zero point moves, or differs from scale to scale."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor, zero: Tensor, low: float, high: float, share: float) -> Tensor:
        ctx.save_for_backward(values, scale, zero)
        ctx.limits = low, high, share
        whole = torch.round(zero).clamp(low, high)
        return torch.clamp(torch.round(values / scale), low - whole, high - whole) * scale + 0.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, scale, zero = ctx.saved_tensors
        low, high, share = ctx.limits
        gradient = gradients[0]
        whole = torch.round(zero).clamp(low, high)
        quotient = values / scale
        steps = torch.round(quotient)
        held = torch.clamp(steps, low - whole, high - whole)
        inside = steps == held
        by_scale = by_zero = None
        if ctx.needs_input_grad[1]:
            by_scale = (torch.where(inside, held - quotient, held) * gradient).sum_to_size(scale.shape) * share
        if ctx.needs_input_grad[2]:
            # a value that saturates follows the end of the range: x = (low - z) s
            by_zero = (-scale * gradient * ~inside).sum_to_size(zero.shape) * share
        return gradient * inside, by_scale, by_zero, None, None, None


# Weights that jump to and fro between two integers, and how they are held.
#
# Nagel, Fournarakis, Bondarenko and Blankevoort 2022, Overcoming Oscillations in Quantization-Aware Training (arXiv
# 2203.11086), algorithm 1.

_MOMENTUM = 0.01
# The threshold of freezing begins here where the one of the end is not above it: the authors let it fall from 0.1 over
# the whole training, so that it is near this in the second half.
_FIRST_THRESHOLD = 0.04
# A weight counts as oscillating above this frequency, as the paper counts them.
_OSCILLATING = 0.005
_BEGIN = 0.5
State = dict[str, np.ndarray[Any, Any]]
# Tensors that make the state of an ``Oscillations``.
_STATE = ("last", "direction", "frequency", "average", "frozen")


def freezing_threshold(final: float, step: int, total: int) -> float | None:
    """The frequency of jumps above which weights are frozen in one step; None in the first half of the training.

    It falls on half a cosine from 0.04, or ``final`` if that is more, to ``final`` in the last step.

    ``final`` is in jumps a step; steps count from 0.
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

    ``momentum`` is that of both averages, m of the paper.

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
        return {name: getattr(self, f"_{name}").cpu().numpy().copy() for name in _STATE}

    def load_state(self, state: Mapping[str, np.ndarray[Any, Any]], device: torch.device) -> None:
        """Go on from a checkpoint.

        Raises:
            KeyError: it is of something else.
        """
        if not state:
            self._last, self.may_hold = None, False
            return
        held = {name: torch.from_numpy(np.array(state[name], order="C")).to(device) for name in _STATE}
        for name, tensor in held.items():
            setattr(self, f"_{name}", tensor)
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
