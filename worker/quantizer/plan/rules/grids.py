"""Rules that move grids, whatever the kind of scale: one for a Concat, and scales that float16 holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from worker.quantizer.graph.values import node_name
from worker.quantizer.numerics.integer import IntegerGrid, snap_scale
from worker.quantizer.numerics.storage import fades_in_half
from worker.quantizer.plan.grids import integer_grid
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.profile import RuleContext
from worker.quantizer.plan.types import Decision, Role
from worker.quantizer.statistics.observers import Range


class Groups:
    """Union-find: which names belong together."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        """The name that stands for the group of ``name``."""
        root = name
        while (above := self._parent.get(root, root)) != root:
            root = above
        while (above := self._parent.get(name, name)) != root:
            self._parent[name], name = root, above
        return root

    def unite(self, names: Iterable[str]) -> None:
        """Make one group of the groups of ``names``; the first stands for it."""
        first, *others = [self.find(name) for name in names]
        for other in others:
            self._parent[other] = first


def align_concat(context: RuleContext) -> list[Decision]:
    """Widen the grids of all operands and the result of each Concat to one that covers them all."""
    plan, groups, concats = context.plan, Groups(), []
    for node in context.graph:
        if node.op_type == "Concat" and plan.nodes[node_name(node)].role is Role.ARITHMETIC:
            values = [*node.inputs, node.outputs[0]]
            sources = [plan.activations[v.name].source for v in values if v is not None and v.name in plan.activations]
            if len(sources) == len(values):
                groups.unite([sources[-1], *sources[:-1]])
                concats.append((node_name(node), sources))
    members: dict[str, dict[str, IntegerGrid]] = {}
    for _, sources in concats:
        for source in sources:
            grid = plan.activations[source].quantization
            if isinstance(grid, IntegerGrid):
                members.setdefault(groups.find(source), {})[source] = grid
    moved, made = {}, []
    for grids in members.values():
        dtypes = {grid.dtype for grid in grids.values()}
        if len(dtypes) > 1:
            why = f"its operands and result have types {', '.join(sorted(dtypes))}"
            made += [Decision("align_concat", source, "keeps its grid", why, conflict=True) for source in grids]
            continue
        wide = _covering(list(grids.values()), context, next(iter(grids)))
        for source, grid in grids.items():
            if grid.scale != wide.scale or grid.zero_point != wide.zero_point:
                what = f"scale {float(grid.scale):.4g} -> {float(wide.scale):.4g}"
                made.append(Decision("align_concat", source, what, "operands and result of a Concat share a grid"))
                moved[source] = wide
    Parameters(context.graph, plan).move(sources=moved)
    return made


def _covering(grids: list[IntegerGrid], context: RuleContext, source: str) -> IntegerGrid:
    """The grid over everything that ``grids`` can hold."""
    ends = [grid.dequantize(np.asarray(grid.limits).astype(grid.zero_point.dtype)) for grid in grids]
    spec = context.plan.activations[source].spec
    first = grids[0]
    if all(grid.scale == first.scale and grid.zero_point == first.zero_point for grid in grids):
        return first
    low, high = min(float(low) for low, _ in ends), max(float(high) for _, high in ends)
    return integer_grid(spec, Range(low, high))


def half_scales(context: RuleContext) -> list[Decision]:
    """Move every scale to the nearest number of 16 bits; weights are quantized anew on what came of it."""
    plan = context.plan
    sources = {
        entry.source: moved
        for entry in plan.activations.values()
        if isinstance(entry.quantization, IntegerGrid) and (moved := _moved(entry.quantization)) is not None
    }
    weights = {
        name: moved
        for name, entry in plan.weights.items()
        if isinstance(entry.quantization, IntegerGrid) and (moved := _moved(entry.quantization)) is not None
    }
    Parameters(context.graph, plan).move(sources=sources, weights=weights)
    if not sources and not weights:
        return []
    what = f"{len(sources)} scales of activations and those of {len(weights)} weights -> float16"
    return [Decision("half_scales", "all grids", what, "pairs beside float16 have scales of that type")]


def _moved(grid: IntegerGrid) -> IntegerGrid | None:
    """The grid with scales of 16 bits; None if they are, or 16 bits do not hold them."""
    if fades_in_half(grid.scale):
        return None
    scale = snap_scale(grid.scale.astype(np.float64), "float16").astype(np.float32)
    return None if np.array_equal(scale, grid.scale) else replace(grid, scale=scale)
