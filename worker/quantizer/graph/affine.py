"""Folds what follows a linear node channel by channel (BatchNormalization, Add or Mul of a constant) into its weight
and bias.

With y = W x + b and z = s * y + t for every output channel, z = (s W) x + (s b + t).
BatchNormalization (inference): s = gamma / sqrt(var + epsilon), t = beta - mean * s, epsilon 1e-5 by default.
All arithmetic is float64, rounded to float32 once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    add_initializer,
    constant,
    float_attribute,
    int_attribute,
    name_of,
    node_name,
    users,
)


@dataclass(frozen=True)
class Affine:
    """Per-channel scale and offset, float64 [channels] each; ``scale`` is None for 1."""

    scale: np.ndarray | None
    offset: np.ndarray


@dataclass(frozen=True)
class FoldOutcome:
    """Names of the folded nodes, and of those left with the reason."""

    folded: tuple[str, ...]
    left: dict[str, str]


def fold_affine(graph: ir.Graph) -> FoldOutcome:
    """Fold in place, to a fixed point; the linear node keeps its name and takes over the follower's output."""
    folded: list[str] = []
    left: dict[str, str] = {}
    names = Names(graph)
    for node in list(graph):
        while node.op_type in ("Conv", "ConvTranspose", "Gemm") and node.domain in DEFAULT_DOMAINS:
            readers = users(node.outputs[0])
            if len(readers) != 1 or node.outputs[0].is_graph_output():
                _note_batchnorms(readers, "its input is read elsewhere too", left)
                break
            follower = readers[0]
            affine = _affine_of(follower, node)
            if isinstance(affine, str):
                _note_batchnorms([follower], affine, left)
                break
            reason = _fold_into(graph, node, affine, names)
            if reason is not None:
                _note_batchnorms([follower], reason, left)
                break
            folded.append(node_name(follower))
            _take_over_output(graph, node, follower)
    for node in graph:
        if node.op_type == "BatchNormalization":
            left.setdefault(node_name(node), "it does not follow a Conv, ConvTranspose or Gemm")
    return FoldOutcome(tuple(folded), {name: reason for name, reason in left.items() if name not in folded})


def _note_batchnorms(nodes: list[ir.Node], reason: str, left: dict[str, str]) -> None:
    for node in nodes:
        if node.op_type == "BatchNormalization":
            left[node_name(node)] = reason


def output_channels(node: ir.Node) -> int | None:
    """Output channels of a Conv, ConvTranspose or Gemm with constant weight."""
    weight = constant(node.inputs[1])
    if weight is None:
        return None
    if node.op_type == "Conv":
        return int(weight.shape[0])
    if node.op_type == "ConvTranspose":
        return int(weight.shape[1]) * int_attribute(node, "group", 1)
    return int(weight.shape[0 if int_attribute(node, "transB", 0) else 1])


def _affine_of(follower: ir.Node, linear: ir.Node) -> Affine | str:
    """The follower as a per-channel affine map, or the reason why it is none."""
    if follower.domain not in DEFAULT_DOMAINS or follower.graph is not linear.graph:
        return "it stands in another graph"
    channels = output_channels(linear)
    if channels is None:
        return "the weight before it is not constant"
    if follower.op_type == "BatchNormalization":
        return batchnorm_affine(follower, channels)
    if follower.op_type in ("Add", "Mul"):
        other = follower.inputs[1] if follower.inputs[0] is linear.outputs[0] else follower.inputs[0]
        array = constant(other)
        vector = None if array is None else _per_channel(array, channels, linear)
        if vector is None:
            return "its other operand is not a constant per channel"
        if follower.op_type == "Add":
            return Affine(None, vector)
        return Affine(vector, np.zeros(channels))
    return "it is no affine map"


def batchnorm_affine(node: ir.Node, channels: int) -> Affine | str:
    """A BatchNormalization as a per-channel affine map, or the reason why it is none."""
    if int_attribute(node, "training_mode", 0) or len([o for o in node.outputs if o.name]) > 1:
        return "it is in training mode"
    arrays = [constant(value) for value in node.inputs[1:5]]
    if any(array is None or array.shape != (channels,) for array in arrays):
        return "its parameters are not constants per channel"
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in arrays if array is not None)
    scale = gamma / np.sqrt(variance + float_attribute(node, "epsilon", 1e-5))
    return Affine(scale, beta - mean * scale)


def _per_channel(array: np.ndarray, channels: int, linear: ir.Node) -> np.ndarray | None:
    """``array`` as float64 [channels] if it broadcasts along the channel axis alone."""
    if array.dtype != np.float32:
        return None
    if linear.op_type == "Gemm":
        fits = array.ndim <= 2 and array.size in (1, channels) and (array.ndim < 2 or array.shape[0] == 1)
    else:
        weight = linear.inputs[1]
        rank = len(weight.shape) if weight is not None and weight.shape is not None else 0
        fits = array.size == 1 and array.ndim <= rank
        if array.size == channels and array.ndim in (rank - 1, rank):
            fits = fits or array.shape[array.ndim - rank + 1] == channels
    if not fits:
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,)).copy()


def _fold_into(graph: ir.Graph, node: ir.Node, affine: Affine, names: Names) -> str | None:
    """Change the node's weight and bias; returns the reason if that cannot be done."""
    weight_value = node.inputs[1]
    weight = constant(weight_value)
    if weight is None or weight_value is None or weight.dtype != np.float32:
        return "the weight before it is not a float32 constant"
    channels = affine.offset.shape[0]
    bias_value = node.inputs[2] if len(node.inputs) > 2 else None
    bias = np.zeros(channels)
    if bias_value is not None:
        stored = constant(bias_value)
        if stored is None or stored.size not in (1, channels) or (stored.ndim == 2 and stored.shape[0] != 1):
            return "the bias before it is not a constant per channel"
        bias = np.broadcast_to(stored.astype(np.float64).reshape(-1), (channels,)) * float_attribute(node, "beta", 1.0)
    scale = np.ones(channels) if affine.scale is None else affine.scale
    with np.errstate(over="ignore"):  # judged below
        new_bias = (bias * scale + affine.offset).astype(np.float32)
        new_weight = weight if affine.scale is None else scale_output_channels(node, weight, affine.scale)
    if not (np.isfinite(new_bias).all() and np.isfinite(new_weight).all()):
        return "the folded weight or bias would not be finite"
    if affine.scale is not None:
        replace_constant(graph, node, 1, name_of(weight_value), new_weight, names)
    bias_name = name_of(bias_value) if bias_value is not None else f"{name_of(weight_value)}_bias"
    replace_constant(graph, node, 2, bias_name, new_bias, names)
    if "beta" in node.attributes:
        node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
    return None


def scale_output_channels(node: ir.Node, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``weight`` (float32) with output channel c multiplied by ``scale[c]`` (float64 [channels])."""
    wide = weight.astype(np.float64)
    if node.op_type == "Conv":
        wide *= scale.reshape(-1, *[1] * (weight.ndim - 1))
    elif node.op_type == "ConvTranspose":
        # [in, out/group, ...]: input channels of group g feed output channels g*(out/group) ...
        groups = int_attribute(node, "group", 1)
        per_group = scale.reshape(groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
        wide = (wide.reshape(groups, -1, *weight.shape[1:]) * per_group).reshape(weight.shape)
    elif int_attribute(node, "transB", 0):
        wide *= scale[:, None]
    else:
        wide *= scale[None, :]
    return wide.astype(np.float32)


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


def _take_over_output(graph: ir.Graph, node: ir.Node, follower: ir.Node) -> None:
    """Let ``node`` write the follower's output value name, and remove the follower."""
    old, new = node.outputs[0], follower.outputs[0]
    name, dtype, shape = name_of(new), new.dtype, new.shape
    if new.is_graph_output():
        for k, output in enumerate(graph.outputs):
            if output is new:
                graph.outputs[k] = old
    ir.convenience.replace_all_uses_with(new, old)
    graph.remove(follower, safe=True)
    old.name = name
    if dtype is not None:
        old.dtype = dtype
    if shape is not None:
        old.shape = shape
