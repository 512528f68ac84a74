"""Cross-layer equalization as a step, with biases absorbed (Nagel et al. 2019, sections 4.1 and 4.1.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import CrossLayerEqualization
from service.contracts.reason import declare
from service.contracts.specs import is_block, is_float8, is_integer
from worker.quantizer.equalization.balance import Balance, BalancedWeight, BalanceProblem, balance
from worker.quantizer.equalization.channel_groups import ChannelLimit, Flow, ScalableLayer, follow
from worker.quantizer.equalization.channel_scaling import (
    LimitPolicy,
    ObservedChannels,
    choose_policy,
    cut_off,
    find_silent,
    held_by_limits,
    is_dropped,
    observed,
    put_bias,
    quantized_values,
    range_changes,
    rewrite_limits,
    scale_layers,
    watched,
)
from worker.quantizer.evaluation.metrics import Distances
from worker.quantizer.evaluation.side_by_side import side_by_side
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.graph.values import DEFAULT_DOMAINS, Names, name_of, node_name, users
from worker.quantizer.numerics.integer import PER_TENSOR, IntegerGrid
from worker.quantizer.ops.channels import flow_of
from worker.quantizer.ops.labels import PINNED
from worker.quantizer.ops.linear import linear_view
from worker.quantizer.ops.windows import reaches_beyond
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Step, StepResult, Toolkit
from worker.quantizer.runtime.session import Session
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.observers import ChannelExtremes

# Moves the part of a bias that is always passed on into the next layer's bias (Nagel et al. 2019, section 4.1.3).
#
# relu(x) = relu(x - c) + c as long as x >= c. The paper takes c from the distribution that a batch normalization
# promises; here it is the smallest value that the channel takes on the calibration data. Padding with 0 would mean c
# behind such a shift, so that only layers without padding are shifted into.

# A shift by a smaller share of a channel's range gains nothing.
_WORTH = 0.1


def find_shifts(flow: Flow, seen: Mapping[str, ObservedChannels]) -> np.ndarray:
    """What can be taken from every group's values, float64 [groups], 0 or more."""
    limits = {node_name(limit.node): limit for limit in flow.limits}
    layers = {layer.node: layer for layer in flow.layers}
    makers = _uses(flow, [layer.outputs for layer in flow.layers])
    readers = _uses(flow, [layer.inputs for layer in flow.layers])
    shifts = np.zeros(flow.groups)
    for layer in flow.layers:
        activation = _activation(layer.node.outputs[0], limits)
        tensor = seen.get(name_of(activation.outputs[0])) if activation is not None else None
        found = _readers(activation.outputs[0], layers) if activation is not None else None
        if activation is None or tensor is None or found is None or not _adds_bias(layer.node):
            continue
        groups, low, high = tensor.groups, tensor.low, tensor.high
        limit = limits.get(node_name(activation))
        worth = (low > _WORTH * high) & (groups != PINNED)
        worth &= (makers[groups] == 1) & (readers[groups] == len(found)) & (np.bincount(groups)[groups] == 1)
        if limit is not None:
            worth &= high < limit.high
        shifts[groups[worth]] = low[worth]
    return shifts


def absorb(graph: ir.Graph, flow: Flow, shifts: np.ndarray) -> list[str]:
    """Take ``shifts`` from the biases of the layers that make the values and give them to those that read them.

    ``shifts`` are by group; the graph, that of ``flow``, is changed in place. Returns names of the nodes whose bias has
    changed.
    """
    names, changed = Names(graph), []
    for layer in flow.layers:
        moved = _gained(layer, shifts) - shifts[layer.outputs]
        if not moved.any():
            continue
        bias, moved = layer.bias, moved / _beta(layer.node)
        put_bias(graph, layer, moved if bias is None else bias + moved, names)
        changed.append(node_name(layer.node))
    return changed


def shifted(seen: Mapping[str, ObservedChannels], shifts: np.ndarray) -> dict[str, ObservedChannels]:
    """What would have been seen with ``shifts`` taken away."""
    return {
        name: replace(tensor, low=tensor.low - shifts[tensor.groups], high=tensor.high - shifts[tensor.groups])
        for name, tensor in seen.items()
    }


def _gained(layer: ScalableLayer, shifts: np.ndarray) -> np.ndarray:
    """What the layer's results lose by the shifts of its inputs, float64 [out]."""
    if not layer.is_linear or not shifts[layer.inputs].any():
        return np.zeros(layer.outputs.size)
    weight = layer.weight
    sums = weight.reshape(*weight.shape[:2], -1).sum(axis=2, dtype=np.float64) * shifts[layer.columns]
    axis = 1 if layer.rows.shape[1] == 1 else 0  # sum over the columns of each row
    total: np.ndarray = np.broadcast_to(sums, weight.shape[:2]).sum(axis=axis)
    linear = linear_view(layer.node)
    return total if linear is None else total * linear.alpha


def _activation(value: ir.Value, limits: Mapping[str, ChannelLimit]) -> ir.Node | None:
    """The node that alone reads ``value`` and passes on what is positive: a Relu, or a limit from 0."""
    readers = users(value)
    if len(readers) != 1 or value.is_graph_output():
        return None
    node = readers[0]
    limit = limits.get(node_name(node))
    is_limit = limit is not None and limit.low == 0.0
    return node if (node.op_type == "Relu" and node.domain in DEFAULT_DOMAINS) or is_limit else None


def _readers(value: ir.Value, layers: Mapping[ir.Node, ScalableLayer]) -> list[ScalableLayer] | None:
    """The layers that read ``value``, behind operators that pass a shift on; None if anything else reads it."""
    found: list[ScalableLayer] = []
    if value.is_graph_output():
        return None
    for node in users(value):
        layer = layers.get(node)
        if layer is not None and _takes_shift(node):
            found.append(layer)
        elif _passes_shift(node):
            behind = _readers(node.outputs[0], layers)
            if behind is None:
                return None
            found += behind
        else:
            return None
    return found


def _takes_shift(node: ir.Node) -> bool:
    return node.op_type in ("Gemm", "Conv") and _adds_bias(node) and not reaches_beyond(node)


def _adds_bias(node: ir.Node) -> bool:
    """True if a bias of the node changes its results: a MatMul has none, and a Gemm may multiply it by 0."""
    return node.op_type != "MatMul" and _beta(node) != 0.0


def _beta(node: ir.Node) -> float:
    linear = linear_view(node)
    return 1.0 if linear is None else linear.beta


def _passes_shift(node: ir.Node) -> bool:
    flow = flow_of(node)
    return flow is not None and flow.passes_shift and len(node.outputs) == 1 and not reaches_beyond(node)


def _uses(flow: Flow, parts: list[np.ndarray]) -> np.ndarray:
    count = np.zeros(flow.groups, np.int64)
    for groups in parts:
        count[np.unique(groups)] += 1
    return count


NO_PAIR = declare("no-pair-of-layers", "there are no two layers between which scale could move")
_OWN_BIASES = ("int8", "int16")
_LIMITS = {
    "per_channel": "kept exactly, {} of them per channel",
    "never": "kept as they are",
    "relu": "dropped, {} of them",
}
_SAMPLES, _BATCH = 64, 8


class CrossLayerEqualizationStep(Step[CrossLayerEqualization]):
    """Moves scale between neighbouring layers of the float network."""

    def requests(self, draft: Draft) -> list[Request]:
        """Extremes per channel of every tensor between layers."""
        flow = follow(draft.graph, through_normalizations=self.spec.stem)
        wanted = watched(flow, draft.plan, before_limits=self.spec.replace_relu6 == "relu")
        return [Request(tensor, ChannelExtremes(axis)) for tensor, axis in wanted.items()]

    def variants(self, draft: Draft) -> tuple[CrossLayerEqualization, ...]:
        """Activations count where one scale serves a whole weight; where none does, one variant is like another."""
        every, weights = self.spec.variants(), draft.plan.weights.values()
        shared = any(weight.granularity == PER_TENSOR and _has_range(weight.spec.dtype) for weight in weights)
        return every if shared else every[:1]

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """The equalized network, calibrated anew."""
        model = draft.prepared.model.clone()
        work = Equalizer(self.spec, choose_policy(self.spec, toolkit.case.config), draft, model)
        work.run()
        if not work.nodes:
            return StepResult.nothing(NO_PAIR())
        if work.drops:
            work.cost = cost_in_words(model, toolkit)
        facts = draft.prepared.facts.with_op_types(work.op_types)
        changed = toolkit.recalibrate(draft, replace(draft.prepared, model=model, facts=facts))
        ranges = range_changes(draft, changed, work.flow, work.seen, work.factors)
        return StepResult(changed, tuple(work.nodes), work.summary(), ranges=ranges)


@dataclass
class Equalizer:
    """One equalization."""

    spec: CrossLayerEqualization  # its options
    policy: LimitPolicy  # what becomes of limits
    draft: Draft  # with the statistics that the step asked for
    model: ir.Model  # a copy of the draft's float model, changed in place
    flow: Flow = field(init=False)  # its channels
    seen: dict[str, ObservedChannels] = field(init=False)  # what the statistics say of them
    factors: np.ndarray = field(init=False)  # what every group was multiplied by
    nodes: dict[str, None] = field(default_factory=dict)  # names of the nodes that were changed, as keys
    op_types: dict[str, str] = field(default_factory=dict)  # operators of new nodes as users know them, by name
    silent: int = 0  # number of channels cut off
    absorbed: int = 0  # number of biases absorbed
    limits: int = 0  # number of limits that were scaled or dropped
    sweeps: int = 0  # how many it took
    cost: str | None = None  # of dropping limits, in words

    @property
    def drops(self) -> bool:
        """True if limits were dropped, so that the network computes something else."""
        return self.policy.mode == "relu" and self.limits > 0

    def run(self) -> None:
        """Cut off, absorb, balance, scale."""
        graph, spec, plan = self.model.graph, self.spec, self.draft.plan
        self.flow = flow = follow(graph, through_normalizations=spec.stem)
        self.seen = observed(flow, self.draft.statistics[spec.method])
        self.factors = np.ones(flow.groups)
        silent = find_silent(flow, plan, self.seen)
        if spec.silent_channels == "zero":
            self._note(cut_off(graph, flow, silent))
            self.silent = int(silent.sum())
        shifts = find_shifts(flow, self.seen) if spec.absorb_bias else np.zeros(flow.groups)
        self._note(absorb(graph, flow, shifts))
        self.absorbed = int((shifts > 0).sum())
        found = self._balance(silent, shifted(self.seen, shifts))
        self.factors, self.sweeps = found.factors, found.sweeps
        self._note(scale_layers(graph, flow, self.factors))
        self.op_types, limited = rewrite_limits(graph, flow, self.factors, shifts, self.policy)
        self.limits = len(limited)
        if self.drops:
            self._note(limited)

    def _note(self, names: list[str]) -> None:
        self.nodes.update(dict.fromkeys(names))

    def _balance(self, silent: np.ndarray, seen: Mapping[str, ObservedChannels]) -> Balance:
        flow, spec, plan = self.flow, self.spec, self.draft.plan
        held = held_by_limits(flow, seen, self.policy)
        dropped = frozenset(node_name(limit.node) for limit in flow.limits if is_dropped(limit, self.policy))
        problem = BalanceProblem(
            groups=flow.groups,
            matrices=[_matrix(layer, plan, append_bias=spec.scale_append_bias) for layer in flow.layers],
            values=quantized_values(flow, plan, seen, unlimited=dropped),
            fixed=held.fixed | silent,
            largest=held.largest,
            threshold=spec.weight_threshold if spec.scale_use_threshold else 0.0,
            use_activations=spec.use_activations,
            values_count=float(spec.activation_weight),
        )
        return balance(problem, steps=spec.steps, least_change=spec.total_layer_diff_threshold)

    def summary(self) -> str:
        """One sentence for the report."""
        scaled = int((self.factors != 1.0).sum())
        parts = [f"{scaled} channels of {len(self.nodes)} layers scaled in {self.sweeps} sweeps"]
        if self.silent:
            parts.append(f"{self.silent} channels cut off that are 0 on all calibration data")
        if self.absorbed:
            parts.append(f"{self.absorbed} biases absorbed by the next layer")
        if self.flow.limits:
            parts.append(f"limits {_LIMITS[self.policy.mode].format(self.limits)}: {self.policy.reason}")
        if self.cost is not None:
            parts.append(f"that {self.cost}")
        return "; ".join(parts)


def _matrix(layer: ScalableLayer, plan: QuantizationPlan, *, append_bias: bool) -> BalancedWeight:
    node = layer.node
    entry = plan.weights.get(name_of(node.inputs[1])) if node.inputs[1] is not None else None
    grid = None
    if layer.is_linear and entry is not None and _has_range(entry.spec.dtype):
        grid = "tensor" if entry.granularity == PER_TENSOR else "row"
    integers = None if entry is None else entry.quantization
    planned = plan.biases.get(node_name(node))
    own = planned is not None and planned.reason is None and planned.spec.dtype in _OWN_BIASES
    bias = layer.bias if append_bias and own else None
    return BalancedWeight(
        size=layer.magnitudes(),
        rows=layer.rows,
        columns=layer.columns,
        outputs=layer.outputs,
        bias=None if bias is None else np.abs(bias.astype(np.float64)),
        grid=grid,
        step=1.0 / integers.limits[1] if grid == "tensor" and isinstance(integers, IntegerGrid) else 0.0,
    )


def _has_range(dtype: str) -> bool:
    """True for types whose rounding depends on the range of what shares a scale."""
    return is_integer(dtype) or is_float8(dtype) or is_block(dtype)


def cost_in_words(model: ir.Model, toolkit: Toolkit) -> str:
    """How far a changed float model is from the uploaded one, over up to 64 samples that steps may learn from.

    ``model`` is the float model as changed; labels of the calibration data, where there are any, are judged by too.
    """
    case, services = toolkit.case, toolkit.services
    session = Session(to_bytes(model), threads=services.threads, what="equalized float model")
    metrics = case.metrics
    measurable = metrics.fed_by(case.calibration) and metrics.judges_parts
    distances, before, after = Distances(), metrics.start(part=True), metrics.start(part=True)
    expected = case.expected_outputs(
        services.run, batch_size=_BATCH, samples=toolkit.learning(_SAMPLES), with_arrays=measurable
    )
    for twins in side_by_side(session, expected, services.run):
        distances.update(twins.pairs())
        if measurable:
            before.update(twins.batch, twins.expected, twins.expected)
            after.update(twins.batch, twins.got, twins.expected)
    worst = distances.worst_db
    words = "changes the float network" if worst is None else f"leaves the float network {worst:.1f} dB"
    one, other = (found.values.get(metrics.primary) for found in (before, after))
    if one is not None and other is not None:
        words += f", {metrics.primary} {one:.2f} -> {other:.2f}"
    return words
