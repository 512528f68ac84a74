"""Where a graph has Q/DQ pairs: which tensors each edge of the drawing carries, and on which grid they are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from service.contracts.graph_view import GraphTensor, GraphView, TensorGrid
from service.contracts.report import LayerFigures
from service.contracts.specs import is_integer
from service.dashboard.graph_layout import Edge, EdgeEnds, Span
from service.reports.figures import NOTHING

# What the legend says of each kind of edge, in this order.
LEGEND: dict[str, str] = {
    "grid-u8": "uint8",
    "grid-s8": "int8",
    "grid-16": "16-bit integers",
    "grid-4": "4-bit integers",
    "grid-other": "other grids",
    "grid-mixed": "several grids",
    "fused": "fused, no conversion",
    "float": "float, no Q/DQ pair",
    "whole": "not float",
}
_FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})
_BITS = re.compile(r"\d+")


class Carried(NamedTuple):
    """What an edge carries."""

    kind: str  # of ``LEGEND``
    words: str  # the types of the grids; empty: there is none
    tensor: int  # the place of the first tensor with a grid
    tensors: int  # how many there are


def carried(
    view: GraphView, rows: Mapping[str, LayerFigures], boxes: Sequence[Span], ends: EdgeEnds
) -> dict[Edge, Carried]:
    """By edge of the drawing what it carries; edges to a sub-graph carry nothing.

    Args:
        view: the graph.
        rows: of ``rows_by_node``: files of older releases keep no grids, and then the report's types stand in.
        boxes: of the nodes.
        ends: the edges, with the boxes numbered as there.
    """
    first = len(ends.inputs)
    sources = {tensor: number for number, tensor in enumerate(ends.inputs)}
    found: dict[Edge, dict[int, None]] = defaultdict(dict)
    owner = [number for number, box in enumerate(boxes, start=first) for _ in range(len(box))]
    for node, box in zip(view.nodes, owner, strict=True):
        for tensor in node.outputs:
            sources.setdefault(tensor, box)
    for node, box in zip(view.nodes, owner, strict=True):
        for read in node.inputs:
            if read is not None and sources.get(read, box) != box:
                found[sources[read], box][read] = None
    for number, tensor in enumerate(ends.outputs, start=first + len(boxes)):
        if tensor in sources:
            found[sources[tensor], number][tensor] = None
    types, fused = _types(view, rows), _fused(view, rows)
    return {edge: _carried(view, types, fused, list(tensors)) for edge, tensors in found.items()}


def _fused(view: GraphView, rows: Mapping[str, LayerFigures]) -> set[int]:
    """The tensors that a quantized layer makes and reads itself: its kernel never stores them."""
    makers = {tensor: rows.get(node.name) for node in view.nodes for tensor in node.outputs}
    found = {tensor for tensor, row in makers.items() if row is not None and row.reason is None}
    for node in view.nodes:
        found -= {read for read in node.inputs if read is not None and makers.get(read) is not rows.get(node.name)}
    return found - set(view.outputs)


def _types(view: GraphView, rows: Mapping[str, LayerFigures]) -> dict[int, str]:
    """The type of the grid of each tensor that has one."""
    if any(tensor.grid is not None for tensor in view.tensors):
        return {place: one.grid.dtype for place, one in enumerate(view.tensors) if one.grid is not None}
    told: dict[int, str] = {}
    for node in view.nodes:
        row = rows.get(node.name)
        if row is not None and row.reason is None and row.activation_dtype is not None:
            told |= dict.fromkeys(node.outputs, row.activation_dtype)
    return told


def _carried(view: GraphView, types: Mapping[int, str], fused: set[int], tensors: Sequence[int]) -> Carried:
    with_grid = [one for one in tensors if one in types]
    if not with_grid and fused.issuperset(tensors):
        return Carried("fused", "", tensors[0], len(tensors))
    if not with_grid:
        dtypes = {view.tensors[one].dtype for one in tensors}
        return Carried("float" if dtypes & {None, *_FLOATS} else "whole", "", tensors[0], len(tensors))
    names = list(dict.fromkeys(types[one] for one in with_grid))
    kinds = {_kind(one) for one in names}
    mixed = len(kinds) > 1 or len(with_grid) < len(tensors)
    return Carried("grid-mixed" if mixed else kinds.pop(), "/".join(names), with_grid[0], len(tensors))


def _kind(dtype: str) -> str:
    bits = _BITS.search(dtype)
    if not is_integer(dtype) or bits is None:
        return "grid-other"
    sign = "u" if dtype.startswith("u") else "s"
    return {"4": "grid-4", "8": f"grid-{sign}8", "16": "grid-16"}.get(bits.group(), "grid-other")


def grid_words(tensor: GraphTensor) -> tuple[str, str, str]:
    """Type, scale and zero point of a tensor's grid in words."""
    grid = tensor.grid
    if grid is None:
        return "none", NOTHING, NOTHING
    zero = NOTHING if grid.zero_point is None else f"{grid.zero_point}"
    return grid.dtype, _scale_words(grid), "several" if grid.zero_point is None and grid.scales > 1 else zero


def _scale_words(grid: TensorGrid) -> str:
    low, high = grid.scale_low, grid.scale_high
    if low is None or high is None:
        return NOTHING
    along = "" if grid.axis is None else f" along axis {grid.axis}"
    if grid.scales <= 1:
        return f"scale {low:.6g}"
    return f"{grid.scales:,} scales{along}, {low:.3g} to {high:.3g}"
