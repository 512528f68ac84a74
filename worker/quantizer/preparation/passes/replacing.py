"""One operator in place of another: a Gemm for MatMul and Add, a depthwise Conv for a BatchNormalization, Slices for a
Split, for targets that know none; and Relu for Clip(0, 6), the one that changes what a model computes, where values
exceed 6.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.regions import OUTSIDE_REGIONS, region_of
from worker.quantizer.graph.rewriting import (
    INPUT_NOT_FLOAT32,
    RANK_UNKNOWN,
    Attribute,
    Editor,
    Rewrite,
    axis_length,
    only_reader,
    other_operand,
    rank_of,
    rewrites,
    scalar,
    static_shape,
)
from worker.quantizer.graph.values import constant, int_attribute, is_constant, is_float32, name_of, node_name
from worker.quantizer.preparation.affine import PARAMETERS_NOT_PER_CHANNEL, batchnorm_affine


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


NO_POSITIONS = declare("no-positions", "its input has {rank} axes; a Conv needs positions")
CONV_NOT_FINITE = declare("conv-not-finite", "the weight or bias would not be finite")


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
