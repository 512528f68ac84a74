"""Conversion to float16: weights, activations and operators, as far as range and runtime allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.reason import Reason
from worker.quantizer.emit import PRODUCER, Emitted
from worker.quantizer.emit.halfs import to_halfs
from worker.quantizer.graph.facts import NodeFacts
from worker.quantizer.graph.skeleton import copy_of
from worker.quantizer.graph.values import node_name
from worker.quantizer.plan.journal import Journal
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.subgraphs import leave_subgraphs
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.halfs import kept_wide, opset_of_graph, out_of_range, refused
from worker.quantizer.run.services import Services

NO_DATA = "there is no calibration data: whether values leave the range of float16 was not looked at"


def plan_float16(graph: ir.Graph, config: QuantizationConfig, facts: NodeFacts, journal: Journal) -> QuantizationPlan:
    """Which nodes compute in float16: all that make floats, but for excluded ones and operators without a kernel."""
    selection = Selection(config, Matcher(graph, facts.op_types))
    plan, wide = QuantizationPlan(half_interface=config.interface == "float16"), kept_wide(graph)
    for node in graph:
        reason = wide.get(node_name(node)) or selection.reason(node)
        plan.nodes[node_name(node)] = NodePlan(node_name(node), node.op_type, None if reason else Role.HALF, reason)
    leave_subgraphs(graph, plan)
    return plan


def fill_float16(draft: Draft, case: Case, services: Services) -> Draft:
    """Take out of the plan what float16 does not hold on the calibration data, and what the runtime does not run.

    Raises:
        EngineError: the runtime fails on the data, whatever is taken out.
        CanceledError: the run was canceled.
    """
    plan, journal, prepared = draft.plan.copy(), draft.journal.followed_by(), draft.prepared
    with services.stages.stage("statistics"):
        if case.calibration.is_random:
            journal.note(NO_DATA)
        else:
            nodes = [node for node in draft.graph if plan.nodes[node_name(node)].role is Role.HALF]
            _leave(plan, out_of_range(prepared.model, nodes, case, services))
    with services.stages.stage("parameters"):
        services.run.progress("parameters")

        def make(halfs: set[str]) -> ir.Model:
            model = copy_of(prepared.model)
            to_halfs(model, halfs, opset_of_graph(model.graph), interface=plan.half_interface)
            return model

        _leave(plan, refused(make, _halfs(plan), case, services))
    return replace(draft, plan=plan, journal=journal)


def _leave(plan: QuantizationPlan, reasons: Mapping[str, Reason]) -> None:
    for name, reason in reasons.items():
        plan.nodes[name].role, plan.nodes[name].reason = None, reason


def _halfs(plan: QuantizationPlan) -> set[str]:
    return {name for name, entry in plan.nodes.items() if entry.role is Role.HALF}


def emit_float16(model: ir.Model, plan: QuantizationPlan) -> Emitted:
    """The model in float16; inputs and outputs keep their types."""
    to_halfs(model, _halfs(plan), opset_of_graph(model.graph), interface=plan.half_interface)
    model.producer_name, model.producer_version = PRODUCER, None
    return Emitted(model)
