"""Means over all positions become poolings, large poolings become two, padding is counted and written in one way.

onnxruntime (1.31) pads SAME without regard to dilations, and begins no window in the padding behind
(pool_attributes.h); onnx's shape inference (1.23) differs in both. Wrong lengths are worse than none: the runtime plans
its buffers by them, and fuses by them. So such pools get explicit pads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import (
    INPUT_NOT_FLOAT32,
    RANK_UNKNOWN,
    Editor,
    PassOutcome,
    Rewrite,
    only_reader,
    rank_of,
    reduced_axes,
    rewrites,
    scalar,
    static_shape,
)
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    constant,
    input_of,
    int_attribute,
    is_float32,
    node_name,
    plain_attributes,
    string_attribute,
)
from worker.quantizer.ops.table import Family, operator
from worker.quantizer.ops.windows import PoolPlaces, counts_windows_oddly, has_gaps
from worker.quantizer.preparation.passes.shapes import infer_shapes

NOT_ALL_POSITIONS = declare("not-all-positions", "it averages over {over}, not over all positions of a channel")
SIZE_UNKNOWN = declare("size-unknown", "the size of its input is not known")
NO_EQUAL_TILES = declare(
    "no-equal-tiles", "{positions} positions cannot be split into equal tiles of at most {largest}"
)
# More positions than this do not fit the accumulators of some accelerators.
LARGEST_POOLING = 512


@rewrites("ReduceMean", what="ReduceMean nodes became GlobalAveragePool")
def reduce_mean_to_global_average_pool(mean: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """ReduceMean over all axes behind the channels -> GlobalAveragePool (and Squeeze without keepdims)."""
    source = mean.inputs[0]
    rank = rank_of(source)
    if source is None or rank is None:
        return RANK_UNKNOWN()
    axes = reduced_axes(mean)
    if rank < 3 or axes != tuple(range(2, rank)):
        over = "unknown axes" if axes is None else f"axes {list(axes)} of {rank}"
        return NOT_ALL_POSITIONS(over=over)
    if not is_float32(source):
        return INPUT_NOT_FLOAT32()
    name = node_name(mean)
    pool = editor.node("GlobalAveragePool", [source], name)
    result = mean.outputs[0]
    if int_attribute(mean, "keepdims", 1):
        return Rewrite([mean], [pool], [(result, pool.outputs[0])])
    if source.shape is not None:
        pool.outputs[0].shape = ir.Shape([*source.shape.dims[:2], *[1] * (rank - 2)])
    squeezed = editor.constant(f"{name}_axes", np.arange(2, rank, dtype=np.int64))
    squeeze = editor.node("Squeeze", [pool.outputs[0], squeezed], editor.name(f"{name}_Squeeze"))
    return Rewrite([mean], [pool, squeeze], [(result, squeeze.outputs[0])])


@rewrites("GlobalAveragePool", what="GlobalAveragePool nodes were split")
def split_large_pooling(pool: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """GlobalAveragePool over more than 512 positions -> AveragePool and GlobalAveragePool.

    With tiles of equal size the mean of the tiles' means is the mean of all.
    """
    source = pool.inputs[0]
    shape = static_shape(source)
    spatial = shape[2:] if shape is not None else _spatial(source)
    if source is None or spatial is None:
        return SIZE_UNKNOWN()
    if math.prod(spatial) <= LARGEST_POOLING:
        return None
    tile = _tile(spatial)
    if tile is None:
        return NO_EQUAL_TILES(positions=" x ".join(map(str, spatial)), largest=LARGEST_POOLING)
    name = node_name(pool)
    attributes = {"kernel_shape": list(tile), "strides": list(tile)}
    first = editor.node("AveragePool", [source], editor.name(f"{name}_AveragePool"), attributes, source.dtype)
    if source.shape is not None:
        left = [length // size for length, size in zip(spatial, tile, strict=True)]
        first.outputs[0].shape = ir.Shape([*source.shape.dims[:2], *left])
    second = editor.node("GlobalAveragePool", [first.outputs[0]], name, dtype=source.dtype)
    return Rewrite([pool], [first, second], [(pool.outputs[0], second.outputs[0])])


def _spatial(source: ir.Value | None) -> tuple[int, ...] | None:
    """Lengths of the axes behind the channels; the batch may be dynamic."""
    if source is None or source.shape is None:
        return None
    lengths = [dim for dim in source.shape.dims[2:] if isinstance(dim, int)]
    return tuple(lengths) if len(lengths) == len(source.shape) - 2 else None


def _tile(spatial: tuple[int, ...]) -> tuple[int, ...] | None:
    """Tile lengths that divide ``spatial``, so that a tile and the number of tiles are small and alike; else None."""
    positions = math.prod(spatial)
    tiles = itertools.product(*[[size for size in range(1, length + 1) if length % size == 0] for length in spatial])
    largest = {tile: max(math.prod(tile), positions // math.prod(tile)) for tile in tiles}
    best = min(largest, key=lambda tile: (largest[tile], tile))
    return best if largest[best] <= LARGEST_POOLING else None


def pools_as_counted(model: ir.Model) -> PassOutcome:
    """Give such pools explicit pads, by which windows are counted in one way; where lengths are known."""
    nodes = (node for node in model.graph if node.domain in DEFAULT_DOMAINS)
    pools = [node for node in nodes if operator(node.op_type).family is Family.POOL]
    changed, declared = 0, {value: value.shape for value in model.graph.outputs}
    inferred = False
    for pool in filter(counts_windows_oddly, pools):
        if not inferred:
            infer_shapes(model)
        inferred = not _rewrite(model.graph, pool, declared)
        changed += not inferred
    return PassOutcome.counted(model, changed, "pools given explicit pads")


def _rewrite(graph: ir.Graph, pool: ir.Node, declared: Mapping[ir.Value, ir.Shape | None]) -> bool:
    read, made = pool.inputs[0], pool.outputs[0]
    if read is None or read.shape is None or made.shape is None or len(pool.outputs) > 1:
        return False
    if pool.op_type == "AveragePool" and has_gaps(pool):  # what it divides by hangs on where padding ends
        return False
    size, told = (shape.dims[2:] for shape in (read.shape, made.shape))
    if not all(isinstance(length, int) for length in (*size, *told)):
        return False
    found = _pads(pool, tuple(int(length) for length in size if isinstance(length, int)))
    if found is None or found[1] == tuple(told):
        return False
    for name in ("auto_pad", "ceil_mode"):
        pool.attributes.pop(name, None)
    pool.attributes["pads"] = ir.AttrInt64s("pads", found[0])
    behind = {made}
    made.shape = declared.get(made)
    for node in graph:
        if not behind.isdisjoint(node.inputs):
            behind.update(node.outputs)
            for value in node.outputs:
                value.shape = declared.get(value)
    return True


def _pads(pool: ir.Node, size: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Explicit pads, before and behind, and the windows that there are then; None: no such pads say the same."""
    places = PoolPlaces.of(plain_attributes(pool), size)
    behind = tuple(max(more, 0) for more in places.read_behind)
    pads = (*places.before, *behind)
    if min(pads) < 0 or any(more >= taps for more, taps in zip(pads, places.window.kernel * 2, strict=True)):
        return None
    if int_attribute(pool, "count_include_pad", 0) and behind != places.after:
        return None
    padded = (sum(parts) for parts in zip(size, places.before, places.after, strict=True))
    if any(length < places.window.reach(axis) for axis, length in enumerate(padded)):
        return None
    same = replace(places.window, pads=pads, auto_pad="NOTSET").extent(size) == places.count
    return (pads, places.count) if same else None


# Pad says what to add to every axis, for whatever moves a Pad knows nothing of its input ``axes`` (opset 18).
#
# onnxruntime 1.31 pushes a Transpose through such a Pad as if it had pads for all axes, and then reads beyond them
# (transpose_optimization).

NOT_ITS_PADS = declare("not-pads-of-pool", "the MaxPool after it cannot absorb its pads")
# A filling that is no value but says that none is there.
_NOTHING = -1e4
AXES_NOT_CONSTANT = declare("axes-not-constant", "its axes are no constant")


@rewrites("Pad", what="Pad nodes got pads for all axes")
def pads_of_all_axes(pad: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Pad with ``axes`` -> Pad with 0 for those that it left out; pads known at run time alone are put into zeros."""
    axes = input_of(pad, 3)
    if axes is None or pad.inputs[1] is None:
        return None
    rank, chosen, given = rank_of(pad.inputs[0]), constant(axes), constant(pad.inputs[1])
    if rank is None:
        return RANK_UNKNOWN()
    if chosen is None:
        return AXES_NOT_CONSTANT()
    name, zeros = node_name(pad), np.zeros(2 * rank, np.int64)
    places = np.concatenate([chosen % rank, chosen % rank + rank]).astype(np.int64)
    made = []
    if given is not None:
        zeros[places] = given
        pads = editor.constant(f"{name}_pads", zeros)
    else:
        inputs = [editor.constant(f"{name}_zeros", zeros), editor.constant(f"{name}_places", places), pad.inputs[1]]
        made.append(editor.node("ScatterElements", inputs, editor.name(f"{name}_pads"), dtype=ir.DataType.INT64))
        pads = made[0].outputs[0]
        pads.shape = ir.Shape([2 * rank])
    mode = {"mode": pad.attributes["mode"].as_string()} if "mode" in pad.attributes else {}
    whole = editor.node("Pad", [pad.inputs[0], pads, pad.inputs[2]], name, mode, pad.outputs[0].dtype)
    return Rewrite([pad], [*made, whole], [(pad.outputs[0], whole.outputs[0])])


@rewrites("Pad", what="Pad nodes became pads of the MaxPool after them")
def pads_of_max_pool(pad: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Pad with -1e4 or less, then MaxPool -> MaxPool with these pads, which count for nothing there.

    On integers the filling would take the whole range.
    """
    pool = only_reader(pad.outputs[0], "MaxPool")
    filling = scalar(input_of(pad, 2))
    if pool is None or filling is None or not filling <= _NOTHING:
        return None
    given, kernel = constant(pad.inputs[1]), list(pool.attributes["kernel_shape"].as_ints())
    if given is None or given.size != 2 * (2 + len(kernel)) or len(pool.outputs) > 1 or not _takes_pads(pad, pool):
        return NOT_ITS_PADS()
    begins, ends = np.split(given.astype(np.int64), 2)
    own = pool.attributes["pads"].as_ints() if "pads" in pool.attributes else [0] * (2 * len(kernel))
    pads = np.concatenate([begins[2:], ends[2:]]) + np.asarray(own)
    inside = np.concatenate([begins[:2], ends[:2]])
    # A window of pads alone would have no value.
    if inside.any() or min(*begins, *ends) < 0 or (pads >= np.tile(kernel, 2)).any():
        return NOT_ITS_PADS()
    attributes = {**plain_attributes(pool), "pads": pads.tolist()}
    made = editor.node("MaxPool", [pad.inputs[0]], node_name(pool), attributes, pool.outputs[0].dtype)
    return Rewrite([pad, pool], [made], [(pool.outputs[0], made.outputs[0])])


def _takes_pads(pad: ir.Node, pool: ir.Node) -> bool:
    """True if the pool counts its windows from the pads that it is given, and skips no value."""
    dilations = pool.attributes["dilations"].as_ints() if "dilations" in pool.attributes else ()
    return (
        string_attribute(pad, "mode", "constant") == "constant"
        and string_attribute(pool, "auto_pad", "NOTSET") == "NOTSET"
        and not int_attribute(pool, "ceil_mode", 0)
        and all(dilation == 1 for dilation in dilations)
    )
