"""Scale moved from an outlier channel into the weights that read it, exactly.

Between layers it goes the ways of cross-layer equalization; behind a normalization, or in front of a matrix product,
those of SmoothQuant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import CrossLayerEqualization, OutlierChannels
from service.contracts.config import QuantizationConfig
from service.contracts.reason import Reason, declare
from worker.quantizer.equalization.channel_groups import Flow, ScalableLayer, follow
from worker.quantizer.equalization.channel_scaling import choose_policy, rewrite_limits, scale_layers
from worker.quantizer.equalization.smooth_quant import SCALES_CHANNELS, Smoother, SmoothingOutcome
from worker.quantizer.equalization.smoothing_search import SmoothableTensor, SmoothableTensorFinder, weight_of
from worker.quantizer.graph.values import name_of, node_name
from worker.quantizer.numerics.integer import PER_TENSOR
from worker.quantizer.ops.labels import PINNED
from worker.quantizer.ops.linear import linear_view
from worker.quantizer.plan.targets import TARGETS
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.channels import Outliers

NO_WAY_FOR_SCALE = declare(
    "no-way-for-scale", "no layers before and after {tensor!r} can pass a scale on, and no matrix product reads it"
)
NO_MUL_WANTED = declare(
    "no-mul-wanted", "no constant before {tensor!r} can absorb the scale, and inserting a Mul is not allowed"
)
SCALE_LIMITED = declare(
    "scale-limited", "a limit clips the channels of {tensor!r}, and it must be scaled with them: {why}"
)
SITE_REFUSED = declare("scale-refused", "{tensor!r} cannot be scaled: {why}")


@dataclass
class Scaler:
    """Scales outlier channels of one float network, which is changed in place."""

    prepared: Prepared  # the float network, whose model is changed
    plan: QuantizationPlan  # made for it
    config: QuantizationConfig  # resolved
    spec: OutlierChannels  # of the algorithm
    nodes: list[str] = field(default_factory=list)  # names of the nodes whose constants have changed
    treated: list[str] = field(default_factory=list)  # tensors whose outliers were scaled
    left: dict[str, Reason] = field(default_factory=dict)  # by tensor, why its outliers were not

    def run(self, found: Sequence[Outliers]) -> Prepared:
        """Scale the outliers of all tensors as far as that can be done."""
        rest = self._between_layers(found)
        return self._before_products(rest)

    def _between_layers(self, found: Sequence[Outliers]) -> list[Outliers]:
        graph = self.prepared.graph
        flow = follow(graph)
        policy = choose_policy(CrossLayerEqualization(), self.config)
        limited: set[int] = set()
        for limit in flow.limits:
            if policy.mode != "per_channel" and not {limit.low, limit.high} <= {0.0, -np.inf, np.inf}:
                limited |= set(limit.channels.reshape(-1).tolist())
        factors, rest = np.ones(flow.groups), []
        makers, readers = {node_name(layer.node): layer for layer in flow.layers}, _readers(flow)
        for one in found:
            groups = _groups(one, flow, makers)
            wanted = set() if groups is None else set(groups[list(one.channels)].tolist())
            if groups is None or PINNED in wanted:
                rest.append(one)
                continue
            if wanted & limited:
                self.left[one.tensor] = SCALE_LIMITED(tensor=one.tensor, why=policy.reason)
                continue
            for channel in one.channels:
                group = int(groups[channel])
                wide = one.spans[channel] / one.widest_tame
                factors[group] = min(factors[group], 1.0 / _moved(wide, _column(readers[group], group, self.plan)))
            self.treated.append(one.tensor)
        if (factors != 1.0).any():
            self.nodes += scale_layers(graph, flow, factors)
            op_types, _ = rewrite_limits(graph, flow, factors, np.zeros(flow.groups), policy)
            self.prepared = replace(self.prepared, facts=self.prepared.facts.with_op_types(op_types))
        return rest

    def _before_products(self, found: Sequence[Outliers]) -> Prepared:
        prepared, outcome = self.prepared, SmoothingOutcome()
        smoother = Smoother(prepared.graph, self.plan, {})
        finder = SmoothableTensorFinder(prepared.graph, self.plan)
        for one in found:
            site = finder.at(one.tensor) if one.kind == "activation" else None
            reason = self._refusal(one, site)
            if reason is not None or site is None:
                self.left[one.tensor] = reason or NO_WAY_FOR_SCALE(tensor=one.tensor)
                continue
            scale = np.ones(one.spans.size)
            for channel in one.channels:
                wide = one.spans[channel] / one.widest_tame
                weights = max(self._row(node, channel) for node in site.consumers)
                scale[channel] = _moved(wide, weights)
            smoother.put(site, scale, outcome)
            self.treated.append(one.tensor)
        self.nodes += outcome.nodes
        facts = prepared.facts.with_kept_float(dict.fromkeys(outcome.muls, SCALES_CHANNELS()))
        return replace(prepared, facts=facts)

    def _refusal(self, one: Outliers, site: SmoothableTensor | None) -> Reason | None:
        if site is None or site.channels != one.spans.size:
            return NO_WAY_FOR_SCALE(tensor=one.tensor)
        if site.refusal is not None:
            return SITE_REFUSED(tensor=one.tensor, why=site.refusal)
        if site.folding is None and (not self.spec.insert_mul or TARGETS[self.config.target].whole):
            return NO_MUL_WANTED(tensor=one.tensor)
        return None

    def _row(self, node: ir.Node, channel: int) -> float:
        """Largest weight that reads the channel, as a part of the largest that it shares a scale with."""
        linear, array = linear_view(node), np.abs(weight_of(node))
        if linear is None:
            return 1.0
        value = node.inputs[1]
        entry = self.plan.weights.get(name_of(value)) if value is not None else None
        matrix = array if linear.outputs_first else array.T  # [out, in]
        shared = entry is not None and entry.granularity == PER_TENSOR
        widest = matrix.max() if shared else matrix.max(axis=1)
        return _part(matrix[:, channel], widest)


def _groups(one: Outliers, flow: Flow, makers: Mapping[str, ScalableLayer]) -> np.ndarray | None:
    """Group of every channel, int64 [channels]; None if the flow does not tell them apart."""
    if one.kind == "weight":
        layer = makers.get(one.node)
        return None if layer is None or layer.outputs.size != one.spans.size else layer.outputs
    channels = flow.channels.get(one.tensor)
    if channels is None or channels.size != one.spans.size or channels.shape[one.axis] != channels.size:
        return None
    return channels.reshape(-1)


def _readers(flow: Flow) -> Mapping[int, Sequence[ScalableLayer]]:
    """Linear layers by the groups that they read."""
    found: dict[int, list[ScalableLayer]] = defaultdict(list)
    for layer in flow.layers:
        for group in np.unique(layer.columns).tolist() if layer.is_linear else ():
            found[group].append(layer)
    return found


def _column(readers: Sequence[ScalableLayer], group: int, plan: QuantizationPlan) -> float:
    """Largest weight that reads the group, as a part of the largest that it shares a scale with."""
    found = 0.0
    for layer in readers:
        hit = np.broadcast_to(layer.columns == group, (sizes := layer.magnitudes()).shape)
        if sizes.shape[1] == 1 and layer.columns.size > 1:
            continue  # a scale of one column follows whatever it is multiplied by
        value = layer.node.inputs[1]
        entry = plan.weights.get(name_of(value)) if value is not None else None
        if entry is None:
            continue
        own = np.where(hit, sizes, 0.0)
        if entry.granularity == PER_TENSOR:
            found = max(found, _part(own.max(keepdims=True), sizes.max()))
        else:
            axis = 1 if layer.rows.shape[1] == 1 else 0
            found = max(found, _part(own.max(axis=axis), sizes.max(axis=axis)))
    return found


def _part(own: np.ndarray, widest: np.ndarray | np.floating) -> float:
    """Largest part of its widest that any of ``own`` is."""
    return float(np.divide(own, widest, out=np.zeros_like(own), where=np.asarray(widest) > 0).max(initial=0.0))


def _moved(wide: float, part: float) -> float:
    """By how much a channel is divided, at least 1.

    A channel ``wide`` times the widest tame one comes down to it where its weights, which are ``part`` of the widest,
    have the room; else both are as much too wide (Nagel et al. 2019, Data-Free Quantization, equation 11).
    """
    if wide * part <= 1.0:
        return max(wide, 1.0)
    return float(np.clip(np.sqrt(wide / part), 1.0, wide)) if wide > 1.0 else 1.0
