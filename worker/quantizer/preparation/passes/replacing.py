"""Operators that become others, which targets know or later steps deal with; TensorFlow's Conv1D among them.

A BatchNormalization that could not be folded becomes a depthwise 1x1 Conv: y_c = s_c x_c + t_c. A MatMul takes in the
bias behind it. A Split becomes one Slice per output. Clip(0, 6) becomes Relu, the one pass that changes what a model
computes, where values exceed 6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.metadata import OUTSIDE_REGIONS, region_of
from worker.quantizer.graph.rewriting import (
    INPUT_NOT_FLOAT32,
    RANK_UNKNOWN,
    Attribute,
    Editor,
    Rewrite,
    axis_length,
    only_reader,
    other_operand,
    producer,
    rank_of,
    rewrites,
    scalar,
    static_shape,
)
from worker.quantizer.graph.values import constant, input_of, int_attribute, is_constant, is_float32, name_of, node_name
from worker.quantizer.ops.table import Family, named
from worker.quantizer.preparation.affine import PARAMETERS_NOT_PER_CHANNEL, batchnorm_affine

NO_POSITIONS = declare("no-positions", "its input has {rank} axes; a Conv needs positions")
CONV_NOT_FINITE = declare("conv-not-finite", "the weight or bias is not finite")


@rewrites("BatchNormalization", what="BatchNormalization nodes became Conv")
def batch_norm_to_conv(norm: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """BatchNormalization over images, sequences or volumes -> Conv with one 1x1 filter per channel."""
    source = norm.inputs[0]
    rank = rank_of(source)
    if source is None or rank is None:
        return RANK_UNKNOWN()
    if rank < 3:
        return NO_POSITIONS(rank=rank)
    if not is_float32(source):
        return INPUT_NOT_FLOAT32()
    gamma = constant(norm.inputs[1])
    if gamma is None:
        return PARAMETERS_NOT_PER_CHANNEL()
    affine = batchnorm_affine(norm, int(gamma.size))
    if isinstance(affine, Reason):
        return affine
    scale = np.ones_like(affine.offset) if affine.scale is None else affine.scale
    with np.errstate(over="ignore"):  # judged below
        weight, bias = scale.astype(np.float32), affine.offset.astype(np.float32)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        return CONV_NOT_FINITE()
    stem = name_of(norm.outputs[0])
    values = [
        editor.constant(f"{stem}_weight", weight.reshape(-1, *[1] * (rank - 1))),
        editor.constant(f"{stem}_bias", bias),
    ]
    attributes: dict[str, Attribute] = {"group": int(gamma.size), "kernel_shape": [1] * (rank - 2)}
    conv = editor.node("Conv", [source, *values], node_name(norm), attributes)
    return Rewrite([norm], [conv], [(norm.outputs[0], conv.outputs[0])])


@rewrites("MatMul", what="MatMul + Add pairs became Gemm")
def matmul_add_to_gemm(matmul: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """MatMul of two matrices and Add -> Gemm, which keeps the MatMul's name: users know the layer by it."""
    left, right = matmul.inputs
    if rank_of(left) != 2 or rank_of(right) != 2:
        return None
    add = only_reader(matmul.outputs[0], "Add")
    bias = other_operand(add, matmul.outputs[0]) if add is not None else None
    if add is None or bias is None or not is_constant(bias) or not is_float32(left) or not is_float32(bias):
        return None
    if not _is_bias(bias, right, left):
        return None
    gemm = editor.node("Gemm", [left, right, bias], node_name(matmul))
    return Rewrite([matmul, add], [gemm], [(add.outputs[0], gemm.outputs[0])])


def _is_bias(bias: ir.Value, right: ir.Value | None, left: ir.Value | None) -> bool:
    """True if ``bias`` broadcasts to the product's shape for sure; it must not widen it."""
    shape = static_shape(bias)
    if shape is None or len(shape) > 2:
        return False
    rows = left.shape[0] if left is not None and left.shape is not None else None
    columns = right.shape[1] if right is not None and right.shape is not None else None
    wanted = (rows, columns)[2 - len(shape) :]
    return all(mine == 1 or mine == length for mine, length in zip(shape, wanted, strict=True))


PARTS_UNKNOWN = declare("parts-unknown", "the sizes of its parts are not known")


@rewrites("Split", what="Split nodes became Slice nodes")
def split_to_slice(split: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Split with known parts -> Slice; parts that nothing reads are left out."""
    source = split.inputs[0]
    rank = rank_of(source)
    if source is None:
        return None
    axis = int_attribute(split, "axis", 0)
    if axis < 0 and rank is None:
        return RANK_UNKNOWN()
    axis = axis % rank if rank is not None else axis
    sizes = _sizes(split, axis_length(source, axis))
    if sizes is None:
        return PARTS_UNKNOWN()
    wanted = [k for k, value in enumerate(split.outputs) if value.name and (value.uses() or value.is_graph_output())]
    if not wanted:
        return None
    ends = np.cumsum(sizes)
    name = node_name(split)
    axes = editor.constant(f"{name}_axes", np.array([axis], np.int64))
    slices = []
    for k in wanted:
        limits = [
            editor.constant(f"{name}_{word}_{k}", np.array([limit], np.int64))
            for word, limit in (("start", ends[k] - sizes[k]), ("end", ends[k]))
        ]
        made = editor.node("Slice", [source, *limits, axes], editor.name(f"{name}_Slice_{k}"), dtype=source.dtype)
        slices.append(made)
    results = [(split.outputs[k], made.outputs[0]) for k, made in zip(wanted, slices, strict=True)]
    return Rewrite([split], slices, results, {made.name or "": "Split" for made in slices})


def _sizes(split: ir.Node, length: int | None) -> list[int] | None:
    """Lengths of the parts along the axis; without a list all are equal, the last one may be shorter."""
    if len(split.inputs) > 1 and split.inputs[1] is not None:
        array = constant(split.inputs[1])
        return None if array is None else [int(size) for size in array.reshape(-1)]
    if length is None:
        return None
    parts = int_attribute(split, "num_outputs", len(split.outputs))
    size = -(-length // parts)
    return [max(0, min(size, length - k * size)) for k in range(parts)]


@rewrites("Clip", what="Clip(0, 6) nodes became Relu")
def clip6_to_relu(clip: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Clip with the constant limits 0 and 6 -> Relu."""
    limits = [scalar(value) for value in clip.inputs[1:3]]
    if limits != [0.0, 6.0]:
        return None
    if not is_float32(clip.inputs[0]):
        return INPUT_NOT_FLOAT32()
    if editor.in_regions and region_of(clip) is None:
        return OUTSIDE_REGIONS()
    relu = editor.node("Relu", [clip.inputs[0]], node_name(clip))
    return Rewrite([clip], [relu], [(clip.outputs[0], relu.outputs[0])])


# TensorFlow's Conv1D: a 2-D Conv of height 1 between Unsqueeze and Squeeze.
#
# Its bias and its activation function come behind the Squeeze, where they cannot be folded into the Conv, and where the
# Add of a constant would cut the quantized network in two. They compute element by element, so they may come first; the
# Conv stays as it is: onnxruntime's float kernel for one axis is slower, its integer kernels are equally fast.

ADDEND_NOT_PER_CHANNEL = declare("addend-not-per-channel", "what is added after it is not constant per channel")
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
        given = constant(input_of(node, 1))
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
