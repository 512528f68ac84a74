"""Means over all positions become poolings, and large poolings become two."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import (
    INPUT_NOT_FLOAT32,
    RANK_UNKNOWN,
    Editor,
    Rewrite,
    rank_of,
    reduced_axes,
    rewrites,
    static_shape,
)
from worker.quantizer.graph.values import int_attribute, is_float32, node_name

NOT_ALL_POSITIONS = declare("not-all-positions", "it averages over {over}, not over all positions of a channel")
SIZE_UNKNOWN = declare("size-unknown", "the size of its input is not known")
NO_EQUAL_TILES = declare("no-equal-tiles", "{positions} positions cannot be cut into equal tiles of at most {largest}")

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
