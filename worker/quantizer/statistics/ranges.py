"""The reducer that finds a tensor's range by the method of its spec.

A range becomes a grid by ``grid_for_range`` with the spec's dtype, symmetry and kind of scale; 8-bit floats have the
scale max(|minimum|, |maximum|) / largest float. Methods that choose a power-of-two scale themselves (mse, non_overflow)
return the exact range of the chosen grid, which gives that grid back.

Whatever the method: NaN or Inf in the tensor, or nothing seen, gives a range that is not finite (percentiles may cut
infinities off), and a tensor of zeros gives [0, 0].
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from service.contracts.calibration import (
    DistributionCalibration,
    EntropyCalibration,
    LayerwisePercentileCalibration,
    MinMaxCalibration,
    NonOverflowCalibration,
    PercentileCalibration,
)
from service.contracts.specs import ActivationSpec
from worker.quantizer.statistics.entropy import Entropy
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.mse import mse_range
from worker.quantizer.statistics.power_of_two import covering_range
from worker.quantizer.statistics.reducers import (
    MinMax,
    MovingMinMax,
    Percentile,
    Percentiles,
    Range,
    RangeReducer,
)
from worker.quantizer.statistics.sampling import SampledValues, WeightedValues

# Values kept per tensor where a method measures errors, for each histogram bin that its spec asks for.
_VALUES_PER_BIN = 16
_LAYERWISE_VALUES = 1 << 15


def range_reducer(spec: ActivationSpec, *, samples: int) -> RangeReducer:
    """A fresh reducer for one tensor.

    Args:
        spec: how the tensor is to be represented, with the calibration method.
        samples: samples that the reducer will see.

    Raises:
        ValueError: the spec's type needs no range (float16, bfloat16, block formats).
    """
    family = GridFamily.of(spec)
    method = spec.calibration
    if isinstance(method, MinMaxCalibration):
        return MinMax() if method.moving_average is None else MovingMinMax(method.moving_average)
    if isinstance(method, PercentileCalibration):
        return Percentile(method.percentile, samples=samples, symmetric=family.symmetric)
    if isinstance(method, LayerwisePercentileCalibration):
        return LayerwisePercentile(method, family, samples=samples)
    if isinstance(method, EntropyCalibration):
        steps = family.span if family.is_integer else None
        return Entropy(method.bins, method.quantized_bins, samples=samples, symmetric=family.symmetric, steps=steps)
    if isinstance(method, DistributionCalibration):
        return MinMaxSymmetric() if family.is_integer else Deviation(method.bins, family, samples=samples)
    if isinstance(method, NonOverflowCalibration):
        return NonOverflow(family)
    return LeastSquares(method.bins, family, samples=samples)


class LeastSquares:
    """The range with the smallest sum of squared errors; see ``mse_range``.

    Up to 16 * bins values of the tensor count all, with exact arithmetic; of more, a sample with all outliers
    (``SampledValues``).
    """

    def __init__(self, bins: int, family: GridFamily, *, samples: int) -> None:
        self._family = family
        self._values = SampledValues(_VALUES_PER_BIN * bins, samples)

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch."""
        self._values.update(values, samples)

    def result(self) -> Range:
        """The range over everything seen."""
        return mse_range(self._values.result(), self._family)


class LayerwisePercentile:
    """Of several percentiles the one whose grid has the smallest mean absolute or mean squared error.

    The percentiles themselves are exact; their errors are measured on a sample with all outliers (``SampledValues``).
    Of equal candidates the highest percentile is taken.
    """

    def __init__(self, method: LayerwisePercentileCalibration, family: GridFamily, *, samples: int) -> None:
        self._metric = method.metric
        self._family = family
        candidates = sorted(method.candidates, reverse=True)
        self._percentiles = Percentiles(candidates, samples=samples, symmetric=family.symmetric)
        self._values = SampledValues(_LAYERWISE_VALUES, samples)

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch."""
        self._percentiles.update(values, samples)
        self._values.update(values, samples)

    def result(self) -> Range:
        """The range over everything seen."""
        found = self._percentiles.results()
        data = self._values.result()
        return found[int(np.argmin([self._error(data, candidate) for candidate in found]))] if data.usable else found[0]

    def _error(self, data: WeightedValues, candidate: Range) -> float:
        scale, zero = self._family.parameters(np.asarray(candidate.minimum), np.asarray(candidate.maximum))
        values = data.values.astype(np.float64)
        errors = np.abs(self._family.fake(values, scale, zero) - values)
        return float(data.weights @ (errors if self._metric == "mae" else errors**2))


class NonOverflow:
    """The range of the grid with the smallest power-of-two scale on which nothing saturates."""

    def __init__(self, family: GridFamily) -> None:
        self._family = family
        self._extremes = MinMax()

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch."""
        self._extremes.update(values, samples)

    def result(self) -> Range:
        """The range over everything seen."""
        found = self._extremes.result()
        low, high = covering_range(np.asarray(found.minimum), np.asarray(found.maximum), self._family)
        return Range(float(low), float(high))


class MinMaxSymmetric(MinMax):
    """The observed range stretched to [-m, m]: what onnxruntime's 'distribution' gives to integer types."""

    def result(self) -> Range:
        """The range over everything seen."""
        found = super().result()
        largest = max(abs(found.minimum), abs(found.maximum))
        return Range(-largest, largest) if found.minimum <= found.maximum else found


class Deviation:
    """The range that gives the tensor and the 8-bit floats the same standard deviation: onnxruntime's 'distribution'.

    scale = deviation of the tensor / deviation of all finite floats of the type.
    """

    def __init__(self, bins: int, family: GridFamily, *, samples: int) -> None:
        self._family = family
        self._values = SampledValues(_VALUES_PER_BIN * bins, samples)

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch."""
        self._values.update(values, samples)

    def result(self) -> Range:
        """The range over everything seen."""
        data = self._values.result()
        if not data.usable:
            return Range(data.minimum, data.maximum)
        values = data.values.astype(np.float64)
        mean = np.average(values, weights=data.weights)
        deviation = float(np.sqrt(np.average((values - mean) ** 2, weights=data.weights)))
        largest = deviation / self._family.deviation * self._family.largest
        return Range(-largest, largest)


def find_ranges(reducers: Mapping[str, RangeReducer], *, threads: int) -> dict[str, Range]:
    """The results of many reducers, in order; those that search do so in ``threads`` threads."""
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="ranges") as pool:
        return dict(zip(reducers, pool.map(lambda reducer: reducer.result(), reducers.values()), strict=True))
