"""Weights of nodes: linear ones (Conv, ConvTranspose, Gemm, MatMul), tables of embeddings, recurrent layers.

The weight is the second input; a MatMul of a constant and an activation, in this order, is none here. All weights are
laid out alike: two axes of channels, then the kernel. The first of the two counts the channels of all groups, the
second those of one group; which of them are the outputs is what the operators differ in:

    Conv                     [out, in / groups, *kernel]
    ConvTranspose            [in, out / groups, *kernel]
    Gemm, MatMul             [in, out], a MatMul's behind the axes of a stack of matrices
    Gemm with transB         [out, in]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    AttributeValue,
    float_attribute,
    int_attribute,
    is_constant,
    is_float32,
    plain_attributes,
)
from worker.quantizer.ops.table import Family, named, operator
from worker.quantizer.ops.windows import Window

CONVOLUTIONS = named(lambda record: record.family is Family.CONVOLUTION)
MATRIX_PRODUCTS = named(lambda record: record.family is Family.PRODUCT)
LINEAR = named(lambda record: record.is_linear)


class UnsupportedLayerError(Exception):
    """The node is no product of a matrix and patches; the message says why, for the report."""


@dataclass(frozen=True, kw_only=True)
class WeightLayout:
    """Where a weight keeps which channels."""

    weight_shape: tuple[int, ...]  # of the whole weight
    outputs_first: bool  # whether the first axis of channels is that of the outputs
    groups: int  # parts of the channels that do not meet
    stacked: int  # axes before those of the channels

    @property
    def output_axis(self) -> int:
        """Axis of the output channels: of all, or of one group's."""
        return self.stacked + (not self.outputs_first)

    @property
    def input_axis(self) -> int:
        """Axis of the input channels, along which products are summed."""
        return self.stacked + self.outputs_first

    @property
    def out_channels(self) -> int:
        """Output channels of all groups."""
        return self.weight_shape[self.output_axis] * (1 if self.outputs_first else self.groups)

    @property
    def in_channels(self) -> int:
        """Input channels of all groups."""
        return self.weight_shape[self.input_axis] * (self.groups if self.outputs_first else 1)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Spatial size; empty for matrices."""
        return self.weight_shape[self.stacked + 2 :]

    def along_outputs(self, values: np.ndarray) -> np.ndarray:
        """One value per output channel, [out], such that it broadcasts against the weight."""
        return self._along_first(values) if self.outputs_first else self._along_second(values)

    def along_inputs(self, values: np.ndarray) -> np.ndarray:
        """One value per input channel, [in], such that it broadcasts against the weight."""
        return self._along_second(values) if self.outputs_first else self._along_first(values)

    def _along_first(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, 1, *[1] * len(self.kernel))

    def _along_second(self, values: np.ndarray) -> np.ndarray:
        """Each group's values beside the channels of that group on the first axis."""
        rows = values.reshape(self.groups, -1)
        if self.groups > 1:
            rows = np.repeat(rows, self.weight_shape[self.stacked] // self.groups, axis=0)
        return rows.reshape(*rows.shape, *[1] * len(self.kernel))

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """(groups, outputs per group, inputs per group); inputs run over channels, then over the kernel."""
        inputs = self.in_channels // self.groups * prod(self.kernel)
        return self.groups, self.out_channels // self.groups, inputs

    def matrix(self, array: np.ndarray) -> np.ndarray:
        """An array of the weight's shape as [groups, outputs, inputs]; of no stack."""
        if self.outputs_first:
            return array.reshape(self.matrix_shape)
        split = array.reshape(self.groups, -1, self.weight_shape[1], prod(self.kernel))
        return split.transpose(0, 2, 1, 3).reshape(self.matrix_shape)

    def from_matrix(self, matrix: np.ndarray) -> np.ndarray:
        """The inverse of ``matrix``."""
        if self.outputs_first:
            return matrix.reshape(self.weight_shape)
        split = matrix.reshape(self.groups, self.weight_shape[1], -1, prod(self.kernel)).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(split).reshape(self.weight_shape)


@dataclass(frozen=True, kw_only=True)
class LinearNode(WeightLayout):
    """A linear node: the layout of its weight, and what else it does."""

    node: ir.Node

    @property
    def data(self) -> ir.Value | None:
        """What the weight is multiplied by."""
        return self.node.inputs[0]

    @property
    def weight(self) -> ir.Value | None:
        """The weight, constant or not."""
        return self.node.inputs[1]

    @property
    def bias(self) -> ir.Value | None:
        """What is added, times beta."""
        return bias_of(self.node)

    @property
    def transposes_data(self) -> bool:
        """Whether a Gemm reads its first operand as [in, n]."""
        return self.node.op_type == "Gemm" and bool(int_attribute(self.node, "transA", 0))

    @property
    def alpha(self) -> float:
        """Factor of the product."""
        return float_attribute(self.node, "alpha", 1.0) if self.node.op_type == "Gemm" else 1.0

    @property
    def beta(self) -> float:
        """Factor of the bias."""
        return float_attribute(self.node, "beta", 1.0) if self.node.op_type == "Gemm" else 1.0

    @cached_property
    def window(self) -> Window:
        """How the kernel of a convolution moves over the data."""
        return Window.of(self.kernel, plain_attributes(self.node), transposed=self.node.op_type == "ConvTranspose")

    def positions(self, data: np.ndarray) -> int:
        """Number of patches in ``data``: results per channel, over all samples."""
        return self.window.positions(data) if self.kernel else data.size // self.in_channels

    def patches(self, data: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Some of the patches of ``data``: the results are ``matrix`` of the weight times them, group by group.

        Args:
            data: what the node reads, of any type.
            chosen: int64 [n], ascending: the patches' numbers.

        Returns:
            [groups, inputs, n] of the type of ``data``, and a mask that broadcasts to it: False where there is padding,
            which has to be 0. None: there is no padding.
        """
        groups, _, inputs = self.matrix_shape
        if not self.kernel:
            return data.reshape(-1, inputs)[chosen].T[None], None
        found, inside = self.window.gather(data, chosen)
        if inside.all():
            return found.reshape(groups, inputs, -1), None
        mask = np.broadcast_to(inside[None], (self.in_channels // groups, *inside.shape)).reshape(1, inputs, -1)
        return found.reshape(groups, inputs, -1), mask

    def results(self, made: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Those elements of an array of the node's results that come from some patches: [groups, outputs, n].

        Args:
            made: laid out as what the node makes.
            chosen: int64 [n], ascending: the patches' numbers.
        """
        groups, outputs, _ = self.matrix_shape
        if not self.kernel:
            rows: np.ndarray = made.reshape(-1, outputs)[chosen]
            return rows.T[None]
        flat = made.reshape(len(made), self.out_channels, -1)
        of_sample, place = np.divmod(chosen, flat.shape[2])
        found: np.ndarray = flat[of_sample, :, place]
        return found.T.reshape(groups, outputs, -1)


def is_linear(node: ir.Node) -> bool:
    """True for a Conv, ConvTranspose, Gemm or MatMul of standard ONNX with two inputs at least."""
    return node.op_type in LINEAR and node.domain in DEFAULT_DOMAINS and len(node.inputs) > 1


def bias_of(node: ir.Node) -> ir.Value | None:
    """What a linear node adds; None if nothing."""
    index = operator(node.op_type).bias
    return node.inputs[index] if index is not None and len(node.inputs) > index else None


def weight_layout(
    op_type: str, shape: tuple[int, ...], attributes: Mapping[str, AttributeValue]
) -> WeightLayout | None:
    """The layout of a linear operator's weight; None if ``shape`` is none of its weights'."""
    stacked = len(shape) - 2 if op_type == "MatMul" else 0
    groups = attributes.get("group", 1) if op_type in CONVOLUTIONS else 1
    if len(shape) < 2 or not isinstance(groups, int) or groups < 1 or shape[stacked] % groups:
        return None
    outputs_first = op_type == "Conv" or (op_type == "Gemm" and bool(attributes.get("transB", 0)))
    return WeightLayout(weight_shape=shape, outputs_first=outputs_first, groups=groups, stacked=stacked)


def linear_view(node: ir.Node) -> LinearNode | None:
    """The node as a linear one; None if it is none, or if the shape of its weight is not known."""
    if not is_linear(node):
        return None
    layout = weight_layout(node.op_type, _shape_of(node.inputs[1]) or (), plain_attributes(node))
    return None if layout is None else LinearNode(node=node, **vars(layout))


def _shape_of(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    if value.const_value is not None and is_constant(value):
        return tuple(value.const_value.shape.numpy())
    shape = value.shape
    return tuple(shape.numpy()) if shape is not None and shape.is_static() else None


def product_view(node: ir.Node) -> LinearNode:
    """The node as products of a matrix [groups, outputs, inputs] and patches [groups, inputs, n], the bias apart.

    Raises:
        UnsupportedLayerError: it is none.
    """
    if not is_linear(node):
        raise UnsupportedLayerError(f"{node.op_type} is not a linear operator")
    linear = linear_view(node)
    if linear is None or linear.stacked:
        rank = len(_shape_of(node.inputs[1]) or ())
        raise UnsupportedLayerError(f"its weight has {rank} axes, not 2")
    if linear.transposes_data:
        raise UnsupportedLayerError("its input is transposed")
    if linear.alpha != 1.0:
        raise UnsupportedLayerError("alpha differs from 1")
    if node.op_type in CONVOLUTIONS and not linear.kernel:
        raise UnsupportedLayerError("it has no spatial axis")
    return linear


def channel_axis(node: ir.Node) -> int:
    """Axis of the channels in what a linear node reads and in what it makes: 1 for convolutions, else the last."""
    return 1 if node.op_type in CONVOLUTIONS else -1


def summed_axis(node: ir.Node, index: int) -> int:
    """Axis of input ``index``, 0 or 1, of a linear node along which its products are summed, activations or not."""
    transposed = bool(int_attribute(node, ("transA", "transB")[index], 0)) if node.op_type == "Gemm" else False
    if node.op_type in CONVOLUTIONS:
        return 1
    return -1 if transposed == bool(index) else -2


# Where nodes that are not linear keep their weights: tables of embeddings, and recurrent layers.
#
# A lookup reads rows of a constant table, as embeddings are. A recurrent layer (LSTM, GRU, RNN) has the inputs W,
# float32 [directions, gates * hidden, inputs], and R, float32 [directions, gates * hidden, hidden]: a row belongs to
# one gate of one hidden unit in one direction; products are summed along it.

RECURRENT = named(lambda record: record.family is Family.RECURRENT)
# Which inputs W and R are.
RECURRENT_WEIGHTS = (1, 2)


def is_lookup(node: ir.Node) -> bool:
    """True for a Gather that takes rows of a constant float32 matrix by indices that are no constant."""
    if node.op_type != "Gather" or node.domain not in DEFAULT_DOMAINS or len(node.inputs) < 2:
        return False
    table, indices = node.inputs[0], node.inputs[1]
    if table is None or not is_constant(table) or not is_float32(table) or is_constant(indices):
        return False
    return table.shape is not None and len(table.shape) == 2 and int_attribute(node, "axis", 0) in (0, -2)


def weight_index(node: ir.Node) -> int:
    """Which input of a node is its weight: the table of a lookup is the first, any other weight the second."""
    return 0 if is_lookup(node) else 1


def weight_of(node: ir.Node) -> ir.Value | None:
    """The weight of a node, constant or not; None if it has no such input."""
    index = weight_index(node)
    return node.inputs[index] if len(node.inputs) > index else None


def is_recurrent(node: ir.Node) -> bool:
    """True for a standard recurrent layer."""
    return node.op_type in RECURRENT and node.domain in DEFAULT_DOMAINS


def recurrent_weights(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """W and R of a recurrent layer, constant or not."""
    return tuple(node.inputs[k] if len(node.inputs) > k else None for k in RECURRENT_WEIGHTS)
