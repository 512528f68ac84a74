"""Which of several parameters to keep, channel by channel where the channels of the output do not hang together.

Then each output channel takes whatever gave it the smallest error, and none gets worse for another's sake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from worker.quantizer.finetune.reconstruction.method import Result
from worker.quantizer.finetune.reconstruction.unit import NORM_OPERATORS, Operation, Parameter, Unit
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.linear import LINEAR, weight_layout
from worker.quantizer.ops.record import Family
from worker.quantizer.ops.table import operator

Results = Mapping[str, Result]


def channels_are_independent(unit: Unit) -> bool:
    """True if an output channel hangs on that channel's parameters alone: one layer, and functions of one value."""
    first, *others = unit.operations
    one_value = (Family.ACTIVATION, Family.EXTREMUM)
    plain = all(operator(operation.op_type).family in one_value for operation in others)
    plain = plain and all(isinstance(grid, IntegerGrid) for grid in unit.grids.values())
    if first.op_type == "LayerNormalization":
        return plain and all(parameter.values.ndim == 1 for parameter in unit.parameters.values())
    return plain and first.op_type in (*LINEAR, *NORM_OPERATORS)


def choose(unit: Unit, candidates: Sequence[Results], errors: Sequence[np.ndarray]) -> tuple[Results, float]:
    """The best of the candidates, or of their channels.

    Args:
        unit: what they belong to.
        candidates: the first is what is there now; all have the same parameters.
        errors: float64 [channels] of each candidate, the sum of squares.

    Returns:
        The parameters, and the sum of their squared errors: never above the first's.
    """
    whole = min(range(len(candidates)), key=lambda k: float(errors[k].sum()))
    best, least = candidates[whole], float(errors[whole].sum())
    scales_move = any(result.scale is not None for candidate in candidates for result in candidate.values())
    if not channels_are_independent(unit) or scales_move:
        return best, least
    table = np.stack(errors)
    picked = np.argmin(np.where(np.isfinite(table), table, np.inf), axis=0)
    merged = {name: _merged(unit, name, [candidate[name] for candidate in candidates], picked) for name in best}
    if any(result is None for result in merged.values()):
        return best, least
    kept = {name: result for name, result in merged.items() if result is not None}
    return kept, float(table.min(axis=0).sum())


def _merged(unit: Unit, name: str, results: Sequence[Result], picked: np.ndarray) -> Result | None:
    """Channel c of the ``picked[c]``-th result; None if the parameter does not have the output's channels."""
    index = _spread(unit.operations[0], unit.parameters[name], picked)
    if index is None:
        return None

    def pick(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
        there = [array for array in arrays if array is not None]
        if len(there) < len(arrays):
            return None
        chosen = there[0].copy()
        for k, array in enumerate(there[1:], start=1):
            np.copyto(chosen, array, where=index == k)
        return chosen

    present = pick([result.present for result in results])
    if present is None:
        return None
    return replace(
        results[-1],
        present=present,
        integers=pick([result.integers for result in results]),
        values=pick([result.values for result in results]),
    )


def _spread(operation: Operation, parameter: Parameter, picked: np.ndarray) -> np.ndarray | None:
    """``picked`` [channels], shaped so that it broadcasts against a parameter of the operation."""
    shape = parameter.values.shape
    if parameter.kind != "weight":
        return picked.reshape(shape) if parameter.values.size == picked.size else None
    layout = weight_layout(operation.op_type, shape, operation.attributes)
    return layout.along_outputs(picked) if layout is not None and layout.out_channels == picked.size else None
