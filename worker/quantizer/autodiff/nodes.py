"""Nodes of a graph as the operators take them, and why a node cannot be taken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.autodiff.operators import COMPUTE
from worker.quantizer.autodiff.operators.making import TORCH_DTYPES
from worker.quantizer.autodiff.operators.resizing import COORDINATES
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    AttributeValue,
    constant,
    int_attribute,
    plain_attributes,
    string_attribute,
)

NOT_IN_TORCH = declare(
    "no-derivative", "there is no derivative of {op_type}", hint="Train with parts of the network that do without it."
)
HAS_BODY = declare("derivative-of-body", "{op_type} has a body, which is not trained through")
NOT_OFFERED = declare("derivative-not-offered", "there is no derivative of {op_type} with {what}")

_SEVERAL_OUTPUTS = frozenset({"Split", "TopK"})


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


def refusal(node: ir.Node) -> Reason | None:
    """Why a node cannot be trained through; None if it can."""
    if any(each.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for each in node.attributes.values()):
        return HAS_BODY(op_type=node.op_type)
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in COMPUTE:
        return NOT_IN_TORCH(op_type=node.op_type)
    what = _LIMITS[node.op_type](node) if node.op_type in _LIMITS else None
    if what is None and node.op_type not in _SEVERAL_OUTPUTS and any(map(_is_used, node.outputs[1:])):
        what = "more than one output"
    return None if what is None else NOT_OFFERED(op_type=node.op_type, what=what)


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _resize(node: ir.Node) -> str | None:
    coordinates = string_attribute(node, "coordinate_transformation_mode", "half_pixel")
    if coordinates not in COORDINATES:
        return f"coordinate_transformation_mode {coordinates}"
    return "antialias" if int_attribute(node, "antialias", 0) else None


def _batch_norm(node: ir.Node) -> str | None:
    return "training_mode" if int_attribute(node, "training_mode", 0) else None


def _dropout(node: ir.Node) -> str | None:
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    known = constant(mode)
    return None if mode is None or (known is not None and not known.any()) else "training_mode"


def _offered_type(node: ir.Node, name: str) -> str | None:
    kind = ir.DataType(int_attribute(node, name, ir.DataType.FLOAT))
    return None if kind in TORCH_DTYPES else f"type {kind}"


def _offered_value(node: ir.Node) -> str | None:
    for name, attribute in node.attributes.items():
        if attribute.type is ir.AttributeType.TENSOR:
            kind = attribute.as_tensor().dtype
            if kind not in TORCH_DTYPES or kind == ir.DataType.BFLOAT16:
                return f"type {kind}"
        elif name in ("sparse_value", "value_string", "value_strings"):
            return name
    return None


# By operator: what of a node is not offered, None if all of it is.
_LIMITS: dict[str, Callable[[ir.Node], str | None]] = {
    "BatchNormalization": _batch_norm,
    "Cast": lambda node: _offered_type(node, "to"),
    "Constant": _offered_value,
    "ConstantOfShape": _offered_value,
    "Dropout": _dropout,
    "EyeLike": lambda node: _offered_type(node, "dtype"),
    "Resize": _resize,
}
