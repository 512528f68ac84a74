"""Functions of one value each, those of the Softmax family, and limits that pass a gradient back inside."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Fractions, Operator
from worker.quantizer.ops.record import Operator as Record
from worker.quantizer.ops.record import TorchForm
from worker.quantizer.ops.table import OPERATORS

Limit = float | Tensor

# Defaults of Selu (Klambauer et al. 2017), as the operator reference gives them.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _clip(_: Attributes, x: Tensor, low: Fractions | None = None, high: Fractions | None = None) -> Tensor:
    if low is None and high is None:
        return x
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return torch.clamp(x, _as_tensor(low, x), _as_tensor(high, x))
    return torch.clamp(x, None if low is None else low[0], None if high is None else high[0])


def _as_tensor(limit: Fractions | None, like: Tensor) -> Tensor | None:
    return like.new_tensor(limit[0]) if isinstance(limit, tuple) else limit


def _selu(attributes: Attributes, x: Tensor) -> Tensor:
    gamma = float(attributes.get("gamma", _SELU_GAMMA))
    return functional.elu(x, attributes.get("alpha", _SELU_ALPHA)) * gamma


def _shrink(attributes: Attributes, x: Tensor) -> Tensor:
    bias, limit = attributes.get("bias", 0.0), attributes.get("lambd", 0.5)
    kept = torch.where(x > limit, x - bias, torch.zeros_like(x))
    return torch.where(x < -limit, x + bias, kept)


def _hardmax(attributes: Attributes, x: Tensor) -> Tensor:
    """1 at the first of the largest, 0 elsewhere."""
    axis = attributes.get("axis", -1)
    return torch.zeros_like(x).scatter(axis, x.argmax(dim=axis, keepdim=True), 1.0)


def _compute(record: Record, form: TorchForm) -> Operator:
    """The torch form of a record as a function of a node's attributes and inputs."""
    function = getattr(functional, form) if isinstance(form, str) else form
    arguments = tuple((argument, name, default) for argument, (name, default) in record.attributes.items())

    def compute(attributes: Attributes, *inputs: Tensor | None) -> Tensor:
        named = {argument: attributes.get(name, default) for argument, name, default in arguments}
        return cast(Tensor, function(*inputs, **named))

    return compute


COMPUTE: dict[str, Operator] = {
    **{op_type: _compute(record, record.torch) for op_type, record in OPERATORS.items() if record.torch is not None},
    "Clip": _clip,
    "Hardmax": _hardmax,
    "Selu": _selu,
    "Shrink": _shrink,
}
STATIC: dict[str, frozenset[int]] = {"Clip": frozenset({1, 2})}


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


def _limit(given: Fractions | None, default: float) -> Limit:
    return default if given is None else given[0]


def _limited(one: Tensor, other: Tensor, *, low: bool) -> Tensor:
    """Min or Max of a tensor and a limit per channel, the constant of the two."""
    x, limit = one, other
    if x.dim() < limit.dim() or x.numel() < limit.numel():
        x, limit = limit, x
    return clip_inward(x, limit, math.inf) if low else clip_inward(x, -math.inf, limit)


# For training towards a target that lies within the limits, in place of the true derivative.
INWARD: dict[str, Operator] = {
    "Clip": lambda _, x, low=None, high=None: clip_inward(x, _limit(low, -math.inf), _limit(high, math.inf)),
    "Max": lambda _, one, other: _limited(one, other, low=True),
    "Min": lambda _, one, other: _limited(one, other, low=False),
    "Relu": lambda _, x: clip_inward(x, 0.0, math.inf),
}
