"""Drafts with fewer Q/DQ pairs: what stays quantized keeps its grids and integers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.values import node_name
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.calibration import calibrate
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Draft
from worker.quantizer.run.services import Services
from worker.quantizer.search.levels import ranges_of

SLOWER_QUANTIZED = declare(
    "slower-quantized",
    "measured on this machine, its Q/DQ pairs take more time than its integers save",
    hint="Set on_fail of the gate to report to have it quantized all the same.",
)


def without(draft: Draft, nodes: Collection[str], reason: Reason, case: Case, services: Services) -> Draft:
    """The draft with these nodes in float; what then stands alone between float nodes goes with them.

    Args:
        draft: filled by mode static.
        nodes: names of quantized nodes.
        reason: why they stay in float.
        case: what is quantized.
        services: of the run.

    Raises:
        EngineError: the runtime failed where a range had to be found anew.
        CanceledError: the run was canceled.
    """
    before = draft.plan
    facts = draft.prepared.facts.with_kept_float(dict.fromkeys(nodes, reason))
    made = draft.replanned(case.config, replace(draft.prepared, facts=facts))
    plan = made.plan
    plan.silent, plan.kept_apart = dict(before.silent), before.kept_apart
    for tensor, activation in plan.activations.items():
        if tensor in before.activations:
            activation.spec = before.activations[tensor].spec
    for name, weight in plan.weights.items():
        if name in before.weights:
            weight.spec, weight.granularity = before.weights[name].spec, before.weights[name].granularity
    for name, bias in plan.biases.items():
        if name in before.biases:
            bias.spec, bias.reason = before.biases[name].spec, before.biases[name].reason
    filled = calibrate(made, case, services, kept=ranges_of(draft, plan, case, services))
    _take_numbers(filled, before)
    plan_log = draft.plan_log.followed_by(*filled.plan_log.notes)
    return replace(filled, prepared=made.prepared, plan_log=plan_log, changed=tuple(nodes))


def in_float(draft: Draft) -> Draft:
    """The draft with nothing quantized: emitted, it is the uploaded file."""
    nodes = {
        name: replace(entry, role=None, reason=SLOWER_QUANTIZED() if entry.quantized else entry.reason)
        for name, entry in draft.plan.nodes.items()
    }
    for entry in nodes.values():
        entry.activation_reason = None
    return replace(draft, plan=QuantizationPlan(nodes=nodes, ranges=dict(draft.plan.ranges)))


def _take_numbers(draft: Draft, before: QuantizationPlan) -> None:
    """Give what both plans hold the numbers of ``before``, which algorithms may have chosen."""
    plan = draft.plan
    for tensor, activation in plan.activations.items():
        known = before.activations.get(tensor)
        if known is not None and known.source == activation.source:
            activation.quantization = known.quantization
    for name in plan.weights.keys() & before.weights.keys():
        plan.weights[name] = replace(before.weights[name])
    kept = {*plan.weights, *(bias.initializer for bias in plan.biases.values())}
    plan.moved = {name: array for name, array in before.moved.items() if name in kept}
    old, new = Parameters(draft.graph, before), Parameters(draft.graph, plan)
    nodes = {node_name(node): node for node in draft.graph}
    for name, bias in plan.biases.items():
        found = old.of(nodes[name], 2) if name in before.biases else None
        if found is not None and bias.quantization is not None:
            new.put(nodes[name], 2, found.unrounded, refit=True)
