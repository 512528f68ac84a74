"""Arithmetic, comparisons and logic of elements, with the broadcasting of numpy."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from worker.quantizer.autodiff.operators.forms import Attributes, Operator


def _div(_: Attributes, one: Tensor, other: Tensor) -> Tensor:
    """Integers are cut off towards 0."""
    return one / other if one.is_floating_point() else torch.div(one, other, rounding_mode="trunc")


def _pow(_: Attributes, base: Tensor, exponent: Tensor) -> Tensor:
    return torch.pow(base, exponent).to(base.dtype)


def _mod(attributes: Attributes, one: Tensor, other: Tensor) -> Tensor:
    """With the sign of the divisor, or with ``fmod`` of what is divided."""
    return torch.fmod(one, other) if attributes.get("fmod", 0) else torch.remainder(one, other)


def _is_inf(attributes: Attributes, x: Tensor) -> Tensor:
    positive, negative = attributes.get("detect_positive", 1), attributes.get("detect_negative", 1)
    return (torch.isposinf(x) & bool(positive)) | (torch.isneginf(x) & bool(negative))


def _sum(_: Attributes, *terms: Tensor) -> Tensor:
    return reduce(torch.add, terms)


COMPUTE: dict[str, Operator] = {
    "Abs": lambda _, x: torch.abs(x),
    "Acos": lambda _, x: torch.acos(x),
    "Acosh": lambda _, x: torch.acosh(x),
    "Add": lambda _, one, other: one + other,
    "And": lambda _, one, other: torch.logical_and(one, other),
    "Asin": lambda _, x: torch.asin(x),
    "Asinh": lambda _, x: torch.asinh(x),
    "Atan": lambda _, x: torch.atan(x),
    "Atanh": lambda _, x: torch.atanh(x),
    "Ceil": lambda _, x: torch.ceil(x),
    "Cos": lambda _, x: torch.cos(x),
    "Cosh": lambda _, x: torch.cosh(x),
    "Div": _div,
    "Equal": lambda _, one, other: torch.eq(one, other),
    "Erf": lambda _, x: torch.erf(x),
    "Exp": lambda _, x: torch.exp(x),
    "Floor": lambda _, x: torch.floor(x),
    "Greater": lambda _, one, other: torch.gt(one, other),
    "GreaterOrEqual": lambda _, one, other: torch.ge(one, other),
    "Identity": lambda _, x: x,
    "IsInf": _is_inf,
    "IsNaN": lambda _, x: torch.isnan(x),
    "Less": lambda _, one, other: torch.lt(one, other),
    "LessOrEqual": lambda _, one, other: torch.le(one, other),
    "Log": lambda _, x: torch.log(x),
    "Max": lambda _, *terms: reduce(torch.maximum, terms),
    "Mean": lambda _, *terms: _sum(_, *terms) / len(terms),
    "Min": lambda _, *terms: reduce(torch.minimum, terms),
    "Mod": _mod,
    "Mul": lambda _, one, other: one * other,
    "Neg": lambda _, x: torch.neg(x),
    "Not": lambda _, x: torch.logical_not(x),
    "Or": lambda _, one, other: torch.logical_or(one, other),
    "Pow": _pow,
    "Reciprocal": lambda _, x: torch.reciprocal(x),
    "Round": lambda _, x: torch.round(x),
    "Sign": lambda _, x: torch.sign(x),
    "Sin": lambda _, x: torch.sin(x),
    "Sinh": lambda _, x: torch.sinh(x),
    "Sqrt": lambda _, x: torch.sqrt(x),
    "Sub": lambda _, one, other: one - other,
    "Sum": _sum,
    "Tan": lambda _, x: torch.tan(x),
    "Where": lambda _, condition, one, other: torch.where(condition, one, other),
    "Xor": lambda _, one, other: torch.logical_xor(one, other),
}
STATIC: dict[str, frozenset[int]] = {}
