"""Normalizations that are written out become one node, LpNormalization among them.

Standardization over axes A: n = (x - mean_A(x)) / sqrt(mean_A((x - mean_A(x))^2) + epsilon).
LayerNormalization (Ba et al. 2016): A = the last axes, y = n * scale + bias with the shape of these axes.
InstanceNormalization (Ulyanov et al. 2016): A = all axes behind the channels, one scale and bias per channel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import (
    INNER_READ_ELSEWHERE,
    INPUT_NOT_FLOAT32,
    Editor,
    Rewrite,
    axis_length,
    enclosed,
    only_reader,
    other_operand,
    producer,
    rank_of,
    reduced_axes,
    rewrites,
    scalar,
    squaring,
    static_shape,
)
from worker.quantizer.graph.values import constant, int_attribute, is_float32, name_of, node_name

EPSILON_NOT_CONSTANT = declare("epsilon-not-constant", "its epsilon is not a constant")
AXES_DIFFER = declare("axes-differ", "its axes are not known, or differ")
AXES_DROPPED = declare("axes-dropped", "it does not keep the reduced axes")
NOT_DIVIDED = declare("not-divided-by-root", "the deviation is not divided by the root")
NOT_LAST_AXES = declare("not-last-axes", "it normalizes over axes {axes} of {rank}, not the last ones")
AXIS_LENGTH_UNKNOWN = declare("axis-length-unknown", "the length of its axes is not known")
CHANNELS_UNKNOWN = declare("channels-unknown", "the number of its channels is not known")
_LAYER_NORM_OPSET = 17


@dataclass(frozen=True)
class Standardized:
    """A matched standardization."""

    source: ir.Value  # x
    axes: tuple[int, ...]  # A, not negative, in order
    epsilon: float  # added to the variance
    nodes: tuple[ir.Node, ...]  # the matched nodes
    result: ir.Value  # n


@dataclass(frozen=True)
class _Affine:
    scale: np.ndarray
    bias: np.ndarray
    nodes: tuple[ir.Node, ...]
    result: ir.Value


def standardized(root: ir.Node) -> Standardized | Reason | None:
    """The standardization around a Sqrt node, or why it is none, or None if it does not look like one."""
    shifted = producer(root.inputs[0], "Add")
    if shifted is None:
        return None
    variances = [producer(value, "ReduceMean") for value in shifted.inputs]
    variance = next((node for node in variances if node is not None), None)
    squared = squaring(variance.inputs[0]) if variance is not None else None
    deviation = producer(squared.inputs[0], "Sub") if squared is not None else None
    mean = producer(deviation.inputs[1], "ReduceMean") if deviation is not None else None
    if variance is None or squared is None or deviation is None or mean is None:
        return None
    source = deviation.inputs[0]
    if source is None or mean.inputs[0] is not source:
        return None
    epsilon = scalar(other_operand(shifted, variance.outputs[0]) or None)
    if epsilon is None or epsilon < 0:
        return EPSILON_NOT_CONSTANT()
    axes = reduced_axes(mean)
    if axes is None or axes != reduced_axes(variance):
        return AXES_DIFFER()
    if not int_attribute(mean, "keepdims", 1) or not int_attribute(variance, "keepdims", 1):
        return AXES_DROPPED()
    if not is_float32(source):
        return INPUT_NOT_FLOAT32()
    quotient = _quotient(root, deviation)
    if quotient is None:
        return NOT_DIVIDED()
    nodes = (mean, deviation, squared, variance, shifted, root, *quotient)
    return Standardized(source, axes, epsilon, tuple(dict.fromkeys(nodes)), quotient[-1].outputs[0])


def _quotient(root: ir.Node, deviation: ir.Node) -> tuple[ir.Node, ...] | None:
    """The nodes that divide the deviation (or a twin of it) by the root, the last one last."""
    divide = only_reader(root.outputs[0], "Div", "Reciprocal")
    if divide is None:
        return None
    inverted = divide.op_type == "Reciprocal" or scalar(divide.inputs[0]) == 1
    if not inverted:
        twin = producer(divide.inputs[0], "Sub")
        if divide.inputs[1] is not root.outputs[0] or twin is None or not _same_node(twin, deviation):
            return None
        return (*_with_mean(twin), divide)
    multiply = only_reader(divide.outputs[0], "Mul")
    twin = producer(other_operand(multiply, divide.outputs[0]), "Sub") if multiply is not None else None
    if multiply is None or twin is None or not _same_node(twin, deviation):
        return None
    return (*_with_mean(twin), divide, multiply)


def _same_node(node: ir.Node, other: ir.Node) -> bool:
    """True for the same Sub, or one of the same operands, as some exporters write."""
    if node is other:
        return True
    mean, other_mean = producer(node.inputs[1], "ReduceMean"), producer(other.inputs[1], "ReduceMean")
    return node.inputs[0] is other.inputs[0] and (
        node.inputs[1] is other.inputs[1]
        or (
            mean is not None
            and other_mean is not None
            and mean.inputs[0] is other_mean.inputs[0]
            and reduced_axes(mean) == reduced_axes(other_mean)
            and int_attribute(mean, "keepdims", 1) == 1
        )
    )


def _with_mean(deviation: ir.Node) -> tuple[ir.Node, ...]:
    mean = producer(deviation.inputs[1], "ReduceMean")
    return (deviation,) if mean is None else (mean, deviation)


@rewrites("Sqrt", what="groups became LayerNormalization")
def fuse_layer_norm(root: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div (Mul, Add) -> LayerNormalization (opset 17)."""
    found = standardized(root)
    if found is None or isinstance(found, Reason):
        return found
    rank = rank_of(found.source) or 0
    if found.axes != tuple(range(rank - len(found.axes), rank)):
        return NOT_LAST_AXES(axes=list(found.axes), rank=rank)
    too_old = editor.too_old("LayerNormalization", _LAYER_NORM_OPSET)
    if too_old is not None:
        return too_old
    lengths = [axis_length(found.source, axis) for axis in found.axes]
    shape = tuple(length for length in lengths if length is not None)
    if len(shape) != len(lengths):
        return AXIS_LENGTH_UNKNOWN()
    affine = _affine(found.result, shape)
    axis = -len(shape)
    return _fused(found, affine, "LayerNormalization", {"axis": axis, "epsilon": found.epsilon}, editor)


@rewrites("Sqrt", what="groups became InstanceNormalization")
def fuse_instance_norm(root: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """The same nodes over all spatial axes -> InstanceNormalization."""
    found = standardized(root)
    if found is None or isinstance(found, Reason):
        return found
    rank = rank_of(found.source) or 0
    if rank < 3 or found.axes != tuple(range(2, rank)):
        return None
    channels = axis_length(found.source, 1)
    if channels is None:
        return CHANNELS_UNKNOWN()
    spatial = [axis_length(found.source, axis) for axis in found.axes]
    per_channel = _affine(found.result, (channels, *[1] * (rank - 2)))
    if not per_channel.nodes and (rank == 3 or _affine_of_layer(found.result, spatial)):
        return None  # a LayerNormalization over the last axes, or as good as one
    flat = _Affine(per_channel.scale.reshape(-1), per_channel.bias.reshape(-1), per_channel.nodes, per_channel.result)
    return _fused(found, flat, "InstanceNormalization", {"epsilon": found.epsilon}, editor)


def _affine_of_layer(value: ir.Value, lengths: list[int | None]) -> bool:
    shape = tuple(length for length in lengths if length is not None)
    return len(shape) == len(lengths) and bool(_affine(value, shape).nodes)


def _affine(value: ir.Value, shape: tuple[int, ...]) -> _Affine:
    """The Mul and the Add of constants behind ``value`` as float32 arrays of ``shape``, as far as they fit."""
    nodes: list[ir.Node] = []
    arrays = {"Mul": np.ones(shape, np.float32), "Add": np.zeros(shape, np.float32)}
    for op_type in arrays:
        follower = only_reader(value, op_type)
        found = _operand(follower, value, shape)
        if follower is not None and found is not None:
            nodes, arrays[op_type], value = [*nodes, follower], found, follower.outputs[0]
    return _Affine(arrays["Mul"], arrays["Add"], tuple(nodes), value)


def _operand(node: ir.Node | None, value: ir.Value, shape: tuple[int, ...]) -> np.ndarray | None:
    """The constant operand beside ``value``, broadcast to ``shape``; None if it reaches beyond it."""
    other = other_operand(node, value) if node is not None else None
    if other is None or other.const_value is None or other.const_value.size > np.prod(shape):
        return None
    array = constant(other)
    if array is None or array.dtype != np.float32:
        return None
    beyond = array.ndim - len(shape)
    if beyond > 0 and set(array.shape[:beyond]) != {1}:
        return None
    kept: tuple[int, ...] = array.shape[max(beyond, 0) :]
    if any(mine not in (1, wanted) for mine, wanted in zip(kept[::-1], shape[::-1], strict=False)):
        return None
    return np.ascontiguousarray(np.broadcast_to(array.reshape(kept), shape))


def _fused(
    found: Standardized, affine: _Affine, op_type: str, attributes: dict[str, int | float], editor: Editor
) -> Rewrite | Reason:
    nodes = (*found.nodes, *affine.nodes)
    if not enclosed(nodes, [affine.result]):
        return INNER_READ_ELSEWHERE()
    last = nodes[-1]
    stem = name_of(affine.result)
    scale = editor.constant(f"{stem}_scale", affine.scale)
    bias = editor.constant(f"{stem}_bias", affine.bias)
    node = editor.node(op_type, [found.source, scale, bias], node_name(last), attributes)
    return Rewrite(nodes, [node], [(affine.result, node.outputs[0])], source=found.source)


# Decomposed L2 normalization becomes LpNormalization: y = x / max(||x||_2, floor) along one axis.
#
# LpNormalization has no floor, and gives 0 for a vector of zeros. The fused node therefore computes the same for every
# vector longer than the floor; floors above 1e-6 are left alone.

EXPANDED_OTHERWISE = declare("length-expanded-otherwise", "its length is expanded to another shape")
SEVERAL_AXES = declare("several-axes", "it normalizes over more than one axis")
AXIS_DROPPED = declare("axis-dropped", "it does not keep the reduced axis")
HIGH_FLOOR = declare("high-floor", "its floor of {floor:g} changes short vectors")
_LARGEST_FLOOR = 1e-6


@rewrites("ReduceL2", "ReduceSumSquare", "ReduceSum", what="groups became LpNormalization")
def fuse_l2_norm(reduction: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Division by the own length in its usual spellings -> LpNormalization with p = 2.

    Follow the length from where it is reduced to where x is divided by it.
    """
    nodes, value, floor = [reduction], reduction.outputs[0], 0.0
    if reduction.op_type == "ReduceSum":
        squared = squaring(reduction.inputs[0])
        if squared is None:
            return None
        nodes.insert(0, squared)
    source = nodes[0].inputs[0]
    if source is None:
        return None
    if reduction.op_type != "ReduceL2":
        square_floor, value, nodes = _through_floor(value, nodes)
        root = only_reader(value, "Sqrt")
        if root is None:
            return None
        floor, nodes, value = math.sqrt(square_floor), [*nodes, root], root.outputs[0]
    own_floor, value, nodes = _through_floor(value, nodes)
    expand = only_reader(value, "Expand")
    if expand is not None:
        if not _expands_to(expand, source):
            return EXPANDED_OTHERWISE()
        shape_node = producer(expand.inputs[1], "Shape")
        nodes += [shape_node, expand] if shape_node is not None and len(shape_node.outputs[0].uses()) == 1 else [expand]
        value = expand.outputs[0]
    divide = only_reader(value, "Div")
    if divide is None or divide.inputs[0] is not source or divide.inputs[1] is not value:
        return None
    axes = reduced_axes(reduction)
    if axes is None or len(axes) != 1:
        return SEVERAL_AXES()
    if not int_attribute(reduction, "keepdims", 1):
        return AXIS_DROPPED()
    if not is_float32(source):
        return INPUT_NOT_FLOAT32()
    if max(floor, own_floor) > _LARGEST_FLOOR:
        return HIGH_FLOOR(floor=max(floor, own_floor))
    form = {"axis": axes[0], "p": 2}
    return editor.fused("LpNormalization", source, [*nodes, divide], divide.outputs[0], form)


def _through_floor(value: ir.Value, nodes: list[ir.Node]) -> tuple[float, ir.Value, list[ir.Node]]:
    """The floor that Clip, Max or Add puts under ``value``, and the value and the nodes up to behind it."""
    node = only_reader(value, "Clip", "Max", "Add")
    if node is None:
        return 0.0, value, nodes
    if node.op_type == "Clip":
        bounded = len(node.inputs) > 2 and node.inputs[2] is not None
        floor = scalar(node.inputs[1]) if len(node.inputs) > 1 and not bounded else None
    else:
        floor = scalar(other_operand(node, value))
    if floor is None or floor < 0:
        return 0.0, value, nodes
    return floor, node.outputs[0], [*nodes, node]


def _expands_to(expand: ir.Node, source: ir.Value) -> bool:
    """True if the result has the shape of ``source`` for sure."""
    shape = producer(expand.inputs[1], "Shape")
    if shape is not None:
        return shape.inputs[0] is source and not int_attribute(shape, "start", 0) and "end" not in shape.attributes
    wanted = constant(expand.inputs[1])
    known = static_shape(source)
    return wanted is not None and known is not None and tuple(int(axis) for axis in wanted) == known
