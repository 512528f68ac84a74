"""Nodes of every operator that there is in torch, drawn from the operators' own schemas: each attribute of each version
is left out or takes one of its values, optional inputs are left out, shapes go from rank 0 to 5 and may be empty.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from tests.unit.quantizer.autodiff.schema_draw import Draw
from tests.unit.quantizer.autodiff.schema_inputs import INPUTS, alike, like
from worker.quantizer.autodiff.operators import STATIC

LOWEST, HIGHEST = 13, 23
_YOUNGER = {"Swish": 24}
_MINE = {"SimplifiedLayerNormalization": "RMSNormalization"}  # onnxruntime's own; its schema is that of the standard


def _window(low: int, high: int, times: int = 1) -> Callable[[Draw], list[int]]:
    return lambda draw: [draw.below(low, high) for _ in range(draw.spatial * times)]


def _kernel(draw: Draw) -> list[int]:
    x = draw.inputs[0]
    return [draw.below(1, min(3, length)) for length in x.shape[2:]] if x is not None else []


def _mode(draw: Draw) -> str:
    words = {
        "Resize": ("nearest", "linear", "cubic"),
        "Pad": ("constant", "reflect", "edge", "wrap"),
        "GridSample": ("bilinear", "nearest", "bicubic", "linear", "cubic"),
        "DepthToSpace": ("DCR", "CRD"),
    }
    return str(draw.one(*words[draw.op_type]))


def _value(draw: Draw) -> onnx.TensorProto:
    one = draw.op_type == "ConstantOfShape"
    dtype = draw.one(np.float32, np.int64, np.bool_, np.int32, np.float64)
    return numpy_helper.from_array(np.asarray(draw.array((1,) if one else draw.shape(), np.float32)).astype(dtype))


def _type(draw: Draw) -> int:
    return int(draw.one(1, 7, 6, 9, 11, 10, 3, 2, 5, 8, 4, 12))


def _flag(draw: Draw) -> int:
    return draw.below(0, 1)


def _fraction(draw: Draw) -> float:
    return float(draw.one(0.0, 0.3, 1.0, 1.7, 2.0))


_FLAGS = (
    "align_corners", "allowzero", "antialias", "ceil_mode", "count_include_pad", "detect_negative",
    "detect_positive", "exclude_outside", "exclusive", "fmod", "keepdims", "largest", "noop_with_empty_axes",
    "reverse", "select_last_index", "sorted", "storage_order", "training_mode", "upper",
)  # fmt: skip
_FRACTIONS = (
    "alpha", "beta", "bias", "cubic_coeff_a", "gamma", "lambd", "extrapolation_value",
)  # fmt: skip
# Set with the inputs that hang on them, or without a say in what comes out.
_ELSEWHERE = (
    "batch_dims", "blocksize", "coordinate_transformation_mode", "equation", "group", "num_groups",
    "num_outputs", "reduction", "seed", "sparse_value", "stash_type", "momentum", "transA", "transB",
)  # fmt: skip
# Values of attributes by name; None: it is not drawn.
_VALUES: dict[str, Callable[[Draw], Any] | None] = {
    **dict.fromkeys(_FLAGS, _flag),
    **dict.fromkeys(_FRACTIONS, _fraction),
    **dict.fromkeys(_ELSEWHERE),
    "approximate": lambda draw: draw.one("none", "tanh"),
    "auto_pad": lambda draw: draw.one("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
    "axes": lambda draw: draw.subset(draw.rank),
    "axis": lambda draw: draw.axis(-draw.rank, draw.rank - (draw.op_type != "Flatten")),
    "dilations": _window(1, 2),
    "dtype": _type,
    "end": lambda draw: draw.below(-6, 6),
    "epsilon": lambda draw: draw.one(1e-5, 1e-3, 0.1),
    "k": lambda draw: draw.below(-4, 4),
    "keep_aspect_ratio_policy": lambda draw: draw.one("stretch", "not_larger", "not_smaller"),
    "kernel_shape": _kernel,
    "mode": _mode,
    "nearest_mode": lambda draw: draw.one("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "output_padding": _window(0, 1),
    "output_shape": lambda draw: [draw.below(1, 9) for _ in range(draw.spatial)] if draw.coin(0.2) else None,
    "p": lambda draw: draw.one(1, 2, 3),
    "padding_mode": lambda draw: draw.one("zeros", "border", "reflection"),
    "pads": _window(0, 2, 2),
    "perm": lambda draw: draw.random.permutation(draw.rank).tolist(),
    "round_mode": lambda draw: draw.one("up", "down", "nearest"),
    "saturate": _flag,
    "size": lambda draw: draw.below(1, 6),
    "start": lambda draw: draw.below(-6, 6),
    "strides": _window(1, 3),
    "to": _type,
    "value": _value,
    "value_float": _fraction,
    "value_floats": lambda draw: draw.floats(draw.below(0, 3)).tolist(),
    "value_int": _flag,
    "value_ints": lambda draw: list(draw.shape()),
    "value_string": lambda _: "word",
    "value_strings": lambda _: ["a", "b"],
}
_ONE_OF = {"Constant"}  # takes just one of its attributes


@dataclass(frozen=True)
class Drawn:
    """A model of one node; ``is_unordered`` if the order of what it finds is the runtime's own affair."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    is_unordered: bool = False

    def __str__(self) -> str:
        (node,) = self.model.graph.node
        held = {tensor.name: numpy_helper.to_array(tensor) for tensor in self.model.graph.initializer}
        told = [f"{name}={array.tolist()}" for name, array in held.items()]
        told += [f"{name}:{array.dtype}{list(array.shape)}" for name, array in self.feeds.items()]
        text = onnx.printer.to_text(node)
        return f"opset {self.model.opset_import[0].version}: {text} {' '.join(told)}"


def schemas(op_type: str) -> list[tuple[int, defs.OpSchema]]:
    """The versions of an operator within the opsets that the twin knows, with the first opset of each."""
    found: dict[int, defs.OpSchema] = {}
    for opset in range(LOWEST, _YOUNGER.get(op_type, HIGHEST) + 1):
        try:
            schema = defs.get_schema(_MINE.get(op_type, op_type), 23 if op_type in _MINE else opset)
        except defs.SchemaError:
            continue
        if op_type not in _MINE or opset == 17:
            found.setdefault(schema.since_version, schema)
    return [(max(LOWEST, 17 if op_type in _MINE else version), schema) for version, schema in found.items()]


def drawn(op_type: str, count: int) -> Iterator[Drawn]:
    """So many of every version of an operator, the same every time."""
    for opset, schema in schemas(op_type):
        random = np.random.default_rng([zlib.crc32(op_type.encode()), opset])
        for _ in range(count):
            yield _drawn(Draw(op_type, schema, random), opset)


def _drawn(draw: Draw, opset: int) -> Drawn:
    default = like if len(draw.schema.inputs) == 1 and not _is_variadic(draw.schema) else alike
    draw.inputs = INPUTS.get(draw.op_type, default)(draw)
    attributes = _attributes(draw)
    outputs = [f"y{k}" for k in range(attributes.pop("outputs", 2 if draw.op_type == "TopK" else 1))]
    while draw.inputs and draw.inputs[-1] is None:
        draw.inputs.pop()
    names = ["" if array is None else f"x{k}" for k, array in enumerate(draw.inputs)]
    node = helper.make_node(draw.op_type, names, outputs, "node", **attributes)
    static, fixed = STATIC.get(draw.op_type, frozenset()), draw.coin(0.7)
    held, feeds, inputs = [], {}, []
    for k, array in enumerate(draw.inputs):
        if array is not None and k in static and fixed:
            held.append(numpy_helper.from_array(array, names[k]))
        elif array is not None:
            feeds[names[k]] = array
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            shape = ["n", *array.shape[1:]] if draw.op_type.endswith("Pool") else list(array.shape)
            inputs.append(helper.make_tensor_value_info(names[k], kind, shape))
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return Drawn(model, feeds, attributes.get("sorted") == 0)


def _is_variadic(schema: defs.OpSchema) -> bool:
    return bool(schema.inputs) and schema.inputs[-1].option == defs.OpSchema.FormalParameterOption.Variadic


def _attributes(draw: Draw) -> dict[str, Any]:
    """Those that inputs hang on, and of the others about half."""
    offered = draw.schema.attributes
    if draw.op_type in _ONE_OF:
        offered = {name: offered[name] for name in [draw.one(*[n for n in offered if n != "sparse_value"])]}
    found = dict(draw.fixed)
    for name, attribute in offered.items():
        values = _VALUES[name]
        if name in found or values is None or not (attribute.required or draw.op_type in _ONE_OF or draw.coin()):
            continue
        value = values(draw)
        if value is not None and value != []:
            found[name] = float(value) if attribute.type == defs.OpSchema.AttrType.FLOAT else value
    if found.get("auto_pad", "NOTSET") != "NOTSET":
        found.pop("pads", None)
    return found
