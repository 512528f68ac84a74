"""Why a node of a graph cannot be computed in torch with a derivative."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.autodiff.operators import COMPUTE
from worker.quantizer.autodiff.operators.elementwise import TORCH_DTYPES
from worker.quantizer.autodiff.operators.resizing import COORDINATES
from worker.quantizer.graph.rewriting import axis_length, rank_of
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    constant,
    float_attribute,
    int_attribute,
    plain_attributes,
    string_attribute,
)
from worker.quantizer.ops.windows import PoolPlaces

NOT_IN_TORCH = declare(
    "no-derivative", "there is no derivative of {op_type}", hint="Train with parts of the network that do without it."
)
HAS_BODY = declare("derivative-of-body", "{op_type} has a body, which is not trained through")
NOT_OFFERED = declare("derivative-not-offered", "there is no derivative of {op_type} with {what}")

_SEVERAL_OUTPUTS = frozenset({"Split", "TopK"})


def refusal(node: ir.Node) -> Reason | None:
    """Why a node cannot be trained through; None if it can."""
    if any(each.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for each in node.attributes.values()):
        return HAS_BODY(op_type=node.op_type)
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in COMPUTE:
        return NOT_IN_TORCH(op_type=node.op_type)
    what = _LIMITS[node.op_type](node) if node.op_type in _LIMITS else None
    if what is None and (node.op_type in _NOT_EMPTY or node.op_type.startswith("Reduce")) and _is_empty(node):
        what = "an empty tensor"
    if what is None and node.op_type in _OF_FLOATS and not _has_floats(node):
        what = "integers"
    if what is None and node.op_type not in _SEVERAL_OUTPUTS and any(map(_is_used, node.outputs[1:])):
        what = "more than one output"
    return None if what is None else NOT_OFFERED(op_type=node.op_type, what=what)


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _is_empty(node: ir.Node) -> bool:
    """True if an input is known to have no elements: the runtime's results are then no rule to go by."""
    read = [value for value in node.inputs[: _NOT_EMPTY.get(node.op_type, 1)] if value is not None]
    return any(value.shape is not None and 0 in value.shape for value in read)


def _has_floats(node: ir.Node) -> bool:
    value = node.inputs[0]
    return value is None or value.dtype is None or value.dtype.is_floating_point()


def _pool(node: ir.Node) -> str | None:
    """Windows that are larger than what they move over, or that the runtime cuts, as far as that is known."""
    value = node.inputs[0]
    sizes = [axis_length(value, axis) for axis in range(2, rank_of(value) or 2)] if value is not None else []
    known = tuple(length for length in sizes if length is not None)
    if len(known) < len(sizes):
        return None
    places = PoolPlaces.of(plain_attributes(node), known)
    room = (sum(each) for each in zip(places.size, places.before, places.after, strict=True))
    if any(places.reach(k) > length for k, length in enumerate(room)):
        return "windows beyond its input"
    cut = min(places.after, default=0) < 0 and max(places.window.dilations, default=1) > 1
    return "gaps between taps and less room than input" if cut and node.op_type == "AveragePool" else None


def _resize(node: ir.Node) -> str | None:
    coordinates = string_attribute(node, "coordinate_transformation_mode", "half_pixel")
    if coordinates not in COORDINATES:
        return f"coordinate_transformation_mode {coordinates}"
    policy, axes = string_attribute(node, "keep_aspect_ratio_policy", "stretch"), plain_attributes(node).get("axes", ())
    if policy != "stretch" and isinstance(axes, tuple) and min(axes, default=0) < 0:
        return f"keep_aspect_ratio_policy {policy} and negative axes"  # the runtime leaves such axes out of account
    return "antialias" if int_attribute(node, "antialias", 0) else None


def _mean_variance(node: ir.Node) -> str | None:
    """Axes that the tensor does not have, as the default ones are those of images; or that hold one element."""
    axes, rank = plain_attributes(node).get("axes", (0, 2, 3)), rank_of(node.inputs[0])
    if rank is None or not isinstance(axes, tuple):
        return None
    if max(axes, default=0) >= rank:
        return f"axes {axes} of {rank}"
    value = node.inputs[0]
    return "one element" if value is not None and all(axis_length(value, int(axis)) == 1 for axis in axes) else None


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


# Operators whose first inputs, and how many of these, must not be empty; reductions beside them.
_NOT_EMPTY = {"ArgMax": 1, "ArgMin": 1, "BatchNormalization": 1, "Gemm": 2, "Hardmax": 1, "MatMul": 2, "Pad": 1}
_OF_FLOATS = frozenset({"ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "Shrink"})
# By operator: what of a node is not offered, None if all of it is.
_LIMITS: dict[str, Callable[[ir.Node], str | None]] = {
    "AveragePool": _pool,
    "BatchNormalization": _batch_norm,
    "Cast": lambda node: _offered_type(node, "to"),
    "Celu": lambda node: None if float_attribute(node, "alpha", 1.0) else "alpha 0",
    "Constant": _offered_value,
    "ConstantOfShape": _offered_value,
    "Dropout": _dropout,
    "EyeLike": lambda node: _offered_type(node, "dtype"),
    "LRN": lambda node: None if float_attribute(node, "bias", 1.0) else "bias 0",
    "LpPool": _pool,
    "MaxPool": _pool,
    "MeanVarianceNormalization": _mean_variance,
    "Resize": _resize,
}
