"""Functions of one value each, and those of the Softmax family."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Operator
from worker.quantizer.ops.record import Operator as Record
from worker.quantizer.ops.record import TorchForm
from worker.quantizer.ops.table import OPERATORS

# Defaults of Selu (Klambauer et al. 2017), as the operator reference gives them.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _clip(_: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return x if low is None and high is None else torch.clamp(x, low, high)


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
    arguments = record.attributes.items()

    def compute(attributes: Attributes, *inputs: Tensor | None) -> Tensor:
        named = {argument: attributes.get(name, default) for argument, (name, default) in arguments}
        return cast(Tensor, function(*inputs, **named))

    return compute


COMPUTE: dict[str, Operator] = {
    **{op_type: _compute(record, record.torch) for op_type, record in OPERATORS.items() if record.torch is not None},
    "Clip": _clip,
    "Hardmax": _hardmax,
    "Selu": _selu,
    "Shrink": _shrink,
}
STATIC: dict[str, frozenset[int]] = {}
