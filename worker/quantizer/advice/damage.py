"""What has hurt a quantized network: how much of its error has which cause, and in which layers; told in the report.

Noise is error beside the signal of the same channel, at most 1 (nothing of the channel is left), in the mean over the
channels of a tensor: what comes behind a layer brings its channels to like sizes, so that small ones count as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import CrossLayerEqualization
from service.contracts.report import Cause, CausePlace, LayerFigures, by_contribution
from worker.quantizer.advice.activations import ActivationNoise, ChannelPower, mean_noise
from worker.quantizer.evaluation.compare import worst_distance_db
from worker.quantizer.graph.values import is_constant, name_of, node_name
from worker.quantizer.numerics.integer import PER_TENSOR, IntegerGrid, PerAxis
from worker.quantizer.ops.linear import MATRIX_PRODUCTS, channel_axis, is_linear
from worker.quantizer.plan.grids import weight_axis, weight_grid
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import BiasPlan, QuantizationPlan, Role, WeightPlan
from worker.quantizer.refine.channels import find_outliers
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.host import may_saturate
from worker.quantizer.runtime.session import Session, is_large
from worker.quantizer.statistics.collect import Request, collect

# Samples of the data that the report's figures are on.
_SAMPLES = 8
# Places of one cause.
_MOST_PLACES = 8
# Causes of less of the error than this are not told.
_LEAST_PERCENT = 0.5


class HarmKind(Enum):
    """A cause of error."""

    OTHER_FUNCTION = "other-function"
    SATURATION = "saturation"
    CHANNEL_SPREAD = "channel-spread"
    WEIGHT_ROUNDING = "weight-rounding"
    BIAS_GRID = "bias-grid"
    CLIPPING = "clipping"
    OUTLIERS = "outliers"
    MAP_CHANNELS = "map-channels"
    PRODUCT_CHANNELS = "product-channels"
    ACTIVATION_ROUNDING = "activation-rounding"


# What is measured at the outputs; noise at layers is scaled so that its sum is that of the outputs.
_AT_OUTPUT = (HarmKind.OTHER_FUNCTION, HarmKind.SATURATION)
KIND_WORDS = {
    HarmKind.OTHER_FUNCTION: "Graph changed by preparation: it computes another function than the float model",
    HarmKind.SATURATION: "Saturation: this CPU adds 8-bit products in 16 bits, which overflows",
    HarmKind.CHANNEL_SPREAD: "Per-tensor scale, uneven channel ranges",
    HarmKind.WEIGHT_ROUNDING: "Weight quantization error (too few levels)",
    HarmKind.BIAS_GRID: "Bias quantization error",
    HarmKind.CLIPPING: "Clipped activations: the range is too narrow for the data",
    HarmKind.OUTLIERS: "Activation outliers: few values set the range",
    HarmKind.MAP_CHANNELS: "Outlier channels of a convolution's input: few channels set the range",
    HarmKind.PRODUCT_CHANNELS: "Outlier channels of a matrix product's input: few channels set the range",
    HarmKind.ACTIVATION_ROUNDING: "Activation quantization error (too few levels)",
}


@dataclass(frozen=True)
class HarmPlace:
    """Where it hurts."""

    node: str  # that makes or reads what is hurt
    noise: float  # there, 0 to 1
    fact: str  # a figure for people


@dataclass(frozen=True)
class Harm:
    """One cause of error."""

    kind: HarmKind  # which
    noise: float  # its part of the outputs' noise, about
    places: tuple[HarmPlace, ...]  # the worst first

    @property
    def words(self) -> str:
        """For people, with the figures of the worst place."""
        worst = self.places[0]
        more = f"; {len(self.places) - 1} similar" if len(self.places) > 1 else ""
        where = f"{worst.node!r}: " if worst.node else ""
        return f"{KIND_WORDS[self.kind]} ({where}{worst.fact}{more})"


@dataclass(frozen=True)
class Damage:
    """All that was found."""

    harms: Mapping[HarmKind, Harm]  # by kind
    layers: Mapping[str, float]  # quantized nodes with weights, by name: noise of everything at them
    outliers: frozenset[str] = frozenset()  # what has outlier channels: "activation", "weight"

    def noise(self, kind: HarmKind) -> float:
        """Of one cause; 0 where there is none."""
        harm = self.harms.get(kind)
        return 0.0 if harm is None else harm.noise

    @property
    def total(self) -> float:
        """Noise of all causes."""
        return sum(harm.noise for harm in self.harms.values())


class _DamageTally:
    """Collects places by kind."""

    def __init__(self) -> None:
        self._places: dict[HarmKind, list[HarmPlace]] = defaultdict(list)

    def add(self, kind: HarmKind, node: str, noise: float, fact: str) -> None:
        """Enter a place where there is any noise."""
        if noise > 0:
            self._places[kind].append(HarmPlace(node, noise, fact))

    def damage(self, layers: set[str], output_noise: float) -> Damage:
        """All harms, in parts of the output's noise.

        Args:
            layers: names of the nodes whose noise is summed up.
            output_noise: error beside signal in the outputs of the quantized model.
        """
        local = sum(place.noise for kind in HarmKind if kind not in _AT_OUTPUT for place in self._places[kind])
        overflow = sum(place.noise for place in self._places[HarmKind.SATURATION])
        share = max(min(output_noise, 1.0) - overflow, 0.0) / local if local > 0 else 0.0
        harms, by_node = {}, dict.fromkeys(sorted(layers), 0.0)
        for kind in HarmKind:
            places = sorted(self._places[kind], key=lambda place: -place.noise)
            factor = 1.0 if kind in _AT_OUTPUT else share
            if places:
                harms[kind] = Harm(kind, factor * sum(place.noise for place in places), tuple(places))
            for place in places:
                if place.node in by_node:
                    by_node[place.node] += factor * place.noise
        return Damage(harms, by_node)


def find_damage(draft: Draft, case: Case, services: Services, *, sqnr_db: float | None) -> Damage:
    """Look at parameters, and at the activations of a few samples.

    Args:
        draft: what was emitted.
        case: whose data the figures of the report are on.
        services: of the run.
        sqnr_db: of the outputs; None: they are lost.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    graph, plan, tally = draft.graph, draft.plan, _DamageTally()
    nodes = [node for node in graph if plan.nodes[node_name(node)].role in (Role.LINEAR, Role.STORED)]
    powers = {node_name(node): ChannelPower(_axis_of(node)) for node in nodes if node_name(node) in plan.biases}
    noises = _watched(graph, plan)
    requests = [
        Request(name_of(plan.carrier(node)), powers[node_name(node)]) for node in nodes if node_name(node) in powers
    ]
    requests += [Request(tensor, noise) for tensor, (noise, _) in noises.items()]
    if requests:
        collect(
            draft.prepared.model,
            requests,
            case.measured_on,
            case.inputs,
            limit=_SAMPLES,
            threads=services.threads,
            run=services.run,
        )
    parameters = Parameters(graph, plan)
    for node in nodes:
        _weight(node, plan, parameters, tally)
        bias = plan.biases.get(node_name(node))
        if bias is not None and bias.integers is not None:
            _bias(node, bias, parameters, powers[node_name(node)].result(), tally)
    for noise, reader in noises.values():
        _activation(reader, noise, tally)
    _function(draft, case, services, tally)
    _saturation(draft, case, services, tally)
    output_noise = 1.0 if sqnr_db is None else 10 ** (-sqnr_db / 10)
    damage = tally.damage({node_name(node) for node in nodes}, output_noise)
    wild = find_outliers(graph, plan, case.config.outlier_ratio)
    return replace(damage, outliers=frozenset(one.kind for one in wild))


def _axis_of(node: ir.Node) -> int:
    """Axis of the channels that the node makes."""
    return channel_axis(node) if is_linear(node) else 1


def _watched(graph: ir.Graph, plan: QuantizationPlan) -> dict[str, tuple[ActivationNoise, ir.Node]]:
    """By tensor: its noise, and the quantized node that reads it; each range once."""
    found: dict[str, tuple[ActivationNoise, ir.Node]] = {}
    seen: set[str] = set()
    for node in graph:
        if not plan.nodes[node_name(node)].rounds:
            continue
        for value in node.inputs:
            entry = plan.activations.get(name_of(value)) if value is not None and not is_constant(value) else None
            if entry is None or entry.quantization is None or entry.source in seen:
                continue
            seen.add(entry.source)
            found[entry.tensor] = ActivationNoise(entry.quantization, _axis_of(node)), node
    return found


def _weight(node: ir.Node, plan: QuantizationPlan, parameters: Parameters, tally: _DamageTally) -> None:
    value = node.inputs[1]
    entry = plan.weights.get(name_of(value)) if value is not None else None
    if value is None or entry is None or not is_constant(value):
        return
    found = parameters.weight(name_of(value))
    axis = weight_axis(node)
    rows = PER_TENSOR if axis is None else PerAxis(axis)
    array, rounded = rows.rows(found.original).astype(np.float64), rows.rows(found.present).astype(np.float64)
    power, size = np.square(array).sum(axis=1), np.abs(array).max(axis=1, initial=0.0)
    alive = power > 0
    silent = plan.silent.get(entry.initializer)
    if silent is not None and silent.size == alive.size:
        alive &= ~silent
    if not alive.any():
        return
    noise = mean_noise(np.square(rounded - array).sum(axis=1), power, alive)
    possible = noise
    if entry.granularity == PER_TENSOR and isinstance(rows, PerAxis) and isinstance(entry.quantization, IntegerGrid):
        better = rows.rows(_per_channel(found.original, entry, rows))
        possible = min(noise, mean_noise(np.square(better - array).sum(axis=1), power, alive))
    ratio = float(size[alive].max() / np.median(size[alive]))
    name, few = node_name(node), f"{entry.spec.dtype}, {_of_signal(noise)}"
    widest = f"the widest channel is {ratio:.3g} times the median one"
    tally.add(HarmKind.CHANNEL_SPREAD, name, noise - possible, f"{widest}, {_of_signal(noise - possible)}")
    tally.add(HarmKind.WEIGHT_ROUNDING, name, possible, few)


def _per_channel(array: np.ndarray, entry: WeightPlan, rows: PerAxis) -> np.ndarray:
    """The weight as scales of the same kind, one per channel, would have it."""
    spec = entry.spec.model_copy(update={"granularity": "per_channel"})
    return weight_grid(array, spec, rows).fake(array)


def _bias(
    node: ir.Node, entry: BiasPlan, parameters: Parameters, power: np.ndarray | None, tally: _DamageTally
) -> None:
    found = parameters.of(node, 2)
    if found is None or power is None or power.size != found.original.size:
        return
    error = np.square((found.present.astype(np.float64) - found.unrounded).reshape(-1))
    alive = power > 0
    if not alive.any():
        return
    noise = mean_noise(error, power, alive)
    largest = float(np.abs(found.unrounded).max(initial=0.0))
    fact = f"{entry.spec.dtype}, biases up to {largest:.3g}, {_of_signal(noise)}"
    tally.add(HarmKind.BIAS_GRID, node_name(node), noise, fact)


def _of_signal(noise: float) -> str:
    return f"error {100 * noise:.2g} % of the signal"


def _activation(reader: ir.Node, noise: ActivationNoise, tally: _DamageTally) -> None:
    found, name = noise.result(), node_name(reader)
    product = reader.op_type in MATRIX_PRODUCTS
    told = f"the largest channel is {found.ratio:.3g} times the median one"
    tally.add(HarmKind.CLIPPING, name, found.clipping, f"{100 * found.clipped_share:.2g} % of the values it reads")
    tally.add(HarmKind.OUTLIERS, name, found.outliers, _of_signal(found.outliers))
    tally.add(HarmKind.PRODUCT_CHANNELS if product else HarmKind.MAP_CHANNELS, name, found.channels, told)
    tally.add(HarmKind.ACTIVATION_ROUNDING, name, found.rounding, _of_signal(found.rounding))


def _function(draft: Draft, case: Case, services: Services, tally: _DamageTally) -> None:
    """Compare the float network that was quantized with the float model, where a limit of 6 was dropped."""
    told = [
        f"preparation.{step.name}" for step in draft.prepared.steps if step.name == "clip6_to_relu" and step.applied
    ]
    told += [
        "replace_relu6 relu"
        for algorithm in case.config.algorithms
        if isinstance(algorithm, CrossLayerEqualization) and algorithm.replace_relu6 == "relu"
    ]
    if not told:
        return
    model = draft.prepared.model
    session = Session(model, threads=services.threads, what="prepared model", optimized=not is_large(model))
    worst = _distance_db(session, case, services)
    if worst is not None:
        tally.add(HarmKind.OTHER_FUNCTION, "", _noise_of(worst), f"{', '.join(told)}: SQNR {worst:.1f} dB")


def _saturation(draft: Draft, case: Case, services: Services, tally: _DamageTally) -> None:
    """Compare what the CPU's integer kernels make of the quantized model with what its definition says."""
    # The kernels of dynamic models saturate without optimizations, too: nothing here tells what they cost.
    if case.config.mode != "static" or not may_saturate(case.config):
        return
    model = draft.emitted().model
    if is_large(model):  # the runtime's own rewriting, which brings the integer kernels, is not done for these
        return
    here, exact = (
        _distance_db(Session(model, threads=services.threads, what="quantized model", optimized=fused), case, services)
        for fused in (True, False)
    )
    if here is not None and exact is not None:
        fact = f"SQNR {here:.1f} dB here, {exact:.1f} dB where it does not"
        tally.add(HarmKind.SATURATION, "", _noise_of(here) - _noise_of(exact), fact)


def _distance_db(session: Session, case: Case, services: Services) -> float | None:
    return worst_distance_db(case.reference, session, limit=_SAMPLES, run=services.run)


def _noise_of(sqnr_db: float) -> float:
    return min(float(10 ** (-sqnr_db / 10)), 1.0)


def causes_of(damage: Damage) -> tuple[Cause, ...]:
    """The causes, the worst first, each with its worst places; nothing where there is no error."""
    found = [_cause(harm, damage.total) for harm in damage.harms.values() if damage.total > 0]
    return tuple(
        sorted((one for one in found if one.error_percent >= _LEAST_PERCENT), key=lambda one: -one.error_percent)
    )


def with_blame(rows: Sequence[LayerFigures], damage: Damage) -> tuple[LayerFigures, ...]:
    """The rows with the part of the error that arises in each, the largest first, then those left in float."""
    by_node: dict[str, float] = defaultdict(float)
    for harm in damage.harms.values():
        for place in harm.places:
            by_node[place.node] += place.noise * _factor(harm)
    if damage.total <= 0:
        return tuple(rows)
    made = []
    for row in rows:
        if row.reason is None:
            part = _percent(sum(by_node[name] for name in row.nodes or (row.name,)), damage.total)
            row = row.model_copy(update={"error_percent": part})
        made.append(row)
    return (*by_contribution(made), *(row for row in made if row.reason is not None))


def _cause(harm: Harm, total: float) -> Cause:
    factor = _factor(harm)
    return Cause(
        kind=harm.kind.value,
        message=KIND_WORDS[harm.kind],
        error_percent=_percent(harm.noise, total),
        places=tuple(
            CausePlace(node=place.node, error_percent=_percent(factor * place.noise, total), fact=place.fact)
            for place in harm.places[:_MOST_PLACES]
        ),
        places_left_out=max(0, len(harm.places) - _MOST_PLACES),
    )


def _factor(harm: Harm) -> float:
    """From the noise of a place to its part in that of the outputs."""
    local = sum(place.noise for place in harm.places)
    return harm.noise / local if local > 0 else 0.0


def _percent(part: float, total: float) -> float:
    return round(min(100.0 * part / total, 100.0), 2)
