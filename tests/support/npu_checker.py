"""Checks an emitted model against the rules of AMD's NPU for convolutional networks (XINT8, Vitis AI's DPU).

Written against the ONNX file alone: it shares no code with the planner, and finds everything (grids, fused activations,
bias positions) in the nodes and initializers.

    violations = check_npu_model(onnx.load("quantized.onnx"))
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool")
MOVERS = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Pad", "Slice", "Split", "Resize")
ELEMENTWISE = ("Add", "Sub", "Mul", "Min", "Max", "Concat")
SINGLE = (*POOLS, *MOVERS, "Relu", "Clip", "LeakyRelu", "PRelu", "HardSigmoid")
_INEXACT_KERNELS = ((3, 3), (5, 5), (6, 6), (7, 7), (14, 14))
TAKES_IN = (*LINEAR, "Add", *POOLS)


@dataclass(frozen=True)
class Violation:
    """A rule that a node breaks."""

    rule: str
    node: str
    detail: str


def check_npu_model(model: onnx.ModelProto, *, excluded: tuple[str, ...] = ()) -> list[Violation]:
    """Every broken rule of an emitted model with Q/DQ pairs, but for nodes that were left in float on purpose."""
    graph = _Graph(model)
    nodes = [node for node in graph.nodes if node.name not in excluded]
    return [violation for node in nodes for check in _CHECKS for violation in check(graph, node)]


class _Graph:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self.outputs = {value.name for value in model.graph.output}
        self.readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in node.input:
                self.readers[name].append(node)
        inferred = onnx.shape_inference.infer_shapes(model).graph
        values = (*inferred.value_info, *inferred.input, *inferred.output)
        self.types = {value.name: value.type.tensor_type.elem_type for value in values}

    def position(self, pair: onnx.NodeProto) -> int | None:
        """-log2 of the scale of a Q or DQ node; None if it is no single power of two."""
        scale = self.constants[pair.input[1]]
        mantissa, exponent = (0.0, 0) if scale.ndim else math.frexp(float(scale))
        return 1 - exponent if mantissa == 0.5 else None

    def before(self, tensor: str) -> int | None:
        """Position at which ``tensor`` arrives; None if it has none."""
        made = self.producer.get(tensor)
        return self.position(made) if made is not None and made.op_type == "DequantizeLinear" else None

    def after(self, node: onnx.NodeProto, output: int = 0) -> int | None:
        """Position at which the result of ``node`` and what is fused with it leaves; None if it has none."""
        tensor = node.output[output]
        while True:
            readers = self.readers[tensor]
            quantizers = [reader for reader in readers if reader.op_type == "QuantizeLinear"]
            if quantizers:
                return self.position(quantizers[0])
            if len(readers) != 1 or not (self.is_factor(readers[0]) or self.is_taken_in(readers[0])):
                return None
            tensor = readers[0].output[0]

    def is_factor(self, node: onnx.NodeProto) -> bool:
        """A Mul by a float constant: rounding of the node before it, simulated."""
        return node.op_type == "Mul" and node.input[1] in self.constants and node.input[0] in self.producer

    def is_taken_in(self, node: onnx.NodeProto) -> bool:
        """An activation function that the hardware computes with the node before it."""
        if node.op_type == "Clip":
            limits = [float(self.constants[name]) for name in node.input[1:] if name in self.constants]
            return limits in ([0.0, 6.0], [0.0, 1.0])
        return node.op_type in ("Relu", "LeakyRelu", "PRelu")

    def follower(self, node: onnx.NodeProto) -> str | None:
        """Operator of the activation function fused with ``node``."""
        readers = self.readers[node.output[0]]
        return readers[0].op_type if len(readers) == 1 and self.is_taken_in(readers[0]) else None

    def is_float(self, tensor: str) -> bool:
        return self.types.get(tensor) == onnx.TensorProto.FLOAT or (
            tensor in self.constants and self.constants[tensor].dtype == np.float32
        )


def _grids(graph: _Graph, node: onnx.NodeProto) -> Iterator[Violation]:
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return
    scale, zero_point = graph.constants[node.input[1]], graph.constants[node.input[2]]
    if scale.ndim or math.frexp(float(scale))[0] != 0.5:
        yield Violation("power_of_two", node.name, f"scale {scale} is no single power of two")
    is_bias = any(
        reader.op_type in LINEAR and len(reader.input) > 2 and reader.input[2] == node.output[0]
        for reader in graph.readers[node.output[0]]
    )
    wanted = ("int8", "int32") if is_bias else ("int8",)
    if zero_point.dtype.name not in wanted or zero_point.any():
        yield Violation("int8", node.name, f"zero point {zero_point} of type {zero_point.dtype}")


def _whole(graph: _Graph, node: onnx.NodeProto) -> Iterator[Violation]:
    """Everything of the list gets and gives integers."""
    if node.op_type not in (*LINEAR, *ELEMENTWISE, *SINGLE) or not graph.is_float(node.output[0]):
        return
    made = graph.producer.get(node.input[0])
    fused = graph.is_factor(node) or (
        graph.is_taken_in(node) and made is not None and made.op_type in (*TAKES_IN, "Mul")
    )
    if node.input[0] in graph.constants and all(name in graph.constants for name in node.input):
        return
    counts = {**dict.fromkeys(LINEAR, 2), **dict.fromkeys(ELEMENTWISE, len(node.input)), "PRelu": 2}
    operands = counts.get(node.op_type, 1)
    for name in node.input[:operands]:
        if graph.before(name) is None and not (fused and (name == node.input[0] or graph.is_factor(node))):
            yield Violation("whole", node.name, f"operand {name!r} of {node.op_type} is float")
    for index, name in enumerate(node.output):
        if name and graph.after(node, index) is None and graph.readers[name]:
            yield Violation("whole", node.name, f"result {name!r} of {node.op_type} is not quantized")
        if name in graph.outputs:
            yield Violation("whole", node.name, f"graph output {name!r} leaves {node.op_type} as float")


def _fused(graph: _Graph, node: onnx.NodeProto) -> Iterator[Violation]:
    """No Q/DQ pair between a node and the activation function it takes in."""
    if not graph.is_taken_in(node):
        return
    dequantize = graph.producer.get(node.input[0])
    if dequantize is None or dequantize.op_type != "DequantizeLinear" or node.input[0] in graph.outputs:
        return
    quantize = graph.producer.get(dequantize.input[0])
    made = graph.producer.get(quantize.input[0]) if quantize is not None else None
    if made is not None and graph.is_factor(made):
        made = graph.producer.get(made.input[0])
    if made is not None and made.op_type in TAKES_IN and len(graph.readers[dequantize.output[0]]) == 1:
        yield Violation("fused", node.name, f"a Q/DQ pair stands between {made.op_type} and {node.op_type}")


def _aligned(graph: _Graph, node: onnx.NodeProto) -> Iterator[Violation]:
    if node.op_type not in ("Concat", "Pad", "Slice", "Split", *POOLS, *MOVERS):
        return
    data = node.input if node.op_type == "Concat" else node.input[:1]
    found = {graph.before(name) for name in data}
    found |= {graph.after(node, index) for index, name in enumerate(node.output) if graph.readers[name]}
    if len(found - {None}) > 1:
        yield Violation("aligned", node.name, f"{node.op_type} has positions {sorted(found - {None})}")


def _sums(graph: _Graph, node: onnx.NodeProto) -> Iterator[Violation]:
    if node.op_type not in ("Add", "Sub"):
        return
    operands = [found for name in node.input if (found := graph.before(name)) is not None]
    out = graph.after(node)
    if len(operands) == 2 and max(operands) - min(operands) > 7:
        yield Violation("shift_read", node.name, f"operands at {operands}")
    if len(operands) == 2 and out is not None and not -7 <= min(operands) - out <= 25:
        yield Violation("shift_write", node.name, f"operands at {operands}, result at {out}")


def _products(graph: _Graph, node: onnx.NodeProto) -> Iterator[Violation]:
    if node.op_type != "Mul" or graph.is_factor(node):
        return
    operands = [found for name in node.input if (found := graph.before(name)) is not None]
    out = graph.after(node)
    if len(operands) != 2 or out is None:
        return
    shift = sum(operands) - out
    if not 0 <= shift <= 32:
        yield Violation("shift_write", node.name, f"operands at {operands}, result at {out}")
    if _is_swish(graph, node) and not 0 <= shift <= 15:
        yield Violation("shift_swish", node.name, f"operands at {operands}, result at {out}")


def _is_swish(graph: _Graph, node: onnx.NodeProto) -> bool:
    for gate, other in (node.input, tuple(node.input)[::-1]):
        dequantize = graph.producer.get(gate)
        quantize = graph.producer.get(dequantize.input[0]) if dequantize is not None else None
        made = graph.producer.get(quantize.input[0]) if quantize is not None else None
        if made is not None and graph.is_factor(made):
            made = graph.producer.get(made.input[0])
        if made is not None and made.op_type == "HardSigmoid" and made.input[0] == other:
            return True
    return False


def _convolutions(graph: _Graph, node: onnx.NodeProto) -> Iterator[Violation]:
    if node.op_type not in LINEAR:
        return
    source, weight, out = graph.before(node.input[0]), graph.before(node.input[1]), graph.after(node)
    if source is None or weight is None:
        return
    cut = None if out is None else source + weight - out
    if cut is not None and not 0 <= cut <= 16:
        yield Violation("shift_cut", node.name, f"in {source}, weight {weight}, result {out}")
    bias = graph.before(node.input[2]) if len(node.input) > 2 else None
    if bias is None:
        return
    lowest = min(0, -(24 - (8 + (cut or 0))))
    if graph.follower(node) == "LeakyRelu":
        lowest = 0
    if not lowest <= source + weight - bias <= 15:
        yield Violation("shift_bias", node.name, f"in {source}, weight {weight}, bias {bias}, result {out}")


def _gates(graph: _Graph, node: onnx.NodeProto) -> Iterator[Violation]:
    if node.op_type != "HardSigmoid":
        return
    source, out = graph.before(node.input[0]), graph.after(node)
    if source is None or out is None:
        return
    if not 0 <= source <= 15 or out < 7 or not 0 <= 14 + source - out <= 31:
        yield Violation("hard_sigmoid", node.name, f"in {source}, result {out}")


def _operators(graph: _Graph, node: onnx.NodeProto) -> Iterator[Violation]:
    """Operators in the form that the hardware computes."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type in ("Sigmoid", "HardSwish") and graph.is_float(node.output[0]):
        yield Violation("operator", node.name, f"{node.op_type} is not computed on the NPU")
    if node.op_type == "LeakyRelu":
        alpha = attributes.get("alpha", 0.01)
        if round(alpha * 256) != alpha * 256:
            yield Violation("operator", node.name, f"alpha {alpha} is no 256th")
    if node.op_type == "HardSigmoid" and not any(graph.is_factor(r) for r in graph.readers[node.output[0]]):
        yield Violation("operator", node.name, "its 1/6 is not 2731/16384")
    inexact = node.op_type == "AveragePool" and tuple(attributes["kernel_shape"]) in _INEXACT_KERNELS
    if inexact and not any(graph.is_factor(reader) for reader in graph.readers[node.output[0]]):
        yield Violation("operator", node.name, "its division is exact")


_CHECKS = (_grids, _whole, _fused, _aligned, _sums, _products, _convolutions, _gates, _operators)
