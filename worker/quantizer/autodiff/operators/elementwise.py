"""Operators of elements: arithmetic, activations, Softmax, limits with gradients inside, tensors made of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Fractions, Numbers, Operator, whole_numbers
from worker.quantizer.ops.table import OPERATORS, TorchForm
from worker.quantizer.ops.table import Operator as Record


def _div(_: Attributes, one: Tensor, other: Tensor) -> Tensor:
    """Integers are cut off towards 0."""
    return one / other if one.is_floating_point() else torch.div(one, other, rounding_mode="trunc")


def _mod(attributes: Attributes, one: Tensor, other: Tensor) -> Tensor:
    """With the sign of the divisor, or with ``fmod`` of what is divided."""
    return torch.fmod(one, other) if attributes.get("fmod", 0) else torch.remainder(one, other)


def _is_inf(attributes: Attributes, x: Tensor) -> Tensor:
    positive, negative = attributes.get("detect_positive", 1), attributes.get("detect_negative", 1)
    return (torch.isposinf(x) & bool(positive)) | (torch.isneginf(x) & bool(negative))


def _sum(_: Attributes, *terms: Tensor) -> Tensor:
    return reduce(torch.add, terms)


# Functions of one value each, those of the Softmax family, and limits that pass a gradient back inside.

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


# Tensors made of numbers and shapes, and types. What depends on no tensor is made on the CPU.

TORCH_DTYPES: dict[ir.DataType, torch.dtype] = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.BOOL: torch.bool,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.UINT8: torch.uint8,
}


def _constant(attributes: Attributes) -> Tensor:
    if "value" in attributes:
        return torch.from_numpy(np.array(attributes["value"]))
    ((name, value),) = ((name, value) for name, value in attributes.items() if name.startswith("value_"))
    return torch.tensor(value, dtype=torch.float32 if "float" in name else torch.int64)


def _constant_of_shape(attributes: Attributes, shape: Numbers) -> Tensor:
    value = torch.from_numpy(np.array(attributes.get("value", np.zeros(1, np.float32)))).reshape(())
    made = value.expand(whole_numbers(shape)).clone()
    return made.to(shape.device) if isinstance(shape, Tensor) else made


def _range(_: Attributes, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    count = max(0, math.ceil((limit.item() - start.item()) / delta.item()))
    return start + torch.arange(count, device=start.device).to(start.dtype) * delta


def _shape(attributes: Attributes, x: Tensor) -> Tensor:
    sizes = tuple(x.shape)[attributes.get("start", 0) : attributes.get("end")]
    return torch.tensor(sizes, dtype=torch.int64, device=x.device)


def _eye_like(attributes: Attributes, x: Tensor) -> Tensor:
    dtype = TORCH_DTYPES[ir.DataType(attributes["dtype"])] if "dtype" in attributes else x.dtype
    rows, columns, k = *x.shape, attributes.get("k", 0)
    below = torch.arange(rows, device=x.device)[:, None] + k
    return torch.eq(below, torch.arange(columns, device=x.device)).to(dtype)


def _plain(function: Callable[..., Tensor]) -> Operator:
    return lambda _, *inputs: function(*inputs)


# torch has these under the same names, in lower case.
_ALIKE = (
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "IsNaN",
    "Log",
    "Neg",
    "Reciprocal",
    "Round",
    "Sign",
    "Sin",
    "Sinh",
    "Sqrt",
    "Tan",
)

COMPUTE: dict[str, Operator] = {
    **{op_type: _plain(getattr(torch, op_type.lower())) for op_type in _ALIKE},
    "Add": lambda _, one, other: one + other,
    "And": lambda _, one, other: torch.logical_and(one, other),
    "Div": _div,
    "Equal": lambda _, one, other: torch.eq(one, other),
    "Greater": lambda _, one, other: torch.gt(one, other),
    "GreaterOrEqual": lambda _, one, other: torch.ge(one, other),
    "Identity": lambda _, x: x,
    "IsInf": _is_inf,
    "Less": lambda _, one, other: torch.lt(one, other),
    "LessOrEqual": lambda _, one, other: torch.le(one, other),
    "Max": lambda _, *terms: reduce(torch.maximum, terms),
    "Mean": lambda _, *terms: _sum(_, *terms) / len(terms),
    "Min": lambda _, *terms: reduce(torch.minimum, terms),
    "Mod": _mod,
    "Mul": lambda _, one, other: one * other,
    "Not": lambda _, x: torch.logical_not(x),
    "Or": lambda _, one, other: torch.logical_or(one, other),
    "Pow": lambda _, base, exponent: torch.pow(base, exponent).to(base.dtype),
    "Sub": lambda _, one, other: one - other,
    "Sum": _sum,
    "Where": lambda _, condition, one, other: torch.where(condition, one, other),
    "Xor": lambda _, one, other: torch.logical_xor(one, other),
    **{op_type: _compute(record, record.torch) for op_type, record in OPERATORS.items() if record.torch is not None},
    "Clip": _clip,
    "Hardmax": _hardmax,
    "Selu": _selu,
    "Shrink": _shrink,
    "Cast": lambda attributes, x: x.to(TORCH_DTYPES[ir.DataType(attributes["to"])]),
    "CastLike": lambda _, x, like: x.to(like.dtype),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": lambda _, x, *_rest: x,
    "EyeLike": _eye_like,
    "Range": _range,
    "Shape": _shape,
    "Size": lambda _, x: torch.tensor(x.numel(), dtype=torch.int64, device=x.device),
}
STATIC: dict[str, frozenset[int]] = {
    "Clip": frozenset({1, 2}),
    "ConstantOfShape": frozenset({0}),
}
