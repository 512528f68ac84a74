"""How much scale to move at one site, judged by the layers' own outputs on a sample of rows.

With s_j = a_j^alpha / w_j^(1 - alpha), a_j the largest activation and w_j the largest weight of channel j (Xiao et al.
2022, SmoothQuant, equation 4), the layers compute (x / s) (s W). Where the tensor stays in float, s gives the weights
that meet large values the finer grid (Lin et al. 2023, AWQ). Each candidate is quantized by the methods that the plan
has for the tensor and for the weights, and compared with x W. No part of the network runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from service.contracts.specs import (
    ActivationSpec,
    MinMaxCalibration,
    NonOverflowCalibration,
    is_block,
    needs_calibration,
)
from worker.quantizer.numerics.blocks import BlockGrid, FloatGrid, Grid
from worker.quantizer.ops.linear import WeightLayout
from worker.quantizer.plan.grids import activation_grid, weight_grid
from worker.quantizer.plan.types import WeightPlan
from worker.quantizer.statistics.grids import Spec
from worker.quantizer.statistics.ranges import range_observer

# Channels are treated as if they were not smaller than this part of the largest.
_SMALLEST_PART = 2.0**-10
_COARSE = (0.0, 0.25, 0.5, 0.75, 1.0)
_REFINEMENTS = (0.125, 0.0625)
# Values of a candidate that its range is calibrated on.
_RANGE_VALUES = 1 << 15
# Rows multiplied at a time: products this small stay on one thread, which is faster than starting others.
_BLOCK_ROWS = 32
# Factors of the whole scale that decide how a tensor and a weight fill grids with power-of-two scales.
_PHASES = (2.0**0.25, 2.0**0.5, 2.0**0.75)

ScaleOf = Callable[[float], np.ndarray]
# What makes candidates of a site: the scale float64 [channels] by alpha; None if the tensor or all weights are 0.
Family = Callable[["SmoothingProblem"], ScaleOf | None]


@dataclass(frozen=True)
class QuantizedMatrix:
    """A constant matrix as the search sees it."""

    array: np.ndarray  # float32, in the layout in which it is stored
    plan: WeightPlan  # how it is quantized
    layout: WeightLayout  # that layout

    def oriented(self, array: np.ndarray) -> np.ndarray:
        """``array``, in the stored layout, as [in, out]."""
        found: np.ndarray = self.layout.matrix(array)[0].T
        return found

    def quantized(self, array: np.ndarray) -> np.ndarray:
        """``array``, in the stored layout, as its grid represents it."""
        return weight_grid(array, self.plan.spec, self.plan.granularity).fake(array)


@dataclass(frozen=True)
class ProducingLayer:
    """A linear layer with one integer scale whose output channels take the inverse scale in."""

    rows: np.ndarray  # float32 [n, in], a sample of what it reads
    matrix: QuantizedMatrix  # its weight
    channels: np.ndarray  # int [out], the site's channel that each output becomes


@dataclass(frozen=True)
class SmoothingProblem:
    """One site."""

    rows: np.ndarray  # float32 [n, channels], a sample of the tensor
    low: np.ndarray  # float32 [channels], smallest values on all calibration data
    high: np.ndarray  # float32 [channels], largest values
    spec: ActivationSpec | None  # how the tensor is quantized; None: it stays in float
    readers: Sequence[QuantizedMatrix]  # the weights that it meets
    makers: Sequence[ProducingLayer] = ()  # layers that pay for the scale
    rounded: np.ndarray | None = None  # the tensor as integers upstream have rounded it already; None if none have
    settle: Callable[[np.ndarray], np.ndarray] = lambda scale: scale  # the nearest scale that can be had


@dataclass(frozen=True)
class SmoothingChoice:
    """What the search came to."""

    alpha: float  # exponent of the activations' size in the scale
    scale: np.ndarray  # float64 [channels], positive
    before: float  # error of the layers without smoothing: noise over signal, added up over the layers
    after: float  # the same with it


def magnitudes(problem: SmoothingProblem) -> tuple[np.ndarray, np.ndarray] | None:
    """Largest activation and weight of each channel, float64 [channels]; None if either is 0 throughout.

    Channels that are silent or that no weight reads count as usual ones, and very small ones as small ones.
    """
    activations = np.maximum(np.abs(problem.low), np.abs(problem.high)).astype(np.float64)
    weights = np.zeros_like(activations)
    for reader in problem.readers:
        weights = np.maximum(weights, np.abs(reader.oriented(reader.array)).max(axis=1))
    if not activations.any() or not weights.any():
        return None
    return _filled(activations), _filled(weights)


def _filled(largest: np.ndarray) -> np.ndarray:
    usual = float(np.median(largest[largest > 0]))
    filled: np.ndarray = np.maximum(np.where(largest > 0, largest, usual), _SMALLEST_PART * largest.max())
    return filled


def smoothing(problem: SmoothingProblem) -> ScaleOf | None:
    """The family of SmoothQuant; the largest activation stays as large as it is."""
    found = magnitudes(problem)
    if found is None:
        return None
    activations, weights = found

    def of(alpha: float) -> np.ndarray:
        scale = activations**alpha / weights ** (1.0 - alpha)
        return np.asarray(scale * ((activations / scale).max() / activations.max()))

    return of


def activation_aware(problem: SmoothingProblem) -> ScaleOf | None:
    """s_j = m_j^alpha, m_j the mean size of channel j (Lin et al. 2023, AWQ, equation 5); geometric mean of ends 1."""
    return _by_mean_size(problem, weigh=False)


def activation_and_weight_aware(problem: SmoothingProblem) -> ScaleOf | None:
    """s_j = m_j^alpha / w_j^(1 - alpha): the same, which evens out the weights where it may."""
    return _by_mean_size(problem, weigh=True)


def _by_mean_size(problem: SmoothingProblem, *, weigh: bool) -> ScaleOf | None:
    found = magnitudes(problem)
    if found is None or not problem.rows.any():
        return None
    sizes, weights = _filled(np.abs(problem.rows).mean(axis=0, dtype=np.float64)), found[1]

    def of(alpha: float) -> np.ndarray:
        scale = sizes**alpha / weights ** (1.0 - alpha if weigh else 0.0)
        return np.asarray(scale / np.sqrt(scale.min() * scale.max()))

    return of


def search(
    problem: SmoothingProblem, alpha: float | None, families: Sequence[Family] = (smoothing,)
) -> SmoothingChoice | None:
    """The scale with the smallest error; None if the tensor or all weights are 0.

    ``alpha`` is taken as it is; None: it is searched.
    """
    made = [scale_of for family in families if (scale_of := family(problem)) is not None]
    if not made:
        return None
    error = SmoothingLoss(problem)
    before = error(np.ones(problem.rows.shape[1]))
    found = [_best_of(scale_of, alpha, before, problem, error) for scale_of in made]
    return min(found, key=lambda choice: choice.after)


def _best_of(
    scale_of: ScaleOf, alpha: float | None, before: float, problem: SmoothingProblem, error: SmoothingLoss
) -> SmoothingChoice:
    """The best of one family."""
    tried: dict[float, tuple[float, np.ndarray]] = {}

    def look(share: float) -> None:
        if share not in tried and 0.0 <= share <= 1.0:
            scale = problem.settle(scale_of(share))
            tried[share] = error(scale), scale

    for share in _COARSE if alpha is None else (alpha,):
        look(share)
    for step in _REFINEMENTS if alpha is None else ():
        best = min(tried, key=lambda share: tried[share][0])
        look(best - step)
        look(best + step)
    best = min(tried, key=lambda share: tried[share][0])
    after, scale = tried[best]
    for phase in _PHASES if error.by_powers_of_two else ():
        candidate = problem.settle(scale_of(best) * phase)
        with_phase = error(candidate)
        if with_phase < after:
            after, scale = with_phase, candidate
    return SmoothingChoice(best, scale, before, after)


class SmoothingLoss:
    """Noise over signal of a site's layers, by scale."""

    def __init__(self, problem: SmoothingProblem) -> None:
        self._problem = problem
        self._entering = problem.rows if problem.rounded is None else problem.rounded
        self._expected = [_product(problem.rows, reader.oriented(reader.array)) for reader in problem.readers]
        self._signal = [max(_power(expected), np.finfo(np.float64).tiny) for expected in self._expected]
        self._every = max(1, -(-problem.rows.size // _RANGE_VALUES))

    @property
    def by_powers_of_two(self) -> bool:
        """True if a scale is a power of two, so that a factor of the whole scale matters."""
        specs: list[Spec] = [reader.plan.spec for reader in self._problem.readers]
        specs += [] if self._problem.spec is None else [self._problem.spec]
        return any(spec.scale == "power_of_two" for spec in specs if needs_calibration(spec.dtype))

    def __call__(self, scale: np.ndarray) -> float:
        """The error with ``scale``, float64 [channels]."""
        problem = self._problem
        values = self._entering / scale.astype(np.float32)
        if problem.spec is not None:
            values = self._grid(problem.spec, values, scale).at_run_time().fake(values)
        made = [_maker_noise(maker, scale) for maker in problem.makers]
        total = 0.0
        for reader, expected, signal in zip(problem.readers, self._expected, self._signal, strict=True):
            smoothed = np.asarray(reader.array * reader.layout.along_inputs(scale), np.float32)
            matrix = reader.oriented(reader.quantized(smoothed))
            total += _power(_product(values, matrix) - expected) / signal
            total += sum(_power(_product(noise, matrix)) for noise in made) / signal
        return total

    def _grid(self, spec: ActivationSpec, smoothed: np.ndarray, scale: np.ndarray) -> Grid:
        if not needs_calibration(spec.dtype):
            return BlockGrid(spec.dtype, 1) if is_block(spec.dtype) else FloatGrid(spec.dtype)
        if isinstance(spec.calibration, MinMaxCalibration | NonOverflowCalibration):
            low, high = (self._problem.low / scale).min(), (self._problem.high / scale).max()
            seen = np.array([[low, high]], np.float32)
        else:
            seen = smoothed[:: self._every]
        observer = range_observer(spec, samples=1)
        observer.update(seen, 1)
        return activation_grid(spec, observer.result())


def _maker_noise(maker: ProducingLayer, scale: np.ndarray) -> np.ndarray:
    """float32 [n, channels]: what rounding the weight of ``maker`` adds to the smoothed tensor."""
    inverse = maker.matrix.layout.along_outputs(1.0 / scale[maker.channels])
    weight = np.asarray(maker.matrix.array * inverse, np.float32)
    lost = maker.matrix.oriented(maker.matrix.quantized(weight) - weight)
    noise = np.zeros((len(maker.rows), scale.size), np.float32)
    noise[:, maker.channels] = _product(maker.rows, lost)
    return noise


def _product(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """``rows`` [n, in] times ``matrix`` [in, out]."""
    blocks, rest = divmod(len(rows), _BLOCK_ROWS)
    whole = len(rows) - rest
    made = np.empty((len(rows), matrix.shape[1]), np.float32)
    stacked = rows[:whole].reshape(blocks, _BLOCK_ROWS, rows.shape[1])
    np.matmul(stacked, matrix, out=made[:whole].reshape(blocks, _BLOCK_ROWS, matrix.shape[1]))
    np.matmul(rows[whole:], matrix, out=made[whole:])
    return made


def _power(values: np.ndarray) -> float:
    """Mean square."""
    flat = values.reshape(-1)
    return float(np.dot(flat, flat)) / flat.size
