"""What a network computes of rows of zeros: a small term under a root, a logarithm or a division decides there alone.

Calibration data need not hold such a row, and the run does: padding, silence, a black picture.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.rewriting import scalar
from worker.quantizer.graph.values import DEFAULT_DOMAINS, is_constant
from worker.quantizer.ops.table import operator

# Larger ones are no guard against 0.
_LARGEST_FLOOR = 2.0**-8


def floors(graph: ir.Graph) -> dict[ir.Value, float]:
    """By value of the main graph that hangs on such a term alone where its input is 0: what it then is."""
    found: dict[ir.Value, float] = {}
    for node in graph:
        if node.domain in DEFAULT_DOMAINS and node.inputs and node.inputs[0] is not None:
            floor = _floor(node, found)
            if floor is not None and math.isfinite(floor):
                found[node.outputs[0]] = floor
    return found


def _floor(node: ir.Node, known: dict[ir.Value, float]) -> float | None:
    """What the node makes where the input of a guard before it, or its own, is 0."""
    numbers = [None if value is None else known.get(value, _constant(value)) for value in node.inputs[:2]]
    first, second = numbers[0], numbers[1] if len(numbers) > 1 else None
    fed = [value for value in node.inputs if value is not None and value in known]
    if not fed:
        term = second if first is None else first
        guards = node.op_type in ("Add", "Max", "Clip") and term is not None and 0.0 < term <= _LARGEST_FLOOR
        return term if guards else None
    if operator(node.op_type).keeps_values:
        return first
    if first is not None and first > 0.0 and node.op_type in ("Sqrt", "Reciprocal"):
        return math.sqrt(first) if node.op_type == "Sqrt" else 1.0 / first
    if first is None or second is None:
        return None
    if node.op_type == "Pow" and first > 0.0:
        with np.errstate(all="ignore"):
            return float(np.float64(first) ** second)
    if node.op_type == "Div" and second:
        return first / second
    return first * second if node.op_type == "Mul" else None


def _constant(value: ir.Value) -> float | None:
    found = scalar(value) if is_constant(value) else None
    return None if found is None else float(found)
