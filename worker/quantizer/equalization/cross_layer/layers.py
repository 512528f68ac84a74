"""Layers that can take scales in: their weights as channels see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import constant, float_attribute, int_attribute

_Fresh = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class Layer:
    """A Conv, ConvTranspose, Gemm, MatMul or BatchNormalization with constant parameters.

    With the factor t of every variable, its weight w becomes w * t[rows] / t[columns], its bias b * t[outputs].

    Attributes:
        node: the node.
        outputs: variable of every output channel, int64 [out].
        inputs: variable of every input channel, int64 [in].
        rows: variables of the results that weights belong to; broadcasts to the first two axes of the weight (a
            vector counts as [n, 1]).
        columns: variables of the values that weights multiply, likewise.
    """

    node: ir.Node
    outputs: np.ndarray
    inputs: np.ndarray
    rows: np.ndarray
    columns: np.ndarray

    @property
    def is_linear(self) -> bool:
        """True for layers with a weight that is quantized; a normalization's is not."""
        return self.node.op_type != "BatchNormalization"

    @property
    def weight(self) -> np.ndarray:
        """The weight; float32."""
        found = constant(self.node.inputs[1])
        if found is None:
            raise ValueError(f"{self.node.name}: the weight is no constant")
        return found

    @property
    def bias(self) -> np.ndarray | None:
        """The bias per output channel; float32 [out]; None if there is none."""
        value = self.node.inputs[2] if len(self.node.inputs) > 2 else None
        found = constant(value)
        return None if found is None else np.broadcast_to(found.reshape(-1), self.outputs.shape)

    def with_groups(self, groups: np.ndarray) -> Layer:
        """With variables replaced by their groups."""
        return replace(
            self,
            outputs=groups[self.outputs],
            inputs=groups[self.inputs],
            rows=groups[self.rows],
            columns=groups[self.columns],
        )

    def magnitudes(self) -> np.ndarray:
        """Max |w| over the kernel's positions, float32, with the first two axes of the weight."""
        weight = self.weight
        matrix = weight.reshape(*weight.shape[:2], -1) if weight.ndim > 1 else weight.reshape(-1, 1, 1)
        sizes: np.ndarray = np.abs(matrix).max(axis=2)
        return sizes


def linear_layer(node: ir.Node, inputs: np.ndarray, fresh: _Fresh) -> Layer | None:
    """The layer of a linear node, None if scales cannot go in.

    Args:
        node: Conv, ConvTranspose, Gemm or MatMul.
        inputs: variables of its input channels, [in] or [1].
        fresh: makes variables for its results.
    """
    weight = _own_constant(node, 1)
    if weight is None or weight.ndim < 2 or weight.size == 0 or not np.isfinite(weight).all():
        return None
    has_bias = node.op_type != "MatMul" and len(node.inputs) > 2 and node.inputs[2] is not None
    bias = constant(node.inputs[2]) if has_bias else None
    if has_bias and (bias is None or bias.dtype != np.float32 or not np.isfinite(bias).all()):
        return None
    if node.op_type == "Conv":
        made = _conv(node, weight, inputs, fresh)
    elif node.op_type == "ConvTranspose":
        made = _conv_transpose(node, weight, inputs, fresh)
    else:
        made = _matrix(node, weight, inputs, fresh)
    if made is None or (bias is not None and not _fits(bias, made.outputs.size)):
        return None
    return made


def diagonal_layer(node: ir.Node, inputs: np.ndarray, fresh: _Fresh) -> Layer | None:
    """The layer of a BatchNormalization: gamma (x - mean) / deviation + beta, a weight per channel."""
    parts = [_own_constant(node, index) for index in (1, 2, 3)]
    if int_attribute(node, "training_mode", 0) or any(part is None or part.ndim != 1 for part in parts):
        return None
    size = parts[0].size if parts[0] is not None else 0
    inputs = np.broadcast_to(inputs, (size,))
    outputs = fresh(size)
    return Layer(node, outputs, inputs, outputs[:, None], inputs[:, None])


def _own_constant(node: ir.Node, index: int) -> np.ndarray | None:
    """A float32 constant that nothing else reads."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or len(value.uses()) != 1 or value.is_graph_output():
        return None
    array = constant(value)
    return array if array is not None and array.dtype == np.float32 else None


def _fits(bias: np.ndarray, channels: int) -> bool:
    return bias.size == channels and (bias.ndim == 1 or (bias.ndim == 2 and bias.shape[0] == 1))


def _conv(node: ir.Node, weight: np.ndarray, inputs: np.ndarray, fresh: _Fresh) -> Layer | None:
    groups = int_attribute(node, "group", 1)
    made, per_group = weight.shape[:2]
    if inputs.size not in (1, groups * per_group) or made % groups:
        return None
    inputs = np.broadcast_to(inputs, (groups * per_group,))
    outputs = fresh(made)
    columns = inputs.reshape(groups, per_group)
    columns = columns if groups == 1 else np.repeat(columns, made // groups, axis=0)
    return Layer(node, outputs, inputs, outputs[:, None], columns)


def _conv_transpose(node: ir.Node, weight: np.ndarray, inputs: np.ndarray, fresh: _Fresh) -> Layer | None:
    groups = int_attribute(node, "group", 1)
    taken, per_group = weight.shape[:2]
    if inputs.size not in (1, taken) or taken % groups:
        return None
    inputs = np.broadcast_to(inputs, (taken,))
    outputs = fresh(groups * per_group)
    rows = outputs.reshape(groups, per_group)
    rows = rows if groups == 1 else np.repeat(rows, taken // groups, axis=0)
    return Layer(node, outputs, inputs, rows, inputs[:, None])


def _matrix(node: ir.Node, weight: np.ndarray, inputs: np.ndarray, fresh: _Fresh) -> Layer | None:
    if weight.ndim != 2 or int_attribute(node, "transA", 0):
        return None
    if node.op_type == "Gemm" and float_attribute(node, "alpha", 1.0) == 0.0:
        return None
    turned = node.op_type == "Gemm" and bool(int_attribute(node, "transB", 0))
    taken, made = weight.shape[::-1] if turned else weight.shape
    if inputs.size not in (1, taken):
        return None
    inputs, outputs = np.broadcast_to(inputs, (taken,)), fresh(made)
    if turned:
        return Layer(node, outputs, inputs, outputs[:, None], inputs[None, :])
    return Layer(node, outputs, inputs, outputs[None, :], inputs[:, None])
