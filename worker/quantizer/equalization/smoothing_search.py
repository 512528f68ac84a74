"""Where scale can be moved from activations into weights, and how much, by the outputs of the layers themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from service.contracts.specs import (
    ActivationSpec,
    MinMaxCalibration,
    NonOverflowCalibration,
    is_block,
    needs_calibration,
)
from worker.quantizer.equalization.channel_graph import ChannelGraph, Fold, Folding
from worker.quantizer.graph.rewriting import axis_length, rank_of
from worker.quantizer.graph.values import constant, int_attribute, is_constant, is_float32, name_of, node_name, reads
from worker.quantizer.numerics.blocks import BlockGrid, FloatGrid, Grid
from worker.quantizer.numerics.integer import PER_TENSOR, IntegerGrid
from worker.quantizer.ops.linear import MATRIX_PRODUCTS, LinearNode, WeightLayout, linear_view
from worker.quantizer.plan.grids import activation_grid, weight_grid
from worker.quantizer.plan.types import QuantizationPlan, Role, WeightPlan
from worker.quantizer.statistics.grids import Spec
from worker.quantizer.statistics.ranges import range_observer


@dataclass(frozen=True)
class SmoothableTensor:
    """A tensor whose channels (last axis) can be scaled, inversely to the rows of the weights that it meets."""

    value: ir.Value  # the tensor
    channels: int  # length of its last axis
    consumers: tuple[ir.Node, ...]  # the MatMul and Gemm nodes, all that are to get the scaled tensor
    folding: Folding | None  # what takes the inverse scale in; None if a Mul has to
    refusal: str | None = None  # why neither is possible or worthwhile; None if one is

    @property
    def tensor(self) -> str:
        """The tensor's name."""
        return name_of(self.value)

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The constants that take the inverse scale in; none if a Mul has to."""
        return () if self.folding is None else self.folding.folds

    def settled(self, scale: np.ndarray) -> np.ndarray:
        """The nearest scale that what takes it in can have."""
        return scale if self.folding is None else self.folding.settled(scale)


def find_sites(graph: ir.Graph, plan: QuantizationPlan, smoothed: Collection[str] = ()) -> list[SmoothableTensor]:
    """All sites of a prepared main graph, in topological order of their first consumers.

    ``smoothed`` are consumers that have been dealt with.
    """
    finder = SmoothableTensorFinder(graph, plan, smoothed)
    sites = (finder.at(tensor) for tensor in finder.tensors)
    return [site for site in sites if site is not None]


class SmoothableTensorFinder:
    """Finds sites by their tensors, also when the graph has been changed at others: each costs what stands around it.

    Args are those of ``find_sites``.
    """

    def __init__(self, graph: ir.Graph, plan: QuantizationPlan, smoothed: Collection[str] = ()) -> None:
        self._channels, self._plan = ChannelGraph(graph), plan
        self._readers: dict[str, list[ir.Node]] = {}
        for node in graph:
            if is_consumer(node, plan) and node_name(node) not in smoothed:
                self._readers.setdefault(_read_by(node), []).append(node)

    @property
    def tensors(self) -> list[str]:
        """Tensors that matrix products read."""
        return list(self._readers)

    def at(self, tensor: str) -> SmoothableTensor | None:
        """The site of a tensor as the graph is now."""
        found = self._readers.get(tensor, ())
        nodes = [node for node in found if _read_by(node) == tensor and is_consumer(node, self._plan)]
        value = nodes[0].inputs[0] if nodes else None
        length = None if value is None else axis_length(value, -1)
        matching = [node for node in nodes if matrix_of(node).in_channels == length]
        if value is None or length is None or not matching:
            return None
        return _site(self._channels, self._plan, value, length, matching)


def _read_by(node: ir.Node) -> str:
    value = node.inputs[0]
    return "" if value is None else name_of(value)


def is_consumer(node: ir.Node, plan: QuantizationPlan) -> bool:
    """True for a MatMul or Gemm of a constant matrix that is quantized and an activation that is, where any is."""
    entry = plan.nodes.get(node_name(node))
    if entry is None or entry.role is not Role.LINEAR or node.op_type not in MATRIX_PRODUCTS:
        return False
    weight, value = node.inputs[1], node.inputs[0]
    return (
        is_constant(weight)
        and is_float32(weight)
        and rank_of(weight) == 2
        and name_of(weight) in plan.weights  # type: ignore[arg-type]
        and value is not None
        and value is not weight
        and not is_constant(value)
        and (name_of(value) in plan.activations or not plan.activations)
        and not int_attribute(node, "transA", 0)
    )


def _site(
    channels: ChannelGraph, plan: QuantizationPlan, value: ir.Value, length: int, nodes: list[ir.Node]
) -> SmoothableTensor:
    alone = not value.is_graph_output() and set(reads(value)) == set(nodes)
    found = channels.folding(value, length, partial(_refuses, plan=plan)) if alone else None
    folding = found if isinstance(found, Folding) else None
    refusal = None
    if any(_is_tied(node, plan) for node in nodes):
        refusal = "a weight is also an embedding table, which would have to be duplicated"
    elif folding is None and _made_on_integers(value, channels.graph, plan):
        reason = "nothing before it can take the scale in" if alone else "other nodes read it too"
        refusal = f"{reason}, and a Mul after integers rounds twice"
    return SmoothableTensor(value, length, tuple(nodes), folding, refusal)


def _made_on_integers(value: ir.Value, graph: ir.Graph, plan: QuantizationPlan) -> bool:
    node = value.producer()
    entry = plan.nodes.get(node_name(node)) if node is not None and node.graph is graph else None
    return entry is not None and entry.rounds


def _is_tied(node: ir.Node, plan: QuantizationPlan) -> bool:
    """True if the weight of a linear node is stored once for it and for lookups."""
    weight = plan.weights[name_of(node.inputs[1])]  # type: ignore[arg-type]
    return weight.tied is not None or plan.nodes[weight.node].role is Role.LOOKUP


def _refuses(node: ir.Node, plan: QuantizationPlan) -> bool:
    """A convolution whose channels share one integer scale: unequal channels would cost it more than the site gains."""
    if node.op_type in MATRIX_PRODUCTS:
        return False
    value = node.inputs[1]
    weight = plan.weights.get(name_of(value)) if value is not None else None
    return weight is not None and weight.granularity == PER_TENSOR


def matrix_of(node: ir.Node) -> LinearNode:
    """A MatMul or Gemm of a constant weight.

    Raises:
        ValueError: it is none.
    """
    linear = linear_view(node)
    if linear is None:
        raise ValueError(f"{node.name!r} multiplies by no matrix")
    return linear


def weight_of(node: ir.Node) -> np.ndarray:
    """The constant weight of a linear node.

    Raises:
        ValueError: it is no constant.
    """
    array = constant(node.inputs[1])
    if array is None:
        raise ValueError(f"the weight of {node.name!r} is not constant")
    return array


def upstream_grid(plan: QuantizationPlan, site: SmoothableTensor) -> tuple[np.ndarray, IntegerGrid] | None:
    """A constant factor that makes the site's tensor on integers, and the grid of what it multiplies; else None.

    What such a Mul reads has been rounded before the scale comes in.
    """
    node = site.value.producer()
    if node is None or node.op_type != "Mul" or len(site.folds) != 1:
        return None
    fold = site.folds[0]
    entry, other = plan.nodes[node_name(node)], node.inputs[1 - fold.index]
    if fold.node is not node or not entry.quantized or other is None:
        return None
    factor, activation = constant(node.inputs[fold.index]), plan.activations.get(name_of(other))
    if factor is None or activation is None or not isinstance(activation.quantization, IntegerGrid):
        return None
    if factor.ndim > 1 and factor.size != factor.shape[-1]:
        return None
    return factor.reshape(-1), activation.quantization


# How much scale to move at one site, judged by the layers' own outputs on a sample of rows.
#
# With s_j = a_j^alpha / w_j^(1 - alpha), a_j the largest activation and w_j the largest weight of channel j (Xiao et
# al.
# 2022, SmoothQuant, equation 4), the layers compute (x / s) (s W). Where the tensor stays in float, s gives the weights
# that meet large values the finer grid (Lin et al. 2023, AWQ). Each candidate is quantized by the methods that the plan
# has for the tensor and for the weights, and compared with x W. No part of the network runs.

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
