"""The observer of a tensor's range by its spec, what else is known of its values, and supplied ranges.

A range becomes a grid by ``grid_for_range`` with the spec's dtype, symmetry and kind of scale; 8-bit floats have the
scale max(|minimum|, |maximum|) / largest float. Methods that choose a power-of-two scale themselves (mse, non_overflow)
return the exact range of the chosen grid, which gives that grid back.

Whatever the method: NaN or Inf in the tensor, or nothing seen, gives a range that is not finite (percentiles may cut
infinities off), and a tensor of zeros gives [0, 0].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from service.contracts.base import below
from service.contracts.errors import DatasetMismatchError, FieldProblem, InvalidConfigError, UnsupportedModelError
from service.contracts.model import TensorInfo
from service.contracts.specs import (
    ActivationSpec,
    AutoCalibration,
    DistributionCalibration,
    EntropyCalibration,
    LayerwisePercentileCalibration,
    MinMaxCalibration,
    NonOverflowCalibration,
    PercentileCalibration,
    TensorRange,
)
from worker.quantizer.data import OpenDataset, choose_batch_size
from worker.quantizer.graph.values import is_float32, name_of, node_name
from worker.quantizer.numerics.blocks import FLOATS, Minifloat
from worker.quantizer.run.interface import Run
from worker.quantizer.runtime.session import inner_session
from worker.quantizer.statistics.grids import GridFamily, covering_range, mse_range
from worker.quantizer.statistics.observers import (
    Entropy,
    MinMax,
    MovingMinMax,
    Observer,
    Percentile,
    Percentiles,
    Range,
    RangeObserver,
)
from worker.quantizer.statistics.sampling import SampledValues, WeightedValues

# Values kept per tensor where a method measures errors, for each histogram bin that its spec asks for.
_VALUES_PER_BIN = 16
_LAYERWISE_VALUES = 1 << 15


def range_observer(spec: ActivationSpec, *, samples: int) -> RangeObserver:
    """A fresh observer for one tensor.

    ``samples`` are those that the observer will see.

    Raises:
        ValueError: the spec's type needs no range (float16, bfloat16, block formats), or its method is not settled.
    """
    family = GridFamily.of(spec)
    method = spec.calibration
    if isinstance(method, AutoCalibration):
        raise ValueError("calibration auto is settled before any range is found")  # noqa: TRY004 - its value is wrong
    if isinstance(method, MinMaxCalibration):
        return MinMax() if method.moving_average is None else MovingMinMax(method.moving_average)
    if isinstance(method, PercentileCalibration):
        return Percentile(method.percentile, samples=samples, symmetric=family.symmetric)
    if isinstance(method, LayerwisePercentileCalibration):
        return LayerwisePercentile(method, family, samples=samples)
    if isinstance(method, EntropyCalibration):
        steps = family.span if family.is_integer else None
        return Entropy(method.bins, method.quantized_bins, samples=samples, symmetric=family.symmetric, steps=steps)
    extremes = MinMax()
    if isinstance(method, NonOverflowCalibration):
        return Searched(extremes, lambda: _covering(extremes.result(), family))
    if isinstance(method, DistributionCalibration) and family.is_integer:
        return Searched(extremes, lambda: _symmetric(extremes.result()))
    # Up to 16 * bins values of the tensor count all, with exact arithmetic; of more, a sample with all outliers.
    values = SampledValues(_VALUES_PER_BIN * method.bins, samples)
    search = _of_same_deviation if isinstance(method, DistributionCalibration) else mse_range
    return Searched(values, lambda: search(values.result(), family))


class Searched:
    """A range that is searched for, at the end, in what another observer has kept of the tensor."""

    def __init__(self, kept: Observer, find: Callable[[], Range]) -> None:
        self._kept, self._find = kept, find

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch."""
        self._kept.update(values, samples)

    def result(self) -> Range:
        """The range over everything seen."""
        return self._find()


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


def _covering(seen: Range, family: GridFamily) -> Range:
    """The range of the grid with the smallest power-of-two scale on which nothing saturates."""
    low, high = covering_range(np.asarray(seen.minimum), np.asarray(seen.maximum), family)
    return Range(float(low), float(high))


def _symmetric(seen: Range) -> Range:
    """The observed range stretched to [-m, m]: what onnxruntime's 'distribution' gives to integer types."""
    largest = max(abs(seen.minimum), abs(seen.maximum))
    return Range(-largest, largest) if seen.minimum <= seen.maximum else seen


def _of_same_deviation(data: WeightedValues, family: GridFamily) -> Range:
    """The range that gives the tensor and the 8-bit floats the same standard deviation: onnxruntime's 'distribution'.

    scale = deviation of the tensor / deviation of all finite floats of the type.
    """
    if not data.usable:
        return Range(data.minimum, data.maximum)
    values = data.values.astype(np.float64)
    mean = np.average(values, weights=data.weights)
    deviation = float(np.sqrt(np.average((values - mean) ** 2, weights=data.weights)))
    form = FLOATS[family.dtype]
    largest = deviation / _deviation(form) * form.maximum
    return Range(-largest, largest)


@cache
def _deviation(form: Minifloat) -> float:
    """Standard deviation of all finite values of an 8-bit float."""
    everything = np.arange(256, dtype=np.uint8).view(form.storage).astype(np.float64)
    return float(everything[np.isfinite(everything)].std())


def find_ranges(observers: Mapping[str, RangeObserver], *, threads: int) -> dict[str, Range]:
    """The results of many observers, in order; those that search do so in ``threads`` threads."""
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="ranges") as pool:
        return dict(zip(observers, pool.map(lambda observer: observer.result(), observers.values()), strict=True))


# What is known of a tensor's values beside its range: whether there are any, whether they are finite, how they lie.
#
# Planning, float16 and ranges read it. A sentinel is a value that stands for none: a mask of -1e4, of float's lowest
# number or of -Inf. Values and sentinels are told apart by the octaves of magnitude between them in which nothing lies.

# e^-64 is nothing beside e^0; what lies fewer octaves from the rest may be an outlier.
_SMALLEST_SENTINEL, _EMPTY_OCTAVES = 64.0, 3


@dataclass(frozen=True)
class Extent:
    """Of all values seen."""

    minimum: float  # of the finite values; Inf if there is none
    maximum: float  # of the finite values; -Inf if there is none
    infinite: bool  # Inf or -Inf was seen
    is_number: bool  # nothing was NaN
    inner: float  # largest magnitude, up to a factor of 2, of what is no sentinel, had the largest ones been such
    smallest: float = np.inf  # smallest magnitude but 0, down to a factor of 2; Inf if there is none

    @property
    def is_empty(self) -> bool:
        """True if nothing was seen."""
        return self.minimum > self.maximum and not self.infinite and self.is_number

    @property
    def largest(self) -> float:
        """Largest finite magnitude; 0 without any."""
        return max(-self.minimum, self.maximum, 0.0)

    @property
    def has_sentinel(self) -> bool:
        """True if values lie so far beyond all others that they stand for none."""
        return self.infinite or (self.largest >= _SMALLEST_SENTINEL and self.largest > 2**_EMPTY_OCTAVES * self.inner)


class Extents:
    """Sees a tensor batch by batch, and ends with its extent."""

    def __init__(self) -> None:
        self._minimum, self._maximum = np.inf, -np.inf
        self._infinite, self._number = False, True
        self._octaves = np.zeros(256, bool)  # by biased exponent: whether a value lies there

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch of float32."""
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        low, high = float(flat.min()), float(flat.max())
        if not np.isfinite([low, high]).all():
            nothing = np.isnan(flat)
            self._number &= not nothing.any()
            self._infinite |= bool(np.isinf(flat).any())
            flat = flat[np.isfinite(flat)]
            if not flat.size:
                return
            low, high = float(flat.min()), float(flat.max())
        self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)
        self._octaves[np.unique((flat.view(np.uint32) >> 23) & 0xFF)] = True

    def result(self) -> Extent:
        """Of everything seen."""
        seen = np.flatnonzero(self._octaves)
        gaps = np.flatnonzero(np.diff(seen, prepend=0) > _EMPTY_OCTAVES)
        below = seen[gaps[-1] - 1] if gaps.size and gaps[-1] else 0
        inner = float(np.ldexp(1.0, int(below) - 126)) if below else 0.0
        smallest = float(np.ldexp(1.0, int(seen[seen > 0][0]) - 127)) if (seen > 0).any() else np.inf
        return Extent(self._minimum, self._maximum, self._infinite, self._number, inner, smallest)


def extent_of(array: np.ndarray) -> Extent:
    """That of a constant."""
    seen = Extents()
    if array.size:
        seen.update(array, 1)
    return seen.result()


# Ranges that come from outside instead of from data.
_FIELD = "tensor_ranges"


def supplied_ranges(
    supplied: Mapping[str, TensorRange], needed: Collection[str], known: Collection[str]
) -> tuple[dict[str, Range], list[str]]:
    """The supplied ranges of the tensors that need one: no statistics have to be collected for these.

    ``needed`` are tensors that will get a grid, ``known`` all of the prepared model. Returns ranges by tensor, and the
    supplied tensors that exist but get no grid, sorted: worth a note.

    Raises:
        InvalidConfigError: a tensor that is not in the model, or a minimum above its maximum; points at each.
    """
    needed, known = set(needed), set(known)
    faults = {}
    for name, found in supplied.items():
        if name not in known and name not in needed:
            faults[name] = f"the model has no tensor {name!r}"
        elif found.minimum > found.maximum:
            faults[name] = f"tensor {name!r}: the minimum {found.minimum:g} is above the maximum {found.maximum:g}"
    if faults:
        code, place = InvalidConfigError.code, f"/config/{_FIELD}"
        raise InvalidConfigError(
            f"{_FIELD}: {'; '.join(list(faults.values())[:5])}",
            hint="Take names and ranges from the calibrated ranges of an earlier run of the same model.",
            errors=tuple(
                FieldProblem(pointer=below(place, name), code=code, message=message) for name, message in faults.items()
            ),
        )
    ranges = {name: Range(found.minimum, found.maximum) for name, found in supplied.items() if name in needed}
    return ranges, sorted(set(supplied) - set(ranges))


# Where a float network leaves the finite numbers: the first node and sample, in words of the user's model.


def check_finite(
    model: ir.Model,
    ranges: Mapping[str, Range],
    data: OpenDataset,
    inputs: Sequence[TensorInfo],
    *,
    samples: int,
    threads: int,
    run: Run,
) -> None:
    """Refuse ranges with NaN or Inf, and say where these come from; runs the network again only then.

    A range that is not finite though no tensor holds NaN or Inf is that of no values at all, and is let pass.

    ``ranges`` are by tensor name, as collected from the first ``samples`` samples of ``data``.

    Raises:
        DatasetMismatchError: some samples drive a node beyond float32; names the first node and sample.
        UnsupportedModelError: every sample does: the node computes NaN or Inf whatever it gets.
        CanceledError: the run was canceled.
    """
    bad = {name for name, found in ranges.items() if not math.isfinite(found.maximum - found.minimum)}
    if not bad:
        return
    makers = _makers(model.graph, bad)
    tensors = list(makers)
    session = inner_session(model, tensors, threads=threads, what="float model with its inner tensors")
    size = choose_batch_size(inputs, data, 1)
    first: tuple[int, str, str] | None = None  # sample, tensor, value
    clean = 0
    for batch in data.batches(inputs, size, samples=range(samples)):
        run.check()
        results = dict(zip(tensors, session.run(batch.feeds, tensors, numbers=batch.numbers), strict=True))
        found = next((name for name in tensors if not np.isfinite(results[name]).all()), None)
        if found is None:
            clean += batch.valid
        elif first is None:
            first = (batch.numbers[min(_row(results[found], size), batch.valid - 1)], found, _value(results[found]))
        if first is not None and clean:
            break
    if first is None:
        return
    sample, tensor, value = first
    node = makers[tensor]
    words = f"node {node_name(node)!r} ({node.op_type}) gives {value}"
    where: dict[str, Any] = {"node": node_name(node), "op_type": node.op_type, "tensor": tensor}
    if not clean:
        raise UnsupportedModelError(
            f"{words} on every sample of the calibration data",
            hint="Exclude the node if that is meant (a mask); else check the scale of the data (scale, mean and std) "
            "and the model's weights.",
            **where,
        )
    raise DatasetMismatchError(
        f"{words} on sample {sample} of the calibration data, but not on all",
        hint="Leave the sample out, or scale the data as the model was trained (scale, mean and std).",
        sample=sample,
        **where,
    )


def _makers(graph: ir.Graph, bad: set[str]) -> dict[str, ir.Node]:
    """Float tensors up to the last one of ``bad``, in topological order, with the node that makes each."""
    makers: dict[str, ir.Node] = {}
    left = set(bad)
    for node in graph:
        for value in node.outputs:
            if value.name and is_float32(value):
                makers[name_of(value)] = node
                left.discard(name_of(value))
        if not left:
            break
    return makers


def _row(array: np.ndarray, size: int) -> int:
    """Row of the first sample with NaN or Inf, where the first axis is that of the batch."""
    if size == 1 or not array.ndim or array.shape[0] != size:
        return 0
    return int(np.argmin(np.isfinite(array).reshape(size, -1).all(axis=1)))


def _value(array: np.ndarray) -> str:
    """NaN, Inf or -Inf: the first that there is."""
    value = float(array[~np.isfinite(array)][0])
    return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
