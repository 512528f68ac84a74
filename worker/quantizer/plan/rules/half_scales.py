"""Scales that float16 holds: in a model that computes in float16, Q/DQ pairs have them in that type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from worker.quantizer.numerics.half import fades_in_half
from worker.quantizer.numerics.integer import IntegerGrid, snap_scale
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.profile import RuleContext
from worker.quantizer.plan.types import Decision


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
