"""Cross-layer equalization as a step: scale moves between neighbouring layers until one grid fits all channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import CrossLayerEqualization
from service.contracts.reason import declare
from service.contracts.specs import is_block, is_float8, is_integer
from worker.quantizer.equalization.absorbing import absorb, find_shifts, shifted
from worker.quantizer.equalization.balance import Balance, BalancedWeight, BalanceProblem, balance
from worker.quantizer.equalization.channel_groups import Flow, ScalableLayer, follow
from worker.quantizer.equalization.channel_ranges import (
    ObservedChannels,
    find_silent,
    observed,
    quantized_values,
    range_changes,
    watched,
)
from worker.quantizer.equalization.channel_scaling import (
    LimitPolicy,
    choose_policy,
    cut_off,
    held_by_limits,
    is_dropped,
    rewrite_limits,
    scale_layers,
)
from worker.quantizer.evaluation.metrics import Distances
from worker.quantizer.evaluation.side_by_side import side_by_side
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.graph.values import name_of, node_name
from worker.quantizer.numerics.granularity import PER_TENSOR
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Step, Toolkit
from worker.quantizer.runtime.session import Session
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.rows import ChannelExtremes

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

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        """The equalized network, calibrated anew."""
        model = draft.prepared.model.clone()
        work = Equalizer(self.spec, choose_policy(self.spec, toolkit.case.config), draft, model)
        work.run()
        if not work.nodes:
            return Change.nothing(NO_PAIR())
        if work.drops:
            work.cost = cost_in_words(model, toolkit)
        facts = draft.prepared.facts.with_op_types(work.op_types)
        changed = toolkit.recalibrate(draft, replace(draft.prepared, model=model, facts=facts))
        ranges = range_changes(draft, changed, work.flow, work.seen, work.factors)
        return Change(changed, tuple(work.nodes), work.summary(), ranges=ranges)


@dataclass
class Equalizer:
    """One equalization.

    Attributes:
        spec: its options.
        policy: what becomes of limits.
        draft: with the statistics that the step asked for.
        model: a copy of the draft's float model, changed in place.
        flow: its channels.
        seen: what the statistics say of them.
        factors: what every group was multiplied by.
        nodes: names of the nodes that were changed, as keys.
        op_types: operators of new nodes as users know them, by name.
        silent: number of channels cut off.
        absorbed: number of biases absorbed.
        limits: number of limits that were scaled or dropped.
        sweeps: how many it took.
        cost: of dropping limits, in words.
    """

    spec: CrossLayerEqualization
    policy: LimitPolicy
    draft: Draft
    model: ir.Model
    flow: Flow = field(init=False)
    seen: dict[str, ObservedChannels] = field(init=False)
    factors: np.ndarray = field(init=False)
    nodes: dict[str, None] = field(default_factory=dict)
    op_types: dict[str, str] = field(default_factory=dict)
    silent: int = 0
    absorbed: int = 0
    limits: int = 0
    sweeps: int = 0
    cost: str | None = None

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

    Args:
        model: the float model as changed.
        toolkit: whose calibration data count; their labels, where there are any, are judged by too.
    """
    case, services = toolkit.case, toolkit.services
    session = Session(to_bytes(model), threads=services.threads, what="equalized float model")
    metrics, first = case.metrics, toolkit.first_sample
    measurable = metrics.fed_by(case.calibration) and metrics.judges_parts
    distances, before, after = Distances(), metrics.start(part=True), metrics.start(part=True)
    expected = case.expected_outputs(
        services.run, batch_size=_BATCH, first=first, last=first + _SAMPLES, with_arrays=measurable
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
