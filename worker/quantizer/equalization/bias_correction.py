"""Bias correction as a step: every output channel gets back the mean that quantization took from it.

In closed form, or in full: layer after layer, on what the quantized network computes as corrected so far. For each
layer the means behind its activation function are compared, of the float network and of the quantized one. The bias
moves by their difference, divided by the share of values that follow the bias: those that the activation function cuts
off do not. Some rounds find the fixed point. The difference is that of some samples: what is in it by their choice is
told by how it varies among them, and held back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import BiasCorrection
from service.contracts.reason import declare
from worker.quantizer.equalization.correctable_biases import (
    CorrectableBias,
    CorrectableBiases,
    correctable,
    make_places,
)
from worker.quantizer.graph.rewriting import other_operand, rank_of
from worker.quantizer.graph.values import activation_limits, constant, float_attribute, name_of, node_name, users
from worker.quantizer.layerwise import Feed, Visit, Walk
from worker.quantizer.numerics.blocks import NotFiniteError
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.linear import LinearNode, UnsupportedLayerError, channel_axis, linear_view, product_view
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Step, StepResult, Toolkit
from worker.quantizer.run.interface import Run
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.observers import ChannelMean

NO_BIAS = declare("no-bias-to-correct", "there is no bias to correct")

_NAMED_AT_MOST = 4
# Steps to the fixed point: Newton's, or halves of what is left where those lead too far.
_ROUNDS = 6
# Means nearer than this part of the values' deviation agree.
_SETTLED = 1e-4
# Values per channel that the means are taken of.
_SAMPLE = 2048
# Of fewer values that follow the bias no mean can be told.
_SMALLEST_SHARE = 0.02
# From fewer samples no standard error can be told.
_FEWEST_SAMPLES = 8
# The slope of the activation function is measured over so much of the values' deviation.
_SLOPE_STEP = 1e-2
_ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "PRelu")


class BiasCorrectionStep(Step[BiasCorrection]):
    """Corrects biases, in closed form or layer after layer; see ``mean_shift`` and ``correct_by_walking``."""

    def requests(self, draft: Draft) -> list[Request]:
        """In closed form: the mean input of every linear node."""
        if self.spec.mode == "full":
            return []
        wanted = dict.fromkeys(_read(node) for node in correctable(draft.graph, draft.plan))
        return [Request(key[0], ChannelMean(key[1]), pooled=key[1] == 1) for key in wanted if key is not None]

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """The draft with corrected biases."""
        places = make_places(draft, toolkit.case.config, insert_add=self.spec.insert_add)
        plan, notes, nodes = places.draft.plan.copy(), list[str](), list[str]()
        if self.spec.mode == "full" and places.found:
            with Walk(places.draft.prepared, plan, Feed.of(toolkit, samples=self.spec.data_size)) as walk:
                nodes = list(correct_by_walking(walk, places.found, places.left, toolkit.services.run))
                notes = walk.notes
        elif places.found:
            nodes = _correct_in_closed_form(places, Parameters(places.draft.graph, plan), self._means(draft))
        if not nodes:
            return StepResult.nothing(NO_BIAS.saying("; ".join([NO_BIAS.template, *_told(places)])))
        told = [f"{len(nodes)} biases corrected", *_told(places), *notes]
        return StepResult(replace(places.draft, plan=plan), tuple(nodes), "; ".join(told))

    def _means(self, draft: Draft) -> dict[tuple[str, int], np.ndarray]:
        found = {}
        for request in draft.statistics[self.method]:
            mean = request.observer.result() if isinstance(request.observer, ChannelMean) else None
            if mean is not None and isinstance(request.observer, ChannelMean):
                found[request.tensor, request.observer.axis] = mean
        return found


def _read(node: ir.Node) -> tuple[str, int] | None:
    """What a linear node reads, and the axis of its channels; None if it transposes it, or reads a single vector."""
    linear = linear_view(node)
    if linear is None or linear.data is None or linear.transposes_data or rank_of(linear.data) == 1:
        return None
    return name_of(linear.data), channel_axis(node)


def _correct_in_closed_form(
    places: CorrectableBiases, parameters: Parameters, means: Mapping[tuple[str, int], np.ndarray]
) -> list[str]:
    corrected = []
    for name, place in places.found.items():
        node = place.node
        key = _read(node)
        mean = means.get(key) if key is not None else None
        shift = None if mean is None else mean_shift(node, parameters, mean)
        if shift is not None and shift.any() and np.isfinite(shift).all():
            place.add(parameters, place.of(parameters).unrounded, shift)
            corrected.append(name)
    return corrected


def mean_shift(node: ir.Node, parameters: Parameters, mean: np.ndarray) -> np.ndarray | None:
    """Mean output that rounding the weight W to W~ takes: (W - W~) E[x], float64 [out]; None if it is not rounded.

    E[x] is the mean input in the float network (Nagel et al. 2019, Data-Free Quantization, section 4.2). At zero-padded
    borders the mean is taken as if the input went on.

    ``mean`` is the mean input per channel, float64 [in]; the weight of the node is planned.
    """
    linear = linear_view(node)
    weight = parameters.of(node, 1)
    if linear is None or linear.stacked or weight is None or weight.grid is None:
        return None
    lost = linear.matrix(weight.original.astype(np.float64) - weight.present)
    sums = lost.reshape(*lost.shape[:2], -1, math.prod(linear.kernel)).sum(axis=3)
    if node.op_type == "ConvTranspose":  # every output position meets one in so many taps of the kernel
        sums = sums / math.prod(linear.window.strides)
    made = np.einsum("goi,gi->go", sums, mean.reshape(linear.groups, -1)).reshape(-1)
    return np.asarray(linear.alpha * made)


def _told(places: CorrectableBiases) -> list[str]:
    """What was made for the corrections, and which nodes have none."""
    told = [f"{count} made for it: {what}" for what, count in places.created.items()]
    for reason, count in Counter(places.left.values()).most_common(_NAMED_AT_MOST):
        told.append(f"{count} left alone: {reason}")
    return told


Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class LayerSample:
    """Values of a layer at the same positions, float32 [n, channels], in front of the activation function."""

    expected: np.ndarray  # of the float network
    found: np.ndarray  # of the quantized network
    owners: np.ndarray  # int64 [n], ascending: number of the calibration sample that each row comes from

    @property
    def is_usable(self) -> bool:
        """True if there are values, and all of them are finite."""
        return bool(self.found.size and np.isfinite(self.expected).all() and np.isfinite(self.found).all())


def correct_by_walking(
    walk: Walk, places: Mapping[str, CorrectableBias], left: dict[str, str], run: Run
) -> Iterator[str]:
    """Correct the biases of the walk's plan, layer after layer; yields the name of each corrected node.

    ``walk`` is not begun; ``left`` takes the names of layers that cannot be measured, with the reason.

    Raises:
        EngineError: onnxruntime failed.
        CanceledError: the run was canceled.
    """
    for visit in walk.visits():
        run.progress("bias_correction", visit.index, visit.total, "layers", visit.name)
        place = places.get(visit.name)
        weight = walk.parameters.of(visit.node, 1)
        if place is None or weight is None:
            continue
        try:
            sample = take_sample(visit, product_view(visit.node), place, walk.parameters)
        except (UnsupportedLayerError, NotFiniteError) as error:
            left[visit.name] = str(error)
            continue
        if not sample.is_usable:
            left[visit.name] = "it has no values on the data, or such beyond float32"
            continue
        activation, limited = activation_behind(visit.node, walk.plan)
        change = activation(sample.expected) - limited(sample.found)
        if place.owner is visit.node:
            shift = bias_shift(sample, activation, limited)
        else:  # what is added comes behind the integers
            shift = change.mean(axis=0, dtype=np.float64)
        shift *= certainty(change, sample.owners)
        if shift.any():
            place.add(walk.parameters, place.of(walk.parameters).present, shift)
            yield visit.name


def take_sample(visit: Visit, linear: LinearNode, place: CorrectableBias, parameters: Parameters) -> LayerSample:
    """Values of the visited layer at some positions of all samples, the same for the same network and data."""
    patches: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    owners: list[np.ndarray] = []
    per_part, done = -(-_SAMPLE // max(len(visit.parts), 1)), 0
    for part in visit.parts:
        both = visit.x(part), visit.x_quantized(part)
        positions = linear.positions(both[0])
        generator = np.random.default_rng([visit.index, part.number])
        chosen = np.arange(positions)
        if positions > per_part:
            chosen = np.sort(generator.integers(0, positions, per_part))
        owners.append(done + chosen * part.valid // max(positions, 1))
        done += part.valid
        for x, gathered in zip(both, patches, strict=True):
            values, mask = linear.patches(x, chosen)
            gathered.append(values if mask is None else values * mask)
    weight, bias = parameters.of(visit.node, 1), place.of(parameters)
    if weight is None:
        raise ValueError(f"the weight of {visit.name!r} is not constant")
    expected = _product(linear.matrix(weight.original), patches[0])
    found = _product(linear.matrix(weight.present), patches[1])
    if place.owner is visit.node:
        expected += bias.original.reshape(-1)
        found += bias.present.reshape(-1)
    return LayerSample(expected, found, np.concatenate(owners))


def _product(matrix: np.ndarray, patches: list[np.ndarray]) -> np.ndarray:
    """[n, groups * outputs]: [groups, outputs, inputs] times the patches [groups, inputs, n], joined."""
    joined = np.concatenate(patches, axis=2)
    made: np.ndarray = np.matmul(matrix.astype(np.float32), joined)
    return made.reshape(made.shape[0] * made.shape[1], joined.shape[2]).T


def certainty(changes: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """The part of each channel's mean change that is not owed to the choice of the samples, float64 [channels].

    1 - (standard error / mean)^2, at least 0: what James and Stein 1961 leave of a mean. Positions of one sample are
    alike, so that the standard error is that of the means of the samples.

    Args:
        changes: float32 [n, channels].
        owners: int64 [n], ascending: the sample that each row comes from.
    """
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    counts = np.diff(first, append=len(owners))[:, None]
    sums = np.add.reduceat(changes, first, axis=0, dtype=np.float64)
    mean = sums.sum(axis=0) / len(owners)
    if len(first) < _FEWEST_SAMPLES:
        return np.ones(mean.shape)
    scatter = np.square(sums - counts * mean).sum(axis=0) * len(first) / (len(first) - 1)
    noise = scatter / len(owners) ** 2
    power = np.square(mean)
    left: np.ndarray = np.divide(power - noise, power, out=np.zeros_like(power), where=power > noise)
    return left


def bias_shift(sample: LayerSample, activation: Function, quantized: Function) -> np.ndarray:
    """What to add to the bias of every channel, float64 [channels], so that the means agree.

    0 where they agree better without.

    ``quantized`` is the activation function and what else lies between the quantized layer and the next one.
    """
    wanted = activation(sample.expected).mean(axis=0, dtype=np.float64)
    shift = np.zeros(wanted.size)
    best, least = shift, np.full(wanted.size, np.inf)
    step = (_SLOPE_STEP * sample.found.std(axis=0) + np.finfo(np.float32).tiny).astype(np.float32)
    settled = _SETTLED * sample.expected.std(axis=0)
    # Where the activation function never falls, these shifts put all values below, or above, the wanted ones.
    apart = sample.expected - sample.found
    low, high = np.minimum(apart.min(axis=0), 0.0).astype(np.float64), np.maximum(apart.max(axis=0), 0.0)
    begun, ends = np.ones(wanted.size, bool), np.zeros((2, wanted.size), bool)
    for turn in range(_ROUNDS + 1):
        values = sample.found + shift.astype(np.float32)
        off = wanted - quantized(values).mean(axis=0, dtype=np.float64)
        if (np.abs(off) <= settled).all():
            return np.where(np.abs(off) < least, shift, best)
        better = np.abs(off) < least
        best, least = np.where(better, shift, best), np.where(better, np.abs(off), least)
        low, high = np.where(off > 0, shift, low), np.where(off < 0, shift, high)
        ends = np.stack((ends[0] | (off > 0), ends[1] | (off < 0)))
        rise = quantized(values + step) - quantized(values - step)
        share = rise.mean(axis=0, dtype=np.float64) / (2.0 * step)
        follows = share >= _SMALLEST_SHARE
        if turn == 0:
            begun = follows
        proposed = shift + np.where(follows, off / np.where(follows, share, 1.0), np.inf)
        # An end of the interval is tried once; from then on what leads beyond it is replaced by the middle.
        beyond = ((proposed <= low) & ends[0]) | ((proposed >= high) & ends[1])
        shift = np.where(begun & (off != 0), np.where(beyond, (low + high) / 2, np.clip(proposed, low, high)), shift)
    return best


def activation_behind(node: ir.Node, plan: QuantizationPlan) -> tuple[Function, Function]:
    """What is computed behind a layer: its activation function, and the same with the limits of the integers behind.

    The functions take and give float32 [n, channels]. A function that is not known counts as none.
    """
    steps: list[Function] = []
    last = node
    while (fused := _fused_with(last, plan)) is not None:
        step = _function(fused, last, node)
        if step is None:
            return _chain([]), _chain([])
        steps.append(step)
        last = fused
    entry = plan.activations.get(name_of(last.outputs[0]))
    limited = list(steps)
    if entry is not None and isinstance(entry.quantization, IntegerGrid):
        limited.append(_limits_of(entry.quantization))
    return _chain(steps), _chain(limited)


def _chain(steps: list[Function]) -> Function:
    def whole(values: np.ndarray) -> np.ndarray:
        for step in steps:
            values = step(values)
        return values

    return whole


def _fused_with(node: ir.Node, plan: QuantizationPlan) -> ir.Node | None:
    readers = users(node.outputs[0])
    if not plan.activations:  # a plan of weights alone says nothing of what runs as one
        return readers[0] if len(readers) == 1 and readers[0].op_type in _ACTIVATIONS else None
    return next((reader for reader in readers if plan.nodes[node_name(reader)].role is Role.FUSED), None)


def _function(node: ir.Node, before: ir.Node, layer: ir.Node) -> Function | None:
    """A node that is fused with a layer as a function of its values, channels last."""
    if operator(node.op_type).limits:
        limits = activation_limits(node)
        return None if limits is None else lambda values: np.clip(values, *np.asarray(limits, np.float32))
    if node.op_type == "LeakyRelu":
        alpha = np.float32(float_attribute(node, "alpha", 0.01))
        return lambda values: np.where(values < 0, alpha * values, values)
    other = constant(other_operand(node, before.outputs[0]))
    if other is None or not _has_channels(other, layer):
        return None
    flat = other.reshape(-1).astype(np.float32)
    functions: dict[str, Function] = {
        "PRelu": lambda values: np.where(values < 0, flat * values, values),
        "Mul": lambda values: flat * values,
        "Min": lambda values: np.minimum(values, flat),
        "Max": lambda values: np.maximum(values, flat),
    }
    return functions.get(node.op_type)


def _has_channels(array: np.ndarray, layer: ir.Node) -> bool:
    """True if an operand behind a layer has one element, or one for each of its channels."""
    rank = rank_of(layer.outputs[0]) or 0
    if array.size == 1 or array.ndim > rank:
        return array.size == 1
    shape = (1,) * (rank - array.ndim) + array.shape
    return array.size == shape[channel_axis(layer) % rank]


def _limits_of(grid: IntegerGrid) -> Function:
    saturating = grid.at_run_time()
    low, high = ((limit - float(grid.zero_point)) * float(grid.scale) for limit in saturating.limits)
    return lambda values: np.clip(values, np.float32(low), np.float32(high))
