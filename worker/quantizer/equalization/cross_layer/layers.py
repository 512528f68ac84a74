"""Layers that can take scales in: their weights as channels see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import constant, int_attribute
from worker.quantizer.ops.linear import linear_view

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
    linear, weight = linear_view(node), _own_constant(node, 1)
    if linear is None or weight is None or weight.size == 0 or not np.isfinite(weight).all():
        return None
    if linear.stacked or linear.transposes_data or linear.alpha == 0.0:
        return None
    if linear.bias is not None and not _fits(constant(linear.bias), linear.out_channels):
        return None
    if inputs.size not in (1, linear.in_channels):
        return None
    inputs, outputs = np.broadcast_to(inputs, (linear.in_channels,)), fresh(linear.out_channels)
    rows, columns = linear.along_outputs(outputs), linear.along_inputs(inputs)
    return Layer(node, outputs, inputs, rows.reshape(rows.shape[:2]), columns.reshape(columns.shape[:2]))


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


def _fits(bias: np.ndarray | None, channels: int) -> bool:
    if bias is None or bias.dtype != np.float32 or not np.isfinite(bias).all():
        return False
    return bias.size == channels and (bias.ndim == 1 or (bias.ndim == 2 and bias.shape[0] == 1))
