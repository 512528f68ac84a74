"""How an operator is given in torch, and what it is given of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from torch import Tensor

from worker.quantizer.graph.values import AttributeValue, plain_attributes

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


def attributes_of(node: ir.Node) -> dict[str, AttributeValue | np.ndarray]:
    """The attributes of a node as its operator takes them: numbers, words, tuples of numbers, and arrays.

    A Split into equal parts before opset 18 gets its ``num_outputs``.
    """
    found: dict[str, AttributeValue | np.ndarray] = {**plain_attributes(node)}
    for name, attribute in node.attributes.items():
        if attribute.type is ir.AttributeType.TENSOR:
            found[name] = attribute.as_tensor().numpy()
    if node.op_type == "Split":
        found.setdefault("num_outputs", len(node.outputs))
    return found
