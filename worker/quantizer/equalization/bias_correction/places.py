"""Where the correction of a linear node's mean can be put: its bias, or a constant that is added right behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.affine import output_channels
from worker.quantizer.graph.rewriting import only_reader, other_operand
from worker.quantizer.graph.values import constant, float_attribute, is_constant, is_float32, name_of, node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.parameters import quantize_bias, weight_grid
from worker.quantizer.plan.types import QuantizationPlan, Role, WeightPlan

NOTHING_ADDED = "nothing constant is added to its result"
LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Place:
    """A constant with one value per output channel of a linear node.

    Attributes:
        node: the linear node.
        owner: the node that reads the constant: the same, or an Add behind it.
        initializer: name of the constant.
        channels: number of output channels.
    """

    node: ir.Node
    owner: ir.Node
    initializer: str
    channels: int

    def present(self, plan: QuantizationPlan) -> np.ndarray:
        """float64 [channels]: what the quantized network adds now."""
        grid, integers = self._stored(plan)
        if grid is not None and integers is not None:
            return np.asarray(grid.dequantize(integers).reshape(-1), np.float64)
        return self._float(plan)

    def original(self) -> np.ndarray:
        """float64 [channels]: what the float network adds."""
        return _array(self.owner, self.initializer).reshape(-1).astype(np.float64)

    def wanted(self, plan: QuantizationPlan) -> np.ndarray:
        """float64 [channels]: the same before it was rounded."""
        grid, integers = self._stored(plan)
        values = self._float(plan)
        if grid is None or integers is None:
            return values
        rounded = grid.quantize(values.reshape(integers.shape))
        return values if np.array_equal(rounded, integers) else self.present(plan)

    def put(self, plan: QuantizationPlan, values: np.ndarray) -> None:
        """Let the quantized network add ``values``, float64 [channels]; a grid of the constant's own is fitted anew."""
        if self.owner is self.node and self._bias_is_integer(plan):
            quantize_bias(self.node, plan, values)
            return
        shape = _array(self.owner, self.initializer).shape
        array = values.reshape(shape).astype(np.float32)
        weight = plan.weights.get(self.initializer)
        if weight is not None and self.owner is not self.node:
            weight.quantization = weight_grid(array, weight)
            if isinstance(weight.quantization, IntegerGrid):
                weight.integers = weight.quantization.quantize(array)
                return
        plan.moved[self.initializer] = array

    def _bias_is_integer(self, plan: QuantizationPlan) -> bool:
        entry = plan.biases.get(node_name(self.node))
        return entry is not None and entry.integers is not None

    def _stored(self, plan: QuantizationPlan) -> tuple[IntegerGrid | None, np.ndarray | None]:
        if self.owner is self.node:
            entry = plan.biases.get(node_name(self.node))
            return (None, None) if entry is None else (entry.quantization, entry.integers)
        weight = plan.weights.get(self.initializer)
        if weight is None or not isinstance(weight.quantization, IntegerGrid):
            return None, None
        return weight.quantization, weight.integers

    def _float(self, plan: QuantizationPlan) -> np.ndarray:
        array = plan.moved.get(self.initializer)
        stored = _array(self.owner, self.initializer) if array is None else array
        return stored.reshape(-1).astype(np.float64)


def _array(owner: ir.Node, initializer: str) -> np.ndarray:
    value = next(value for value in owner.inputs if value is not None and value.name == initializer)
    array = constant(value)
    if array is None:
        raise ValueError(f"{initializer!r} is no constant")
    return array


def correctable(graph: ir.Graph, plan: QuantizationPlan) -> list[ir.Node]:
    """The quantized linear nodes with a constant weight, in topological order."""
    return [
        node
        for node in graph
        if node.op_type in LINEAR
        and plan.nodes[node_name(node)].role is Role.LINEAR
        and len(node.inputs) > 1
        and is_constant(node.inputs[1])
        and name_of(node.inputs[1]) in plan.weights  # type: ignore[arg-type]
    ]


def channel_axis(node: ir.Node) -> int:
    """Axis of the output channels in the result: 1 behind a convolution, else the last."""
    return 1 if node.op_type in ("Conv", "ConvTranspose") else -1


def channels_of(node: ir.Node) -> int:
    """Number of output channels of a linear node with a constant weight."""
    if node.op_type == "MatMul":
        weight = constant(node.inputs[1])
        return 0 if weight is None or weight.ndim < 2 else int(weight.shape[-1])
    return output_channels(node) or 0


def find_place(node: ir.Node, plan: QuantizationPlan) -> Place | str:
    """Where the correction of ``node`` goes, or why there is no place for it yet."""
    channels = channels_of(node)
    if node.op_type == "MatMul":
        return _term_behind(node, channels)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return "it has no bias"
    array = constant(bias)
    if array is None or not is_float32(bias):
        return "its bias is not constant"
    if array.size != channels or (array.ndim != 1 and array.shape[-1] != channels):
        return "its bias does not have one value per channel"
    if float_attribute(node, "beta", 1.0) != 1.0:
        return "its bias is multiplied by beta"
    entry = plan.biases.get(node_name(node))
    if (entry is None or entry.integers is None) and len(bias.uses()) > 1:
        return "others read its bias too"
    return Place(node, node, name_of(bias), channels)


def _term_behind(node: ir.Node, channels: int) -> Place | str:
    add = only_reader(node.outputs[0], "Add")
    term = other_operand(add, node.outputs[0]) if add is not None else None
    array = constant(term)
    if add is None or term is None or array is None or not is_float32(term):
        return NOTHING_ADDED
    if not array.ndim or array.shape[-1] != channels or array.size != channels:
        return "what is added to its result does not have one value per channel"
    if len(term.uses()) > 1:
        return "others read what is added to its result"
    return Place(node, add, name_of(term), channels)


def represented(weight: np.ndarray, planned: WeightPlan) -> np.ndarray:
    """The weight as the quantized network holds it, float64."""
    grid = planned.quantization
    if isinstance(grid, IntegerGrid) and planned.integers is not None:
        return grid.dequantize(planned.integers).astype(np.float64)
    if grid is None:
        raise ValueError(f"weight {planned.initializer!r} was planned but not filled")
    return grid.fake(weight).astype(np.float64)
