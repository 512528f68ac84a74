"""Finds the factor of every group of channels by sweeping over the blocks until nothing changes.

What a channel costs is its range beside the widest one of the same grid, in three places: as rows of the layers that
make it, as values of its tensors, as columns of the layers that read it. A sweep multiplies the channel by
sqrt(columns / rows), which makes the two alike (Nagel et al. 2019, Data-Free Quantization, equation 11; the ranges are
relative, so that several layers may share a channel). Beside the rows the values count by the steps of their grids:
their rounding errors fall with the same factor, so that squared errors add up. Where rows have a scale each, the values
stand in for them. No factor may let a channel outgrow its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from worker.quantizer.ops.labels import PINNED, components

# An adaptive search ends once no factor moves by more than this, which takes 20 to 60 sweeps.
_SETTLED = 0.01
_MOST_SWEEPS = 500
# The change of the weights takes as long to find as a sweep, so that it is looked at in every fourth only.
_CHANGE_EVERY = 4


@dataclass(frozen=True)
class BalancedWeight:
    """The weight of a layer in the balance."""

    size: np.ndarray  # max |w| over the kernel's positions, float32 [a, b]; 0 where channels are cut off
    rows: np.ndarray  # group of the result that each weight belongs to; broadcasts to ``size``
    columns: np.ndarray  # group of the value that each weight multiplies; broadcasts to ``size``
    outputs: np.ndarray  # group of every output channel, [out]
    bias: np.ndarray | None  # |b| of every output channel, [out], if it shares a grid of its own
    grid: str | None  # which weights share a scale: "tensor", "row", or None for a weight that stays float
    step: float = 0.0  # of its grid, as a part of the largest weight; 0 if it has none


@dataclass(frozen=True)
class BalancedTensor:
    """What was seen of a quantized tensor."""

    groups: np.ndarray  # of its channels, [channels]
    below: np.ndarray  # range below 0 per channel, float64 [channels], not negative
    above: np.ndarray  # range above 0, likewise
    step: float = 0.0  # of its grid, as a part of the largest value; 0 if it has none


@dataclass(frozen=True)
class BalanceProblem:
    """What is to be balanced."""

    groups: int  # number of groups
    matrices: Sequence[BalancedWeight]  # in topological order
    values: Sequence[BalancedTensor]  # of all quantized tensors with channels that are not pinned
    fixed: np.ndarray  # groups whose factor is 1, bool [groups]
    largest: np.ndarray  # highest factor of each group, float64 [groups], inf if there is none
    threshold: float = 0.0  # raw ranges that add up to less are left alone; 0 for none
    use_activations: bool = True  # let values bound factors
    # what a squared rounding error of a value counts beside one of a weight of the same relative size: the latter is
    # the same at all positions, which shifts means; the former largely cancels in the sums of the next layer. Between
    # 0.03 and 0.1 MobileNets come out alike; 1 equalizes weights too little for scales per tensor, 0 loses a coarse
    # grid's values.
    values_count: float = 0.1


@dataclass
class _Block:
    """Groups that are balanced at once: all results of a layer, and of those that share channels with it."""

    groups: np.ndarray
    makers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Balance:
    """The factors found, float64 [groups], and the number of sweeps that it took."""

    factors: np.ndarray
    sweeps: int


def balance(problem: BalanceProblem, *, steps: int, least_change: float) -> Balance:
    """Balance all blocks.

    ``steps`` counts sweeps; -1 goes on until no factor moves by a percent or the mean change of a weight, summed over
    layers, falls below ``least_change``.
    """
    blocks = _blocks(problem)
    factors = np.ones(problem.groups)
    for sweep in range(_MOST_SWEEPS if steps < 0 else steps):
        before = factors.copy()
        for block in blocks:
            factors[block.groups] *= _correction(problem, block, factors)
        if steps >= 0:
            continue
        moved = np.abs(np.log(factors / before))
        settled = bool(moved.max(initial=0.0) <= _SETTLED)
        if sweep % _CHANGE_EVERY == 0:
            settled |= _change(problem, moved, factors) <= least_change
        if settled:
            return Balance(factors, sweep + 1)
    return Balance(factors, _MOST_SWEEPS if steps < 0 else steps)


def _blocks(problem: BalanceProblem) -> list[_Block]:
    """Blocks in the order of the layers that make them first."""
    ends = [matrix.outputs for matrix in problem.matrices if matrix.outputs.size > 1]
    one = np.concatenate([np.empty(0), *(outputs[:-1] for outputs in ends)])
    other = np.concatenate([np.empty(0), *(outputs[1:] for outputs in ends)])
    free = (one != PINNED) & (other != PINNED)
    labels = components(problem.groups, one[free], other[free])
    found: dict[int, _Block] = {}
    for k, matrix in enumerate(problem.matrices):
        for label in np.unique(labels[matrix.outputs[~problem.fixed[matrix.outputs]]]).tolist():
            members = np.flatnonzero((labels == label) & ~problem.fixed)
            found.setdefault(label, _Block(members)).makers.append(k)
    for k, matrix in enumerate(problem.matrices):
        for label in np.unique(labels[matrix.columns]).tolist():
            if label in found:
                found[label].readers.append(k)
    for k, values in enumerate(problem.values):
        for label in np.unique(labels[values.groups]).tolist():
            if label in found:
                found[label].values.append(k)
    return list(found.values())


def _correction(problem: BalanceProblem, block: _Block, factors: np.ndarray) -> np.ndarray:
    """What to multiply the factors of the block's groups by."""
    makers = [problem.matrices[k] for k in block.makers]
    readers = [problem.matrices[k] for k in block.readers]
    seen = [problem.values[k] for k in block.values]
    rows, rows_raw = _rows(makers, factors)
    columns, columns_raw = _columns(readers, factors)
    if rows is None:
        rows = _relative_values(seen, factors)
    elif problem.use_activations:
        rows = _with_values(rows, makers, seen, factors, problem.values_count)
    if columns is None:
        columns = np.ones(problem.groups)
    if rows is None:
        return np.ones(block.groups.size)
    out, into = rows[block.groups], columns[block.groups]
    known = (out > 0) & (into > 0)
    if problem.threshold > 0:
        known &= (rows_raw + columns_raw)[block.groups] >= problem.threshold
    wanted = np.ones(block.groups.size)
    wanted[known] = np.sqrt(into[known] / out[known])
    if problem.use_activations:
        wanted = np.minimum(wanted, _room(seen, factors)[block.groups])
    held: np.ndarray = np.minimum(wanted, problem.largest[block.groups] / factors[block.groups])
    return held


def _rows(makers: Sequence[BalancedWeight], factors: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Relative range of every group as rows, None if no maker has one scale; and the raw range."""
    relative, raw = np.zeros(factors.size), np.zeros(factors.size)
    counted = False
    for matrix in makers:
        if matrix.grid is None:
            continue
        found = _largest(matrix.size / _short(factors[matrix.columns]), matrix.rows, factors.size) * factors
        raw = np.maximum(raw, found)
        if matrix.grid == "tensor":
            relative, counted = np.maximum(relative, _beside_widest(found)), True
        if matrix.bias is not None:
            biases = np.zeros(factors.size)
            np.maximum.at(biases, matrix.outputs, matrix.bias * factors[matrix.outputs])
            relative, counted = np.maximum(relative, _beside_widest(biases)), True
    return (relative if counted else None), raw


def _columns(readers: Sequence[BalancedWeight], factors: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """The same as columns. Within rows of a scale each, a column is measured row by row."""
    relative, raw = np.zeros(factors.size), np.zeros(factors.size)
    counted = False
    for matrix in readers:
        if matrix.grid is None:
            continue
        scaled = matrix.size * _short(factors[matrix.rows])
        found = _largest(scaled, matrix.columns, factors.size) / factors
        raw = np.maximum(raw, found)
        if matrix.grid == "row":
            if matrix.size.shape[1] == 1 and matrix.rows.shape[0] == matrix.columns.shape[0]:
                continue  # one column to a row: its scale follows whatever it is multiplied by
            scaled = scaled / _short(factors[matrix.columns])
            axis = 1 if matrix.rows.shape[1] == 1 else 0
            widest = scaled.max(axis=axis, keepdims=True)
            scaled = np.divide(scaled, widest, out=np.zeros_like(scaled), where=widest > 0)
            found = _largest(scaled, matrix.columns, factors.size)
        relative, counted = np.maximum(relative, _beside_widest(found)), True
    return (relative if counted else None), raw


def _short(factors: np.ndarray) -> np.ndarray:
    """As float32: half the memory to go through, and precise enough for a range."""
    return np.asarray(factors, np.float32)


def _relative_values(seen: Sequence[BalancedTensor], factors: np.ndarray) -> np.ndarray | None:
    relative: np.ndarray = np.zeros(factors.size)
    for values in seen:
        found = np.zeros(factors.size)
        np.maximum.at(found, values.groups, np.maximum(values.below, values.above) * factors[values.groups])
        relative = np.maximum(relative, _beside_widest(found))
    return relative if seen else None


def _with_values(
    rows: np.ndarray,
    makers: Sequence[BalancedWeight],
    seen: Sequence[BalancedTensor],
    factors: np.ndarray,
    count: float,
) -> np.ndarray:
    """Relative rows that are as much smaller as the rounding of values adds to that of the rows."""
    step = max((matrix.step for matrix in makers if matrix.grid == "tensor"), default=0.0)
    if step == 0.0:
        return rows
    errors = np.ones(rows.size)  # in units of the rows'
    for values in seen:
        relative = _relative_values([values], factors)
        if relative is None or values.step == 0.0:
            continue
        share = np.divide(rows, relative, out=np.zeros_like(rows), where=relative > 0)
        errors += count * (values.step / step * share) ** 2
    found: np.ndarray = rows / np.sqrt(errors)
    return found


def _room(seen: Sequence[BalancedTensor], factors: np.ndarray) -> np.ndarray:
    """By how much every group can grow before one of its channels is the widest of a tensor."""
    room = np.full(factors.size, np.inf)
    for values in seen:
        for side in (values.below, values.above):
            scaled = side * factors[values.groups]
            largest, wide = scaled.max(initial=0.0), scaled > 0
            np.minimum.at(room, values.groups[wide], largest / scaled[wide])
    return room


def _beside_widest(ranges: np.ndarray) -> np.ndarray:
    widest = ranges.max(initial=0.0)
    return ranges / widest if widest > 0 else ranges


def _largest(scaled: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """Largest element of each group, float64 [count]; ``groups`` broadcasts to the matrix."""
    if groups.shape[0] == 1 and scaled.shape[0] > 1:
        scaled = scaled.max(axis=0, keepdims=True)
    if groups.shape[1] == 1 and scaled.shape[1] > 1:
        scaled = scaled.max(axis=1, keepdims=True)
    found = np.zeros(count)
    np.maximum.at(found, np.broadcast_to(groups, scaled.shape).reshape(-1), scaled.reshape(-1))
    return found


def _change(problem: BalanceProblem, moved: np.ndarray, factors: np.ndarray) -> float:
    """An upper bound of the sum over layers of the mean change of a weight.

    A weight w r / c changes by |w r / c| (|dr / r| + |dc / c|) at most; ``moved`` holds the relative changes.
    """
    total = 0.0
    for matrix in problem.matrices:
        rows, columns = factors[matrix.rows], 1.0 / factors[matrix.columns]
        by_rows = _weighted_sum(matrix.size, rows * moved[matrix.rows], columns)
        total += (by_rows + _weighted_sum(matrix.size, rows, columns * moved[matrix.columns])) / matrix.size.size
    return total


def _weighted_sum(size: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> float:
    """Sum of size * rows * columns; as products of matrix and vector where rows and columns are such."""
    if rows.shape[1] == 1 and columns.shape[0] == 1:
        return float(_short(rows[:, 0]) @ (size @ _short(columns[0])))
    if rows.shape[0] == 1 and columns.shape[1] == 1:
        return float(_short(columns[:, 0]) @ (size @ _short(rows[0])))
    return float(np.sum(size * rows * columns))
