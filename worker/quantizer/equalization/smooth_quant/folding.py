"""Where a factor per channel of a tensor can be taken in without a node of its own.

From the tensor one walks back through operators that commute with positive factors to constants that can hold them:
the scale and bias of a normalization, a constant operand, the output channels of a linear layer. Which element of a
tensor belongs to which channel is told by an array of channel numbers that broadcasts to the tensor's shape; operators
re-arrange it as they re-arrange the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from worker.quantizer.equalization.smooth_quant.channels import fits, lifted, reshaped, trimmed
from worker.quantizer.graph.affine import replace_constant, scale_output_channels
from worker.quantizer.graph.rewriting import rank_of, reduced_axes, scalar
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    constant,
    int_attribute,
    is_constant,
    is_float32,
    name_of,
    node_name,
    string_attribute,
)

_SAME = ("Identity", "Relu", "LeakyRelu", "Dropout")
_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Inputs that hold a factor per channel, and the axis of the channels in the result: None for the last.
_NORMS: dict[str, tuple[tuple[int, ...], int | None]] = {
    "LayerNormalization": ((1, 2), None),
    "RMSNormalization": ((1,), None),
    "InstanceNormalization": ((1, 2), 1),
    "BatchNormalization": ((1, 2), 1),
}


@dataclass(frozen=True)
class Fold:
    """A constant that takes the factors in.

    Attributes:
        node: name of the node that reads it.
        index: which input of the node it is.
        channels: channel numbers; broadcast against the constant, or for the weight of a linear node: one per output
            channel.
        linear: whether it is the weight or bias of a linear node.
        divides: the constant divides, so it takes the inverse factors.
    """

    node: str
    index: int
    channels: np.ndarray
    linear: bool = False
    divides: bool = False


@dataclass(frozen=True)
class Folding:
    """How factors are taken in: by which constants, and the names of all tensors that bear them then."""

    folds: tuple[Fold, ...]
    tensors: tuple[str, ...]


def find_folding(value: ir.Value, channels: int, refused: Callable[[ir.Node], bool]) -> Folding | None:
    """The constants that take in a factor per index of the last axis of ``value``; None if it needs a node of its own.

    Args:
        value: made by a node of the main graph; who reads it is not looked at.
        channels: length of its last axis.
        refused: True for a linear node that is not to take factors in.
    """
    finder = _Finder(value.graph, refused)
    found = finder.behind(value, np.arange(channels))
    return Folding(tuple(finder.folds), tuple(finder.tensors)) if found else None


class _Finder:
    def __init__(self, graph: ir.Graph | ir.Function | None, refused: Callable[[ir.Node], bool]) -> None:
        self.folds: list[Fold] = []
        self.tensors: list[str] = []
        self._graph = graph
        self._refused = refused

    def behind(self, value: ir.Value, channels: np.ndarray) -> bool:
        """Whether everything that makes ``value`` takes the factors in; it is entered into ``folds``."""
        node = value.producer()
        if node is None or node.graph is not self._graph or node.domain not in DEFAULT_DOMAINS:
            return False
        if not is_float32(value) or value is not node.outputs[0]:
            return False
        self.tensors.append(name_of(value))
        handler = _HANDLERS.get(node.op_type)
        return handler is not None and handler(self, node, channels)

    def reach(self, node: ir.Node, index: int, channels: np.ndarray, *, widened: bool = False) -> bool:
        """The same for input ``index`` of ``node``, which alone must read it unless it is a constant.

        With ``widened`` a constant may have fewer elements than there are channels.
        """
        value = node.inputs[index]
        channels = trimmed(channels)
        if value is None or not is_float32(value):
            return False
        if not fits(channels, value) and not (widened and is_constant(value)):
            return False
        if is_constant(value):
            self.folds.append(Fold(node_name(node), index, channels))
            return True
        if len(value.uses()) != 1 or value.is_graph_output() or value.is_graph_input():
            return False
        return self.behind(value, channels)

    # One handler per kind of operator: ``channels`` are those of its result.

    def same(self, node: ir.Node, channels: np.ndarray) -> bool:
        return self.reach(node, 0, channels)

    def prelu(self, node: ir.Node, channels: np.ndarray) -> bool:
        return is_constant(node.inputs[1]) and self.reach(node, 0, channels)

    def clip(self, node: ir.Node, channels: np.ndarray) -> bool:
        """A lower limit of 0 or none, and no upper one."""
        limits = [None if value is None else scalar(value) for value in node.inputs[1:3]]
        bounded = [value is not None for value in node.inputs[1:3]]
        low_is_zero = not bounded[:1] or not bounded[0] or limits[0] == 0.0
        return low_is_zero and not any(bounded[1:]) and self.reach(node, 0, channels)

    def pool(self, node: ir.Node, channels: np.ndarray) -> bool:
        rank = rank_of(node.outputs[0])
        return rank is not None and all(n == 1 for n in lifted(channels, rank).shape[2:]) and self.same(node, channels)

    def reduce_mean(self, node: ir.Node, channels: np.ndarray) -> bool:
        axes, rank = reduced_axes(node), rank_of(node.inputs[0])
        if axes is None or rank is None:
            return False
        if int_attribute(node, "keepdims", 1):
            whole = lifted(channels, rank)
            return all(whole.shape[axis] == 1 for axis in axes) and self.reach(node, 0, whole)
        whole = lifted(channels, rank - len(axes))
        return self.reach(node, 0, np.expand_dims(whole, axes))

    def pad(self, node: ir.Node, channels: np.ndarray) -> bool:
        pads, rank = constant(node.inputs[1]), rank_of(node.inputs[0])
        filling = node.inputs[2] if len(node.inputs) > 2 else None
        if pads is None or rank is None or pads.size != 2 * rank:
            return False
        zeros = string_attribute(node, "mode", "constant") != "constant" or filling is None or scalar(filling) == 0.0
        moved = np.abs(pads.reshape(2, rank)).sum(axis=0) > 0
        varies = np.array(lifted(channels, rank).shape) > 1
        return zeros and not (moved & varies).any() and self.reach(node, 0, channels)

    def reshape(self, node: ir.Node, channels: np.ndarray) -> bool:
        before = node.inputs[0]
        found = None if before is None else reshaped(channels, node.outputs[0], before)
        return found is not None and self.reach(node, 0, found)

    def transpose(self, node: ir.Node, channels: np.ndarray) -> bool:
        rank = rank_of(node.inputs[0])
        if rank is None:
            return False
        order = node.attributes.get("perm")
        permutation = list(order.as_ints()) if order is not None else list(range(rank))[::-1]
        return self.reach(node, 0, lifted(channels, rank).transpose(np.argsort(permutation)))

    def gather(self, node: ir.Node, channels: np.ndarray) -> bool:
        """Rows of a table, or some positions of a tensor: the channels lie behind the axis."""
        rank = rank_of(node.inputs[0])
        if rank is None or int_attribute(node, "axis", 0) % rank + channels.ndim >= rank:
            return False
        return self.reach(node, 0, channels)

    def expand(self, node: ir.Node, channels: np.ndarray) -> bool:
        return self.reach(node, 0, channels, widened=True)

    def slice(self, node: ir.Node, channels: np.ndarray) -> bool:
        """Positions are cut off, channels are not."""
        rank = rank_of(node.inputs[0])
        axes = constant(node.inputs[3]) if len(node.inputs) > 3 else None
        if rank is None or axes is None:
            return False
        whole = lifted(channels, rank)
        return all(whole.shape[int(axis) % rank] == 1 for axis in axes.reshape(-1)) and self.reach(node, 0, channels)

    def concat(self, node: ir.Node, channels: np.ndarray) -> bool:
        rank = rank_of(node.outputs[0])
        if rank is None:
            return False
        whole, axis = lifted(channels, rank), int_attribute(node, "axis", 0) % rank
        first = 0
        for index, value in enumerate(node.inputs):
            part = whole
            if whole.shape[axis] > 1:
                length = value.shape[axis] if value is not None and value.shape is not None else None
                if not isinstance(length, int):
                    return False
                part, first = whole.take(range(first, first + length), axis), first + length
            if not self.reach(node, index, part):
                return False
        return True

    def addition(self, node: ir.Node, channels: np.ndarray) -> bool:
        if node.inputs[0] is node.inputs[1]:
            return False
        return all(self.reach(node, index, channels, widened=True) for index in (0, 1))

    def product(self, node: ir.Node, channels: np.ndarray) -> bool:
        """One factor is enough: a constant if there is one, else the first that takes them in."""
        if node.inputs[0] is node.inputs[1]:
            return False
        order = sorted((0, 1), key=lambda index: not is_constant(node.inputs[index]))
        for index in order if node.op_type == "Mul" else (0,):
            if self._tried(node, index, channels):
                return True
        divisor = node.inputs[1]
        if node.op_type == "Div" and is_constant(divisor) and is_float32(divisor):
            self.folds.append(Fold(node_name(node), 1, trimmed(channels), divides=True))
            return True
        return False

    def _tried(self, node: ir.Node, index: int, channels: np.ndarray) -> bool:
        folds, tensors = len(self.folds), len(self.tensors)
        if self.reach(node, index, channels, widened=True):
            return True
        del self.folds[folds:], self.tensors[tensors:]
        return False

    def matmul(self, node: ir.Node, channels: np.ndarray) -> bool:
        if is_constant(node.inputs[1]):
            return self.linear(node, channels)
        rank = rank_of(node.outputs[0])
        if rank is None or rank < 2 or (channels.ndim > 1 and channels.shape[-2] > 1):
            return False
        return self.reach(node, 1, channels)

    def linear(self, node: ir.Node, channels: np.ndarray) -> bool:
        """Output channels of the weight, and the bias."""
        weight, rank = node.inputs[1], rank_of(node.outputs[0])
        array = constant(weight)
        if array is None or rank is None or not is_float32(weight) or self._refused(node):
            return False
        axis = 1 if node.op_type in ("Conv", "ConvTranspose") else rank - 1
        length = _output_channels(node, array)
        whole = lifted(channels, rank)
        if whole.shape[axis] not in (1, length) or whole.size != whole.shape[axis]:
            return False
        numbers = np.broadcast_to(whole.reshape(-1), (length,)).copy()
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:
            if not is_constant(bias) or not is_float32(bias):
                return False
            self.folds.append(Fold(node_name(node), 2, numbers, linear=True))
        self.folds.append(Fold(node_name(node), 1, numbers, linear=True))
        return True

    def norm(self, node: ir.Node, channels: np.ndarray) -> bool:
        indices, axis = _NORMS[node.op_type]
        rank = rank_of(node.outputs[0])
        if rank is None or any(value.uses() for value in node.outputs[1:]):
            return False
        axis = rank - 1 if axis is None else axis
        whole = lifted(channels, rank)
        if whole.size != whole.shape[axis]:
            return False
        held = [index for index in indices if index < len(node.inputs) and node.inputs[index] is not None]
        for index in held:
            value = node.inputs[index]
            if not is_constant(value) or not is_float32(value) or rank_of(value) != 1:
                return False
            self.folds.append(Fold(node_name(node), index, whole.reshape(-1)))
        return bool(held)


_Handler = Callable[[_Finder, ir.Node, np.ndarray], bool]
_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(_SAME, _Finder.same),
    **dict.fromkeys(_POOLS, _Finder.pool),
    **dict.fromkeys(_RESHAPES, _Finder.reshape),
    **dict.fromkeys(_NORMS, _Finder.norm),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), _Finder.linear),
    **dict.fromkeys(("Add", "Sub"), _Finder.addition),
    **dict.fromkeys(("Mul", "Div"), _Finder.product),
    "MatMul": _Finder.matmul,
    "PRelu": _Finder.prelu,
    "Clip": _Finder.clip,
    "ReduceMean": _Finder.reduce_mean,
    "Pad": _Finder.pad,
    "Transpose": _Finder.transpose,
    "Gather": _Finder.gather,
    "Expand": _Finder.expand,
    "Slice": _Finder.slice,
    "Concat": _Finder.concat,
}


def _output_channels(node: ir.Node, weight: np.ndarray) -> int:
    if node.op_type == "Conv":
        return int(weight.shape[0])
    if node.op_type == "ConvTranspose":
        return int(weight.shape[1]) * int_attribute(node, "group", 1)
    return int(weight.shape[0 if int_attribute(node, "transB", 0) else -1])


def folded(array: np.ndarray, fold: Fold, node: ir.Node, factors: np.ndarray) -> np.ndarray:
    """float32: the constant with the factors in it.

    Args:
        array: float32, the constant.
        fold: where it stands.
        node: which reads it.
        factors: float64 [channels], positive.
    """
    chosen = factors[fold.channels]
    if fold.divides:
        chosen = 1.0 / chosen
    if fold.linear and fold.index == 1 and node.op_type != "MatMul":
        return scale_output_channels(node, array, chosen)
    return np.asarray(array.astype(np.float64) * chosen, np.float32)


def apply_folds(graph: ir.Graph, folds: tuple[Fold, ...], factors: np.ndarray, names: Names) -> None:
    """Multiply the constants by ``factors``, float64 [channels]; what others read too is copied first."""
    nodes: Mapping[str, ir.Node] = {node_name(node): node for node in graph}
    for fold in folds:
        node = nodes[fold.node]
        value = node.inputs[fold.index]
        array = constant(value)
        if array is None or value is None:
            raise ValueError(f"input {fold.index} of {fold.node!r} is no constant")
        replace_constant(graph, node, fold.index, name_of(value), folded(array, fold, node, factors), names)
