"""Inputs of every operator that there is in torch; attributes that they hang on are set with them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import defs

from tests.unit.quantizer.autodiff.schema_draw import Draw
from worker.quantizer.autodiff.operators import COMPUTE

Inputs = list[np.ndarray | None]
_REDUCED = ("none", "add", "mul", "max", "min")
_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip


def like(draw: Draw) -> Inputs:
    return [draw.array(draw.shape(), draw.dtype())]


def alike(draw: Draw) -> Inputs:
    """Two or more that broadcast, or one where there may be one."""
    shape, dtype = draw.shape(), draw.dtype()
    option = draw.schema.inputs[-1].option
    count = draw.below(1, 3) if option == defs.OpSchema.FormalParameterOption.Variadic else len(draw.schema.inputs)
    return [draw.array(draw.broadcast(shape), dtype) for _ in range(count)]


def _pow(draw: Draw) -> Inputs:
    shape = draw.shape()
    base = np.abs(draw.array(shape, draw.dtype(0)))
    return [base, np.abs(draw.array(draw.broadcast(shape), draw.dtype(1)))]


def _not_zero(draw: Draw) -> Inputs:
    first, second = alike(draw)
    assert second is not None
    second = np.where(second == 0, np.ones_like(second), second)
    if draw.op_type == "Mod" and second.dtype == np.float32:
        draw.fixed["fmod"] = 1
    return [first, second]


def _where(draw: Draw) -> Inputs:
    shape, dtype = draw.shape(), draw.dtype(1)
    kinds = (np.bool_, dtype, dtype)
    return [draw.array(draw.broadcast(shape), kind) for kind in kinds]


def _clip(draw: Draw) -> Inputs:
    dtype = draw.dtype()
    limits = [draw.array((), dtype) if draw.coin(0.6) else None for _ in range(2)]
    return [draw.array(draw.shape(), dtype), *limits]


def _images(draw: Draw) -> Inputs:
    rank = draw.below(2, 5) if draw.op_type.startswith("Global") else draw.below(3, 5)
    sizes = [draw.below(1, 7) for _ in range(rank - 2)]
    return [draw.floats(draw.below(1, 2), draw.below(1, 4), *sizes)]


def _conv(draw: Draw) -> Inputs:
    (x,) = _images(draw)
    assert x is not None
    group, each, made = draw.below(1, 2), draw.below(1, 3), draw.below(1, 3)
    kernel = tuple(draw.below(1, 3) for _ in x.shape[2:])
    x = draw.floats(x.shape[0], group * each, *x.shape[2:])
    transposed = draw.op_type == "ConvTranspose"
    weight = (group * each, made) if transposed else (group * made, each)
    draw.fixed |= {"kernel_shape": list(kernel)} if draw.coin() else {}
    draw.fixed |= {"group": group} if group > 1 else {}
    return [x, draw.floats(*weight, *kernel), draw.floats(group * made) if draw.coin() else None]


def _gemm(draw: Draw) -> Inputs:
    m, k, n = (draw.one(1, 2, 3, 4, 5, 3, 4, 5, 2, 0) for _ in range(3))
    a, b = draw.coin(), draw.coin()
    draw.fixed |= {"transA": 1} if a else {}
    draw.fixed |= {"transB": 1} if b else {}
    c = draw.one((), (1,), (n,), (1, n), (m, 1), (m, n), (1, 1))
    first, second = ((k, m) if a else (m, k)), ((n, k) if b else (k, n))
    dtype = draw.dtype()
    return [draw.array(first, dtype), draw.array(second, dtype), draw.array(c, dtype) if draw.coin(0.7) else None]


def _matmul(draw: Draw) -> Inputs:
    m, k, n = (draw.one(1, 2, 3, 4, 5, 3, 4, 5, 2, 0) for _ in range(3))
    stack, dtype = draw.shape(0, 3), draw.dtype()
    one = draw.one((k,), (m, k), (*draw.broadcast(stack), m, k))
    other = draw.one((k,), (k, n), (*draw.broadcast(stack), k, n))
    return [draw.array(one, dtype), draw.array(other, dtype)]


_EQUATIONS: dict[str, tuple[tuple[int, ...], ...]] = {
    "bij, bjk -> bik": ((2, 3, 4), (2, 4, 5)), "...ij->...ji": ((2, 1, 3, 4),), "ij,kj,k": ((2, 3), (4, 3), (4,)),
    "ii->i": ((3, 3),), "ij->": ((2, 3),), "i,j->ij": ((2,), (3,)), "...ij,...jk": ((2, 3, 4), (4, 5)), "ij": ((2, 3),),
    "ba": ((2, 3),), "Ij,jk->Ik": ((2, 3), (3, 2)), "->": ((),), "bhd,bkd->bhk": ((2, 3, 4), (2, 5, 4)),
}  # fmt: skip


def _einsum(draw: Draw) -> Inputs:
    draw.fixed["equation"] = equation = draw.one(*_EQUATIONS)
    return [draw.floats(*shape) for shape in _EQUATIONS[equation]]


def _batch_norm(draw: Draw) -> Inputs:
    shape = draw.shape(1, 5)
    channels = shape[1] if len(shape) > 1 else 1
    return [draw.floats(*shape), *(draw.floats(channels) for _ in range(3)), np.abs(draw.floats(channels)) + 0.1]


def _by_channel(draw: Draw) -> Inputs:
    groups, each = draw.below(1, 3), draw.below(1, 2)
    x = draw.floats(draw.below(1, 2), groups * each, *draw.shape(0, 3))
    if draw.op_type == "GroupNormalization":
        draw.fixed["num_groups"] = groups
    by_group = draw.op_type == "GroupNormalization" and draw.schema.since_version < 21
    size = groups if by_group else groups * each
    return [x, draw.floats(size), draw.floats(size)]


def _layer_norm(draw: Draw) -> Inputs:
    x = draw.floats(*draw.shape(1, 5))
    axis = draw.axis(-x.ndim, x.ndim - 1)
    if draw.coin(0.7):
        draw.fixed["axis"] = axis
    else:
        axis = -1
    shape = draw.broadcast(x.shape[axis % x.ndim :]) if draw.coin(0.3) else x.shape[axis % x.ndim :]
    bias = draw.op_type == "LayerNormalization" and draw.coin()
    return [x, draw.floats(*shape), draw.floats(*shape) if bias else None]


def _reduced(draw: Draw) -> Inputs:
    dtype = draw.dtype()
    x = draw.array(draw.shape(), dtype)
    if draw.op_type in ("ReduceLogSum", "ReduceLogSumExp"):
        x = np.abs(x) + x.dtype.type(1)
    takes_axes = len(draw.schema.inputs) > 1
    return [x, np.array(draw.subset(x.ndim), np.int64) if takes_axes and draw.coin(0.7) else None]


def _cumsum(draw: Draw) -> Inputs:
    x = draw.array(draw.shape(1, 4), draw.dtype())
    return [x, np.array(draw.axis(-x.ndim, x.ndim - 1), draw.one(np.int64, np.int32)).reshape(draw.one((), (1,)))]


def _top_k(draw: Draw) -> Inputs:
    x = draw.array(draw.shape(1, 4), draw.dtype())
    axis = draw.axis(-x.ndim, x.ndim - 1)
    draw.fixed["axis"] = axis
    return [x, np.array([draw.below(0, x.shape[axis])], np.int64)]


def _reshape(draw: Draw) -> Inputs:
    x = draw.array(draw.shape(), draw.dtype())
    wanted = list(x.shape)
    if draw.coin() and len(wanted) > 1:
        wanted = [wanted[0], int(np.prod(wanted[1:]))]
    if draw.coin() and wanted:
        wanted[draw.below(0, len(wanted) - 1)] = -1
    if draw.coin(0.3) and wanted:
        wanted[draw.below(0, len(wanted) - 1)] = 0
    return [x, np.array(wanted, np.int64)]


def _squeeze(draw: Draw) -> Inputs:
    shape = tuple(draw.one(1, 1, 2, 3) for _ in range(draw.below(0, 5)))
    ones = [axis for axis, length in enumerate(shape) if length == 1]
    axes = np.array([axis - len(shape) if draw.coin(0.4) else axis for axis in ones[: draw.below(0, 5)]], np.int64)
    return [draw.array(shape, draw.dtype()), axes if draw.coin(0.7) else None]


def _unsqueeze(draw: Draw) -> Inputs:
    shape, more = draw.shape(0, 3), draw.below(0, 2)
    axes = draw.random.permutation(len(shape) + more)[:more]
    return [
        draw.array(shape, draw.dtype()),
        np.array([a - len(shape) - more if draw.coin() else a for a in axes], np.int64),
    ]


def _concat(draw: Draw) -> Inputs:
    shape, dtype = draw.shape(1, 4), draw.dtype()
    axis = draw.axis(-len(shape), len(shape) - 1)
    draw.fixed["axis"] = axis
    at = axis % len(shape)
    return [draw.array((*shape[:at], draw.below(0, 3), *shape[at + 1 :]), dtype) for _ in range(draw.below(1, 3))]


def _split(draw: Draw) -> Inputs:
    x = draw.array(draw.shape(1, 4), draw.dtype())
    axis = draw.axis(-x.ndim, x.ndim - 1)
    draw.fixed["axis"] = axis
    parts, length = draw.below(1, 3), x.shape[axis]
    draw.fixed["outputs"] = parts
    if draw.coin():
        cuts = sorted(draw.below(0, length) for _ in range(parts - 1))
        return [x, np.diff([0, *cuts, length]).astype(np.int64)]
    if "num_outputs" in draw.schema.attributes:
        draw.fixed["num_outputs"] = parts
    return [x, None]


def _slice(draw: Draw) -> Inputs:
    x = draw.array(draw.shape(1, 4), draw.dtype())
    axes = draw.subset(x.ndim) or [0]
    given = draw.coin(0.8)
    axes = axes if given else list(range(len(axes)))
    kind = draw.one(np.int64, np.int32)
    limits = [[draw.one(-9, -3, -2, -1, 0, 1, 2, 3, 9, 2**30) for _ in axes] for _ in range(2)]
    steps = np.array([draw.one(1, 1, 2, -1, -2, 3) for _ in axes], kind) if draw.coin(0.7) else None
    return [x, *(np.array(each, kind) for each in limits), np.array(axes, kind) if given else None, steps]


def _expand(draw: Draw) -> Inputs:
    shape = draw.shape()
    wanted = draw.broadcast(shape) if draw.coin(0.3) else shape
    return [draw.array(draw.broadcast(shape), draw.dtype()), np.array(wanted, np.int64)]


def _tile(draw: Draw) -> Inputs:
    x = draw.array(draw.shape(), draw.dtype())
    return [x, np.array([draw.below(0, 3) for _ in x.shape], np.int64)]


def _pad(draw: Draw) -> Inputs:
    x = draw.array(draw.shape(), draw.dtype())
    axes = draw.subset(x.ndim) if len(draw.schema.inputs) > 3 and draw.coin() else None
    low = -1 if draw.coin(0.3) else 0
    pads = np.array([draw.below(low, 3) for _ in range(2 * (x.ndim if axes is None else len(axes)))], np.int64)
    value = draw.array(draw.one((), (1,)), x.dtype.type) if draw.coin() else None
    return [x, pads, value, None if axes is None else np.array(axes, draw.one(np.int64, np.int32))]


def _blocks(draw: Draw) -> Inputs:
    size = draw.below(1, 3)
    draw.fixed["blocksize"] = size
    n, c, h, w = (draw.below(1, 3) for _ in range(4))
    shape = (n, c * size**2, h, w) if draw.op_type == "DepthToSpace" else (n, c, h * size, w * size)
    return [draw.array(shape, draw.dtype())]


def _trilu(draw: Draw) -> Inputs:
    x = draw.array(draw.shape(2, 4), draw.dtype())
    return [x, np.array(draw.below(-5, 5), np.int64).reshape(draw.one((), (1,))) if draw.coin() else None]


def _gather(draw: Draw) -> Inputs:
    x = draw.array(draw.shape(1, 4), draw.dtype())
    axis = draw.axis(-x.ndim, x.ndim - 1)
    draw.fixed["axis"] = axis
    length, kind = x.shape[axis], draw.one(np.int64, np.int32)
    shape = draw.shape(0, 3)
    if draw.op_type == "GatherElements":
        shape = tuple(
            draw.below(0, n) if k == axis % x.ndim else draw.below(min(n, 1), n) for k, n in enumerate(x.shape)
        )
    if length == 0:
        shape = (0, *shape[1:])
    return [x, draw.random.integers(-length, max(length, 1), shape).astype(kind)]


def _gather_nd(draw: Draw) -> Inputs:
    shape = tuple(draw.below(1, 4) for _ in range(draw.below(1, 4)))
    batch = draw.below(0, len(shape) - 1)
    depth = draw.below(1, len(shape) - batch)
    draw.fixed |= {"batch_dims": batch} if batch else {}
    lead = (*shape[:batch], *draw.shape(0, 2))
    last = [draw.random.integers(-n, n, lead) for n in shape[batch : batch + depth]]
    return [draw.array(shape, draw.dtype()), np.stack(last, -1).astype(np.int64)]


def _scatter(draw: Draw) -> Inputs:
    shape, dtype = tuple(draw.below(1, 5) for _ in range(draw.below(1, 3))), draw.dtype()
    x = draw.array(shape, dtype)
    reduction = draw.one(*_REDUCED) if "reduction" in draw.schema.attributes else "none"
    draw.fixed |= {"reduction": reduction} if reduction != "none" else {}
    if draw.op_type == "ScatterND":
        depth = draw.below(1, len(shape))
        flat = (
            np.arange(np.prod(shape[:depth]))
            if reduction == "none"
            else draw.random.integers(0, np.prod(shape[:depth]), 4)
        )
        chosen = draw.random.permutation(flat)[:3]
        index = np.stack(np.unravel_index(chosen, shape[:depth]), -1).astype(np.int64)
        index = np.where(draw.random.random(index.shape) < 0.3, index - np.array(shape[:depth]), index)
        return [x, index, draw.array((len(chosen), *shape[depth:]), dtype)]
    axis = draw.axis(-len(shape), len(shape) - 1)
    draw.fixed["axis"] = axis
    at, length = axis % len(shape), shape[axis]
    small = tuple(draw.below(1, n) for n in shape)
    index = np.argsort(draw.random.random((*small[:at], length, *small[at + 1 :])), axis=at).take(
        range(small[at]), axis=at
    )
    index = np.where(draw.random.random(index.shape) < 0.3, index - length, index).astype(draw.one(np.int64, np.int32))
    return [x, index, draw.array(index.shape, dtype)]


def _one_hot(draw: Draw) -> Inputs:
    indices = draw.array(draw.shape(0, 3), draw.one(np.int64, np.int32, np.float32))
    depth = np.array(draw.below(1, 5), draw.one(np.int64, np.float32)).reshape(draw.one((), (1,)))
    if indices.dtype == np.float32:
        indices = np.round(indices)
    draw.fixed |= {"axis": draw.axis(-indices.ndim - 1, indices.ndim)} if draw.coin() else {}
    return [indices, depth, draw.array((2,), draw.one(np.float32, np.int64))]


def _resize(draw: Draw) -> Inputs:
    rank = draw.one(4, 4, 4, 3, 5, 2, 1)
    x = draw.floats(*[draw.below(1, 2) if k < rank - 2 else draw.below(1, 6) for k in range(rank)])
    axes = list(range(rank))
    if "axes" in draw.schema.attributes and draw.coin(0.3):
        axes = sorted(axis % rank for axis in draw.subset(rank)) or [rank - 1]
        draw.fixed["axes"] = [axis - rank if draw.coin() else axis for axis in axes]
    outer = draw.coin(0.85)
    kept = [outer and axis < rank - 2 for axis in axes]
    scales = [1.0 if keep else draw.one(0.5, 0.6, 0.7, 1.0, 1.3, 2.0, 2.0, 3.0, 2.7) for keep in kept]
    sizes = [x.shape[axis] if keep else draw.below(1, 9) for axis, keep in zip(axes, kept, strict=True)]
    where = draw.one(*_COORDINATES, None)
    draw.fixed |= {} if where is None else {"coordinate_transformation_mode": where}
    region = np.array([0.1] * len(axes) + [0.9] * len(axes), np.float32)
    roi = region if where == "tf_crop_and_resize" else None
    if draw.coin():
        return [x, roi, np.array(scales, np.float32), None]
    return [x, roi, None, np.array(sizes, np.int64)]


def _grid_sample(draw: Draw) -> Inputs:
    spatial = draw.one(2, 2, 2, 3)
    x = draw.floats(draw.below(1, 2), draw.below(1, 2), *[draw.below(1, 5) for _ in range(spatial)])
    made = [draw.below(1, 4) for _ in range(spatial)]
    return [x, draw.random.uniform(-1.5, 1.5, (len(x), *made, spatial)).astype(np.float32)]


def _constant_of_shape(draw: Draw) -> Inputs:
    return [np.array(draw.shape(0, 4), np.int64)]


def _range(draw: Draw) -> Inputs:
    kind = draw.one(np.float32, np.int64, np.int32)
    start, limit = draw.below(-3, 3), draw.below(-6, 9)
    return [
        np.array(start, kind),
        np.array(limit, kind),
        np.array(draw.one(1, 2, -1, 3) * (0.7 if kind is np.float32 else 1), kind),
    ]


def _dropout(draw: Draw) -> Inputs:
    ratio = np.array(0.3, np.float32) if draw.coin() else None
    return [draw.floats(*draw.shape()), ratio, np.array(draw.coin(0.3)) if draw.coin(0.3) else None]


def _untied(draw: Draw) -> Inputs:
    return [draw.random.normal(size=draw.shape()).astype(np.float32)]


def _prelu(draw: Draw) -> Inputs:
    shape = draw.shape()
    return [draw.floats(*shape), draw.floats(*draw.broadcast(shape))]


def _specials(draw: Draw) -> Inputs:
    x = draw.floats(*draw.shape())
    return [
        np.where(draw.random.random(x.shape) < 0.5, np.float32(draw.one(np.nan, np.inf, -np.inf)), x).astype(np.float32)
    ]


def _cast_like(draw: Draw) -> Inputs:
    return [*like(draw), draw.array((1,), draw.dtype(1))]


INPUTS: dict[str, Callable[[Draw], Inputs]] = {
    "BatchNormalization": _batch_norm, "CastLike": _cast_like, "Clip": _clip, "Concat": _concat,
    "Constant": lambda _: [], "ConstantOfShape": _constant_of_shape, "Conv": _conv, "ConvTranspose": _conv,
    "CumSum": _cumsum, "DepthToSpace": _blocks, "Div": _not_zero, "Dropout": _dropout, "Einsum": _einsum,
    "Expand": _expand, "EyeLike": lambda draw: [draw.array(draw.shape(2, 2), draw.dtype())], "Gather": _gather,
    "GatherElements": _gather, "GatherND": _gather_nd, "Gemm": _gemm, "GridSample": _grid_sample,
    "GroupNormalization": _by_channel, "InstanceNormalization": _by_channel, "IsInf": _specials, "IsNaN": _specials,
    "LRN": _images, "LayerNormalization": _layer_norm, "MatMul": _matmul, "MeanVarianceNormalization": _untied,
    "Mod": _not_zero, "OneHot": _one_hot, "PRelu": _prelu, "Pad": _pad, "Pow": _pow, "RMSNormalization": _layer_norm,
    "Range": _range, "Reshape": _reshape, "Resize": _resize, "ScatterElements": _scatter, "ScatterND": _scatter,
    "SimplifiedLayerNormalization": _layer_norm, "Slice": _slice, "SpaceToDepth": _blocks, "Split": _split,
    "Squeeze": _squeeze, "Tile": _tile, "TopK": _top_k, "Trilu": _trilu, "Unsqueeze": _unsqueeze, "Where": _where,
    **{op: _images for op in COMPUTE if op.endswith("Pool")},
    **{op: _reduced for op in COMPUTE if op.startswith("Reduce")},
}  # fmt: skip
