"""Arithmetic of elements, with the broadcasting of numpy."""

from __future__ import annotations

from functools import reduce

import torch

from worker.quantizer.autodiff.operators.forms import Operator

COMPUTE: dict[str, Operator] = {
    "Add": lambda _, one, other: one + other,
    "Identity": lambda _, x: x,
    "Max": lambda _, *terms: reduce(torch.maximum, terms),
    "Min": lambda _, *terms: reduce(torch.minimum, terms),
    "Mul": lambda _, one, other: one * other,
}
