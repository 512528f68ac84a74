"""Folds what follows a linear node channel by channel into its weights; which values can never be negative.

With y = W x + b and z = s * y + t for every output channel, z = (s W) x + (s b + t).
BatchNormalization (inference): s = gamma / sqrt(var + epsilon), t = beta - mean * s, epsilon 1e-5 by default.
All arithmetic is float64, rounded to float32 once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.metadata import ACROSS_BORDER, apart
from worker.quantizer.graph.rewriting import PassOutcome, Rewrite, replace
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    add_initializer,
    constant,
    float_attribute,
    input_of,
    int_attribute,
    is_constant,
    name_of,
    node_name,
    users,
)
from worker.quantizer.ops.linear import LinearNode, channel_axis, is_linear, linear_view
from worker.quantizer.ops.table import Sign, operator

SHARED_INPUT = declare("shared-input", "its input is read elsewhere too")
NO_LINEAR_BEFORE = declare("no-linear-before", "it does not follow a Conv, ConvTranspose or Gemm")
OTHER_GRAPH = declare("other-graph", "it is in another graph")
WEIGHT_BEFORE_NOT_CONSTANT = declare("weight-before-not-constant", "the weight before it is not constant")
WEIGHT_BEFORE_NOT_FLOAT32 = declare("weight-before-not-float32", "the weight before it is not a float32 constant")
BIAS_BEFORE_NOT_PER_CHANNEL = declare("bias-before-not-per-channel", "the bias before it is not a constant per channel")
OPERAND_NOT_PER_CHANNEL = declare("operand-not-per-channel", "its other operand is not a constant per channel")
PARAMETERS_NOT_PER_CHANNEL = declare("parameters-not-per-channel", "its parameters are not constants per channel")
NOT_AFFINE = declare("not-affine", "it is not an affine map")
TRAINING_MODE = declare("training-mode", "it is in training mode")
FOLDED_NOT_FINITE = declare("folded-not-finite", "the folded weight or bias is not finite")


@dataclass(frozen=True)
class Affine:
    """Per-channel scale and offset, float64 [channels] each; ``scale`` is None for 1."""

    scale: np.ndarray | None
    offset: np.ndarray


def fold_affine(model: ir.Model) -> PassOutcome:
    """Fold in place, to a fixed point; the linear node keeps its name and takes over the follower's output."""
    graph, names = model.graph, Names(model.graph)
    folded: set[str] = set()
    left: dict[str, Reason] = {}
    for node in list(graph):
        while is_linear(node) and node.op_type != "MatMul":
            readers = users(node.outputs[0])
            reason = _fold(graph, node, readers, names)
            if reason is not None:
                left |= {node_name(reader): reason for reader in readers if reader.op_type == "BatchNormalization"}
                break
            folded.add(node_name(readers[0]))
            # the follower's output is now the linear node's
            replace(graph, Rewrite(readers, [], [(readers[0].outputs[0], node.outputs[0])]))
    for node in graph:
        if node.op_type == "BatchNormalization":
            left.setdefault(node_name(node), NO_LINEAR_BEFORE())
    left = {name: reason for name, reason in left.items() if name not in folded}
    return PassOutcome.counted(model, len(folded), "nodes folded into the linear node before them", left=left)


def _fold(graph: ir.Graph, node: ir.Node, readers: list[ir.Node], names: Names) -> Reason | None:
    """Take the one reader of a linear node into its weight and bias; the reason if that cannot be done."""
    if len(readers) != 1 or node.outputs[0].is_graph_output():
        return SHARED_INPUT()
    if apart((node, readers[0])):
        return ACROSS_BORDER()
    linear = linear_view(node)
    if linear is None:
        return WEIGHT_BEFORE_NOT_CONSTANT()
    affine = _affine_of(readers[0], linear)
    return affine if isinstance(affine, Reason) else _fold_into(graph, linear, affine, names)


def _affine_of(follower: ir.Node, linear: LinearNode) -> Affine | Reason:
    """The follower as a per-channel affine map, or the reason why it is none."""
    if follower.domain not in DEFAULT_DOMAINS or follower.graph is not linear.node.graph:
        return OTHER_GRAPH()
    if not is_constant(linear.weight):
        return WEIGHT_BEFORE_NOT_CONSTANT()
    channels = linear.out_channels
    if follower.op_type == "BatchNormalization":
        return batchnorm_affine(follower, channels)
    if follower.op_type in ("Add", "Mul"):
        other = follower.inputs[1] if follower.inputs[0] is linear.node.outputs[0] else follower.inputs[0]
        array = constant(other)
        vector = None if array is None else _per_channel(array, linear)
        if vector is None:
            return OPERAND_NOT_PER_CHANNEL()
        if follower.op_type == "Add":
            return Affine(None, vector)
        return Affine(vector, np.zeros(channels))
    return NOT_AFFINE()


def batchnorm_affine(node: ir.Node, channels: int) -> Affine | Reason:
    """A BatchNormalization as a per-channel affine map, or the reason why it is none."""
    if int_attribute(node, "training_mode", 0) or len([o for o in node.outputs if o.name]) > 1:
        return TRAINING_MODE()
    arrays = [constant(value) for value in node.inputs[1:5]]
    if any(array is None or array.shape != (channels,) for array in arrays):
        return PARAMETERS_NOT_PER_CHANNEL()
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in arrays if array is not None)
    scale = gamma / np.sqrt(variance + float_attribute(node, "epsilon", 1e-5))
    return Affine(scale, beta - mean * scale)


def _per_channel(array: np.ndarray, linear: LinearNode) -> np.ndarray | None:
    """``array`` as float64 [channels] if it broadcasts along the channel axis alone."""
    channels, rank = linear.out_channels, len(linear.weight_shape)  # the result has as many axes as the weight
    from_last = rank - channel_axis(linear.node) % rank
    along = array.size == channels and array.ndim >= from_last and array.shape[-from_last] == channels
    if array.dtype != np.float32 or array.ndim > rank or not (along or array.size == 1):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,)).copy()


def _fold_into(graph: ir.Graph, linear: LinearNode, affine: Affine, names: Names) -> Reason | None:
    """Change the node's weight and bias; returns the reason if that cannot be done."""
    node, weight_value = linear.node, linear.weight
    weight = constant(weight_value)
    if weight is None or weight_value is None or weight.dtype != np.float32:
        return WEIGHT_BEFORE_NOT_FLOAT32()
    channels = affine.offset.shape[0]
    bias_value = linear.bias
    bias = np.zeros(channels)
    if bias_value is not None:
        stored = constant(bias_value)
        if stored is None or stored.size not in (1, channels) or (stored.ndim == 2 and stored.shape[0] != 1):
            return BIAS_BEFORE_NOT_PER_CHANNEL()
        bias = np.broadcast_to(stored.astype(np.float64).reshape(-1), (channels,)) * linear.beta
    scale = np.ones(channels) if affine.scale is None else affine.scale
    with np.errstate(over="ignore"):  # judged below
        new_bias = (bias * scale + affine.offset).astype(np.float32)
        new_weight = weight if affine.scale is None else np.asarray(weight * linear.along_outputs(scale), np.float32)
    if not (np.isfinite(new_bias).all() and np.isfinite(new_weight).all()):
        return FOLDED_NOT_FINITE()
    if affine.scale is not None:
        replace_constant(graph, node, 1, name_of(weight_value), new_weight, names)
    bias_name = name_of(bias_value) if bias_value is not None else f"{name_of(weight_value)}_bias"
    replace_constant(graph, node, 2, bias_name, new_bias, names)
    if "beta" in node.attributes:
        node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
    return None


def replace_constant(graph: ir.Graph, node: ir.Node, index: int, name: str, array: np.ndarray, names: Names) -> None:
    """Give the node its own new constant at ``index``; a constant that others read stays as it is for them."""
    old = node.inputs[index] if index < len(node.inputs) else None
    if old is not None and len(old.uses()) == 1 and name in graph.initializers and not old.is_graph_output():
        old.const_value = ir.tensor(array, name=name)
        old.shape = ir.Shape(array.shape)
        return
    value = add_initializer(graph, names.free(name), array)
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


# Which values can never be negative, told from the operators that made them.


class Signs:
    """Learns node after node, in topological order; about what it was not told it claims nothing."""

    def __init__(self) -> None:
        self._known: set[ir.Value] = set()

    def never_negative(self, value: ir.Value | None) -> bool:
        """True if no element of ``value`` can be negative, whatever the model is fed."""
        array = constant(value)
        if array is not None:
            return array.dtype.kind != "O" and not (array < 0).any()
        return value in self._known

    def learn(self, node: ir.Node) -> None:
        """Judge the results of ``node`` by its operands."""
        if node.domain in DEFAULT_DOMAINS and self._judge(node):
            self._known.update(node.outputs)

    def _judge(self, node: ir.Node) -> bool:
        op_type, sign = node.op_type, operator(node.op_type).sign
        if sign is Sign.NEVER_NEGATIVE:
            return True
        operands = [value for value in node.inputs if value is not None]
        if sign is Sign.AS_FIRST:
            return self.never_negative(node.inputs[0])
        if sign is Sign.AS_ALL:
            return all(map(self.never_negative, operands))
        if sign is Sign.AS_ANY:
            return any(map(self.never_negative, operands))
        if op_type == "Clip":
            low = input_of(node, 1)
            return self.never_negative(node.inputs[0]) or (low is not None and self.never_negative(low))
        if op_type == "Pad":
            fill = input_of(node, 2)
            return self.never_negative(node.inputs[0]) and (fill is None or self.never_negative(fill))
        return False
