"""Grids that a target fixes, whatever the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.profile import RuleContext
from worker.quantizer.plan.types import Decision

# (operator, type): scale and zero point, by onnxruntime's get_qnn_qdq_config.
_FIXED = {
    ("Sigmoid", "uint16"): (2.0**-16, 0),
    ("Sigmoid", "int16"): (2.0**-15, 0),
    ("Tanh", "uint16"): (2.0**-15, 2**15),
    ("Tanh", "int16"): (2.0**-15, 0),
}


def fixed_sigmoid_tanh(context: RuleContext) -> list[Decision]:
    """16-bit results of Sigmoid and Tanh get the one grid that QNN takes."""
    moved, made = {}, []
    for node in context.graph:
        name = node.outputs[0].name or ""
        entry = context.plan.activations.get(name)
        grid = entry.quantization if entry is not None else None
        if entry is None or not isinstance(grid, IntegerGrid) or (node.op_type, grid.dtype) not in _FIXED:
            continue
        scale, zero_point = _FIXED[node.op_type, grid.dtype]
        fixed = replace(
            grid,
            scale=np.asarray(scale, np.float32),
            zero_point=np.asarray(zero_point, grid.zero_point.dtype),
            symmetric=False,
        )
        if (float(grid.scale), int(grid.zero_point)) != (scale, zero_point):
            moved[entry.source] = fixed
            what = f"scale {float(grid.scale):.3g} -> {scale:.3g}, zero_point {int(grid.zero_point)} -> {zero_point}"
            made.append(Decision("fixed_sigmoid_tanh", name, what, "QNN takes 16-bit results on this grid only"))
    Parameters(context.graph, context.plan).move(sources=moved)
    return made
