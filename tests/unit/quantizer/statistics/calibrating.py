"""What the tests of calibration share: streams, grids, and errors by the definition alone."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnxruntime.quantization.calibrate import HistogramCollector

from service.contracts.specs import ActivationSpec
from tests.unit.quantizer.toolbox import normal, rng
from worker.quantizer.numerics.integer import grid_for_range
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.observers import RangeObserver
from worker.quantizer.statistics.sampling import WeightedValues

__all__ = ["normal", "rng"]
INTEGERS = ["int4", "uint4", "int8", "uint8", "int16", "uint16"]


def spec_of(dtype: str = "int8", *, symmetric: bool = True, scale: str = "float32", **method: Any) -> ActivationSpec:
    return ActivationSpec.model_validate(
        {"dtype": dtype, "symmetric": symmetric, "scale": scale, "calibration": method}
    )


def collected(values: np.ndarray, method: str) -> Any:
    """What onnxruntime's calibrator finds."""
    collector = HistogramCollector(
        method=method,
        symmetric=method == "entropy",
        num_bins=2048,
        num_quantized_bins=128,
        percentile=0,
        scenario="same",
    )
    with contextlib.redirect_stdout(io.StringIO()):
        collector.collect({"x": values})
        return collector.compute_collection_result()["x"]


def weighted(values: np.ndarray) -> WeightedValues:
    ordered = np.sort(values.reshape(-1).astype(np.float32))
    return WeightedValues(ordered, np.ones(ordered.size), float(ordered[0]), float(ordered[-1]))


def families(*scales: str, dtypes: Sequence[str] = INTEGERS) -> list[GridFamily]:
    return [
        GridFamily(dtype, symmetric, scale, reduce_range)
        for dtype, symmetric, scale, reduce_range in itertools.product(dtypes, [False, True], scales, [False, True])
    ]


def grid(low: float, high: float, family: GridFamily) -> tuple[float, int]:
    scale, zero = grids(np.asarray(low), np.asarray(high), family)
    return float(scale), int(zero)


def grids(low: np.ndarray, high: np.ndarray, family: GridFamily) -> tuple[np.ndarray, np.ndarray]:
    return grid_for_range(
        low, high, family.dtype, symmetric=family.symmetric, scale=family.scale, reduce_range=family.reduce_range
    )


def grid_error(values: np.ndarray, family: GridFamily, low: float, high: float) -> float:
    """Sum of squared errors on the grid for [low, high], by the definition."""
    return float(grid_errors(values, family, np.array([low]), np.array([high]))[0])


def grid_errors(values: np.ndarray, family: GridFamily, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """As ``grid_error``, for many grids at once: ``low`` and ``high`` are [grids], so is the result."""
    scale, zero = grids(low, high, family)
    return level_errors(values, scale.astype(np.float64), family.limits[0] - zero.astype(np.int64), family.span)


def level_errors(values: np.ndarray, scale: np.ndarray, bottom: np.ndarray, span: int) -> np.ndarray:
    exact = values.reshape(-1).astype(np.float64)
    found = np.empty(scale.size)
    rows = max(1, (1 << 16) // exact.size)  # what stays in the cache
    for start in range(0, scale.size, rows):
        part = slice(start, start + rows)
        step, least = scale[part, None], bottom[part, None]
        off = np.clip(np.rint(exact / step), least, least + span) * step - exact
        found[part] = np.einsum("ij,ij->i", off, off)
    return found


def cuts(length: int, points: Sequence[int]) -> list[slice]:
    inner = sorted({point % length for point in points} - {0})
    return [slice(a, b) for a, b in itertools.pairwise([0, *inner, length])]


def feed(observer: RangeObserver, stream: np.ndarray, pieces: Sequence[slice]) -> tuple[float, float]:
    """One row is one sample."""
    for piece in pieces:
        observer.update(stream[piece], piece.stop - piece.start)
    found = observer.result()
    return found.minimum, found.maximum
