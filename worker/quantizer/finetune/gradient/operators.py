"""What a unit computes in torch: limits pass a gradient back inside (see ``clip_inward``)."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from worker.quantizer.autodiff.operators import COMPUTE
from worker.quantizer.autodiff.operators.forms import Operator
from worker.quantizer.finetune.reconstruction.unit import OPERATORS

Limit = float | Tensor


class _ClipInward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, low: Limit, high: Limit) -> Tensor:
        ctx.save_for_backward(values)
        ctx.limits = (low, high)
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            held = torch.maximum(values, low) if isinstance(low, Tensor) else values.clamp(min=low)
            return torch.minimum(held, high) if isinstance(high, Tensor) else held.clamp(max=high)
        return values.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (values,) = ctx.saved_tensors
        low, high = ctx.limits
        gradient = gradients[0]
        outward = ((values < low) & (gradient > 0)) | ((values > high) & (gradient < 0))
        return gradient.masked_fill(outward, 0.0), None, None


def clip_inward(values: Tensor, low: Limit, high: Limit) -> Tensor:
    """``values`` within [low, high], with a gradient wherever a step against it leads towards the interval.

    Where a value was cut off wrongly, because the float network's lies inside, the plain derivative is 0 and the error
    would stay for good.
    """
    return cast(Tensor, _ClipInward.apply(values, low, high))  # type: ignore[no-untyped-call]


def _limited(one: Tensor, other: Tensor, *, low: bool) -> Tensor:
    """Min or Max of a tensor and a limit per channel, the constant of the two."""
    x, limit = one, other
    if x.dim() < limit.dim() or x.numel() < limit.numel():
        x, limit = limit, x
    return clip_inward(x, limit, math.inf) if low else clip_inward(x, -math.inf, limit)


# In place of the true derivative; a Clip has its limits among its attributes.
_INWARD: dict[str, Operator] = {
    "Clip": lambda attributes, x, *_: clip_inward(x, attributes["low"], attributes["high"]),
    "Max": lambda _, one, other: _limited(one, other, low=True),
    "Min": lambda _, one, other: _limited(one, other, low=False),
    "Relu": lambda _, x: clip_inward(x, 0.0, math.inf),
}
UNIT_COMPUTE: dict[str, Operator] = {name: _INWARD.get(name, COMPUTE[name]) for name in sorted(OPERATORS)}
