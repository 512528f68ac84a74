"""Ranges of constant weights, group by group: a group is what shares a scale (tensor, channel or block)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from service.contracts.specs import MinMaxCalibration, NonOverflowCalibration, PercentileCalibration, WeightSpec
from worker.quantizer.statistics.block_search import block_range
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.power_of_two import covering_range
from worker.quantizer.statistics.weight_search import least_squares_range

# Weights worked on at a time: with their copies they stay in the second-level cache.
_CHUNK_ELEMENTS = 1 << 17

Ranges = tuple[np.ndarray, np.ndarray]


def weight_range(groups: np.ndarray, spec: WeightSpec, *, threads: int = 1) -> Ranges:
    """The range of every group by the spec's calibration method.

    Groups are taken in chunks, so memory beyond the result does not grow with the weight.

    Args:
        groups: float32 [g, n], n at least 1; one row shares a scale.
        spec: how the weight is to be represented.
        threads: chunks worked on at once; the result does not depend on it.

    Returns:
        minimum and maximum, float32 [g], for ``grid_for_range``. NaN or Inf in a group makes its range not finite; a
        group of zeros gets [0, 0].

    Raises:
        ValueError: the spec's type needs no range (float16, bfloat16, block formats).
    """
    family = GridFamily.of(spec)
    method = spec.calibration
    one: Callable[[np.ndarray], Ranges]
    if isinstance(method, MinMaxCalibration):
        one = extremes
    elif isinstance(method, PercentileCalibration):
        one = _Percentile(method.percentile, symmetric=family.symmetric)
    elif isinstance(method, NonOverflowCalibration):
        one = lambda chunk: covering_range(*extremes(chunk), family)  # noqa: E731
    elif spec.granularity == "per_block" and family.scale != "power_of_two":
        one = lambda chunk: block_range(chunk, *extremes(chunk), family, weights=groups.size)  # noqa: E731
    else:
        one = lambda chunk: least_squares_range(chunk, *extremes(chunk), family, weights=groups.size)  # noqa: E731
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="weights") as pool:
        parts = list(pool.map(one, _chunks(groups)))
    if not parts:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    low, high = (np.concatenate(ends).astype(np.float32) for ends in zip(*parts, strict=True))
    return low, high


def _chunks(groups: np.ndarray) -> Iterator[np.ndarray]:
    step = max(1, _CHUNK_ELEMENTS // max(groups.shape[1], 1))
    for first in range(0, groups.shape[0], step):
        yield groups[first : first + step]


def extremes(groups: np.ndarray) -> Ranges:
    """Smallest and largest value of every row."""
    return groups.min(axis=1), groups.max(axis=1)


class _Percentile:
    """The order statistics that ``Percentile`` gives for activations, row by row."""

    def __init__(self, percentile: float, *, symmetric: bool) -> None:
        self._share = (100.0 - percentile) / (100.0 if symmetric else 200.0)
        self._symmetric = symmetric

    def __call__(self, groups: np.ndarray) -> Ranges:
        """Ranges of the rows."""
        cut = int(self._share * groups.shape[1])
        last = groups.shape[1] - 1 - cut
        if self._symmetric:
            high = np.partition(np.abs(groups), last, axis=1)[:, last]
            low = -high
        else:
            ordered = np.partition(groups, (cut, last), axis=1)
            low, high = ordered[:, cut], ordered[:, last]
        broken = np.isnan(groups).any(axis=1)
        return np.where(broken, np.nan, low), np.where(broken, np.nan, high)
