"""Positions of power-of-two grids on AMD's NPU: scale = 2^-position, and shifts between positions are limited.

Every limit is kept by lowering a position, which costs precision but saturates nothing: a limit reads "this position
is at most so and so much above those". Limits are looked at until none lowers anything, each again only when a position
it depends on has moved. A position that falls without end shows two limits that contradict each other: the one that
drove it is given up, reported, and all positions start anew.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from worker.quantizer.numerics.grids import Grid
from worker.quantizer.numerics.integer import IntegerGrid

# (kind, name): an activation by source tensor, a weight or constant operand by initializer, a bias by node.
Variable = tuple[str, str]
Positions = Mapping[Variable, int]
# No limit of the hardware spans more; what falls further falls for ever.
_LARGEST_DROP = 48


@dataclass(frozen=True)
class Limit:
    """One rule at one node.

    Attributes:
        rule: name of the option.
        node: name of the node.
        why: what the hardware asks for.
        variables: positions it depends on.
        ceilings: highest positions allowed, given all positions.
    """

    rule: str
    node: str
    why: str
    variables: tuple[Variable, ...]
    ceilings: Callable[[Positions], Sequence[tuple[Variable, int]]]


@dataclass
class Settled:
    """Positions that keep every limit but those given up.

    Attributes:
        positions: of every variable.
        cause: the limit that lowered a variable last.
        given_up: limits that contradict others.
    """

    positions: dict[Variable, int]
    cause: dict[Variable, Limit]
    given_up: list[Limit]


def position(grid: Grid | None) -> int | None:
    """-log2(scale) of a grid with one power-of-two scale, else None."""
    if not isinstance(grid, IntegerGrid) or grid.scale.ndim:
        return None
    mantissa, exponent = np.frexp(float(grid.scale))
    return 1 - int(exponent) if mantissa == 0.5 else None


def at_position(grid: IntegerGrid, wanted: int) -> IntegerGrid:
    """The grid with scale 2^-wanted."""
    return replace(grid, scale=np.asarray(2.0**-wanted, np.float32))


def settle(start: Positions, limits: Sequence[Limit]) -> Settled:
    """Lower positions from ``start`` until all limits hold.

    Args:
        start: position of every variable that the limits name.
        limits: to be kept.
    """
    touched: dict[Variable, list[int]] = defaultdict(list)
    for index, limit in enumerate(limits):
        for variable in dict.fromkeys(limit.variables):
            touched[variable].append(index)
    given_up: set[int] = set()
    while True:
        positions, cause, culprit = _lower(start, limits, touched, given_up)
        if culprit is None:
            return Settled(positions, cause, [limits[index] for index in sorted(given_up)])
        given_up.add(culprit)


def _lower(
    start: Positions, limits: Sequence[Limit], touched: Mapping[Variable, list[int]], given_up: set[int]
) -> tuple[dict[Variable, int], dict[Variable, Limit], int | None]:
    positions = dict(start)
    cause: dict[Variable, Limit] = {}
    waiting = deque(index for index in range(len(limits)) if index not in given_up)
    queued = set(waiting)
    while waiting:
        index = waiting.popleft()
        queued.discard(index)
        limit = limits[index]
        for variable, ceiling in limit.ceilings(positions):
            if positions[variable] <= ceiling:
                continue
            if ceiling < start[variable] - _LARGEST_DROP:
                return positions, cause, index
            positions[variable], cause[variable] = ceiling, limit
            for other in touched[variable]:
                if other not in queued and other not in given_up:
                    waiting.append(other)
                    queued.add(other)
    return positions, cause, None
