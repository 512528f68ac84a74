"""TensorFlow's Conv1D: a 2-D Conv of height 1 between Unsqueeze and Squeeze.

Its bias and its activation function come behind the Squeeze, where they cannot be folded into the Conv, and where the
Add of a constant would cut the quantized network in two. They compute element by element, so they may come first; the
Conv stays as it is: onnxruntime's float kernel for one axis is slower, its integer kernels are equally fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import (
    INPUT_NOT_FLOAT32,
    Editor,
    Rewrite,
    axis_length,
    only_reader,
    other_operand,
    producer,
    rank_of,
    rewrites,
    static_shape,
)
from worker.quantizer.graph.values import constant, is_constant, is_float32, name_of, node_name
from worker.quantizer.ops.record import Family
from worker.quantizer.ops.table import named

ADDEND_NOT_PER_CHANNEL = declare("addend-not-per-channel", "what is added behind it is no constant per channel")

# Those without a tensor of their own, whose axes would have to follow.
_ACTIVATIONS = named(lambda record: record.family is Family.ACTIVATION and not record.trained)
_CHANNELS = 1


@rewrites("Squeeze", "Reshape", what="biases and activation functions of a Conv1D were put before its Squeeze")
def sink_conv1d_squeeze(squeeze: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Conv, Transpose?, Squeeze, Transpose?, Add, Relu -> Conv, Add, Relu, Transpose?, Squeeze, Transpose?."""
    before = only_writer(squeeze.inputs[0], "Transpose")
    conv = producer(before.inputs[0] if before is not None else squeeze.inputs[0], "Conv")
    if conv is None or only_reader(conv.outputs[0], "Transpose", "Squeeze", "Reshape") is None:
        return None
    after = only_reader(squeeze.outputs[0], "Transpose")
    movers = [node for node in (before, squeeze, after) if node is not None]
    axis = _channel_axis(conv, movers)
    if axis is None:
        return None
    followers = _followers(movers[-1].outputs[0])
    if not followers:
        return None
    if not is_float32(conv.outputs[0]):
        return INPUT_NOT_FLOAT32()
    addends = {node: _addend(node, axis, conv) for node in followers if node.op_type == "Add"}
    if any(found is None for found in addends.values()):
        return ADDEND_NOT_PER_CHANNEL()
    return _swapped(conv, movers, followers, addends, editor)


def only_writer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node of ``op_type`` that makes ``value`` for one reader, else None."""
    node = producer(value, op_type)
    return node if node is not None and value is not None and len(value.uses()) == 1 else None


def _channel_axis(conv: ir.Node, movers: Sequence[ir.Node]) -> int | None:
    """Where the channels of a 2-D Conv stand behind movers that take one axis of length 1 away; None if they do not."""
    value = conv.outputs[0]
    if rank_of(value) != 4 or rank_of(movers[-1].outputs[0]) != 3:
        return None
    axes = list(range(4))
    for node in movers:
        shape = static_shape(node.inputs[0])
        if node.op_type == "Transpose":
            perm = node.attributes.get("perm")
            axes = [axes[k] for k in perm.as_ints()] if perm is not None else axes[::-1]
        else:
            gone = _taken_away(node, shape)
            if gone is None or axes[gone] not in (2, 3) or axis_length(value, axes[gone]) != 1:
                return None
            del axes[gone]
    return axes.index(_CHANNELS) if len(axes) == 3 else None


def _taken_away(node: ir.Node, shape: tuple[int, ...] | None) -> int | None:
    """The one axis that a Squeeze, or a Reshape that is as good as one, takes away."""
    if node.op_type == "Squeeze":
        given = constant(node.inputs[1]) if len(node.inputs) > 1 else None
        return int(given.reshape(-1)[0]) % 4 if given is not None and given.size == 1 else None
    made = static_shape(node.outputs[0])
    if shape is None or made is None:
        return None
    # where neighbours are 1 as well, taking either away moves nothing
    return next((k for k in (2, 1, 3) if shape[k] == 1 and (*shape[:k], *shape[k + 1 :]) == made), None)


def _followers(value: ir.Value) -> list[ir.Node]:
    """What follows ``value`` element by element: Adds of a constant and activation functions."""
    found: list[ir.Node] = []
    while True:
        node = only_reader(value, "Add", *_ACTIVATIONS)
        other = other_operand(node, value) if node is not None and node.op_type == "Add" else None
        if node is None or (node.op_type == "Add" and not is_constant(other)):
            return found
        if any(operand is not value and not is_constant(operand) for operand in node.inputs if operand is not None):
            return found
        found.append(node)
        value = node.outputs[0]


def _addend(add: ir.Node, axis: int, conv: ir.Node) -> np.ndarray | None:
    """The constant of an Add of rank 3 as [1, channels, 1, 1]; None if it differs along another axis."""
    array = next((found for found in map(constant, add.inputs) if found is not None), None)
    channels = axis_length(conv.outputs[0], _CHANNELS)
    if array is None or array.dtype != np.float32 or array.ndim > 3 or channels is None:
        return None
    whole = array.reshape((1,) * (3 - array.ndim) + array.shape)
    if any(length != 1 for k, length in enumerate(whole.shape) if k != axis) or whole.size not in (1, channels):
        return None
    return np.ascontiguousarray(np.broadcast_to(whole.reshape(-1), (channels,)).reshape(1, channels, 1, 1))


def _swapped(
    conv: ir.Node,
    movers: Sequence[ir.Node],
    followers: Sequence[ir.Node],
    addends: dict[ir.Node, np.ndarray | None],
    editor: Editor,
) -> Rewrite:
    made: list[ir.Node] = []
    value, shape = conv.outputs[0], conv.outputs[0].shape
    for node in followers:
        addend = addends.get(node)
        inputs = [value, *node.inputs[1:]]
        if addend is not None:
            inputs = [value, editor.constant(f"{name_of(node.outputs[0])}_addend", addend)]
        value = _again(node, inputs, made, shape)
    for node in movers:
        value = _again(node, [value, *node.inputs[1:]], made, node.outputs[0].shape)
    for node in made:
        node.outputs[0].name = editor.name(f"{node_name(node)}_before")
    return Rewrite([*movers, *followers], made, [(followers[-1].outputs[0], value)])


def _again(node: ir.Node, inputs: Sequence[ir.Value | None], made: list[ir.Node], shape: ir.Shape | None) -> ir.Value:
    twin = ir.node(node.op_type, list(inputs), attributes=dict(node.attributes), name=node_name(node))
    twin.outputs[0].dtype, twin.outputs[0].shape = ir.DataType.FLOAT, shape.copy() if shape is not None else None
    made.append(twin)
    return twin.outputs[0]
