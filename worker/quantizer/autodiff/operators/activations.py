"""Functions of one value each, and Softmax."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Operator


def _clip(_: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return x if low is None and high is None else torch.clamp(x, low, high)


def _hard_sigmoid(attributes: Attributes, x: Tensor) -> Tensor:
    alpha, beta = float(attributes.get("alpha", 0.2)), float(attributes.get("beta", 0.5))
    return (x * alpha + beta).clamp(0.0, 1.0)


COMPUTE: dict[str, Operator] = {
    "Clip": _clip,
    "Gelu": lambda attributes, x: functional.gelu(x, approximate=attributes.get("approximate", "none")),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda _, x: functional.hardswish(x),
    "LeakyRelu": lambda attributes, x: functional.leaky_relu(x, attributes.get("alpha", 0.01)),
    "PRelu": lambda _, x, slope: torch.where(x < 0.0, x * slope, x),
    "Relu": lambda _, x: torch.relu(x),
    "Sigmoid": lambda _, x: torch.sigmoid(x),
    "Softmax": lambda attributes, x: torch.softmax(x, dim=attributes.get("axis", -1)),
    "Tanh": lambda _, x: torch.tanh(x),
}
