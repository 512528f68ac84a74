"""How an operator is given in torch, and what it may rely on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

# Of a node, by name: ints, floats, strings, tuples of them, and numpy arrays.
Attributes = Mapping[str, Any]
# Called as f(attributes, *inputs), None for an input that is left out; gives a tuple where a node has several outputs.
Operator = Callable[..., Tensor | tuple[Tensor, ...]]
# An input that says how something is computed: numbers where it is constant, a tensor where it is found at run time.
Numbers = tuple[int, ...] | Tensor
Fractions = tuple[float, ...] | Tensor


def whole_numbers(given: Numbers) -> tuple[int, ...]:
    """A static input as ints, one for each of its elements."""
    return tuple(map(int, given.reshape(-1).tolist() if isinstance(given, Tensor) else given))


def fractions(given: Fractions) -> tuple[float, ...]:
    """A static input as floats, one for each of its elements."""
    return tuple(map(float, given.reshape(-1).tolist() if isinstance(given, Tensor) else given))
