"""Functions of one value each, and those of the Softmax family."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Operator

# Defaults of Selu (Klambauer et al. 2017), as the operator reference gives them.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _clip(_: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return x if low is None and high is None else torch.clamp(x, low, high)


def _hard_sigmoid(attributes: Attributes, x: Tensor) -> Tensor:
    alpha, beta = float(attributes.get("alpha", 0.2)), float(attributes.get("beta", 0.5))
    return (x * alpha + beta).clamp(0.0, 1.0)


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


COMPUTE: dict[str, Operator] = {
    "Celu": lambda attributes, x: functional.celu(x, attributes.get("alpha", 1.0)),
    "Clip": _clip,
    "Elu": lambda attributes, x: functional.elu(x, attributes.get("alpha", 1.0)),
    "Gelu": lambda attributes, x: functional.gelu(x, approximate=attributes.get("approximate", "none")),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda _, x: functional.hardswish(x),
    "Hardmax": _hardmax,
    "LeakyRelu": lambda attributes, x: functional.leaky_relu(x, attributes.get("alpha", 0.01)),
    "LogSoftmax": lambda attributes, x: torch.log_softmax(x, dim=attributes.get("axis", -1)),
    "Mish": lambda _, x: functional.mish(x),
    "PRelu": lambda _, x, slope: torch.where(x < 0.0, x * slope, x),
    "Relu": lambda _, x: torch.relu(x),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": lambda _, x: torch.sigmoid(x),
    "Softmax": lambda attributes, x: torch.softmax(x, dim=attributes.get("axis", -1)),
    "Softplus": lambda _, x: functional.softplus(x),
    "Softsign": lambda _, x: functional.softsign(x),
    "Tanh": lambda _, x: torch.tanh(x),
    "ThresholdedRelu": lambda attributes, x: functional.threshold(x, attributes.get("alpha", 1.0), 0.0),
}
STATIC: dict[str, frozenset[int]] = {}
