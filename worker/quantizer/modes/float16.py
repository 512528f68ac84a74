"""Conversion to float16, as far as range and runtime allow: of a whole model, and beside integers.

Beside integers, what is not quantized computes in 16 bits, in one file with explicit Q/DQ pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.reason import Reason
from worker.quantizer.emit import PRODUCER, Emitted, emit
from worker.quantizer.emit.float16 import to_float16
from worker.quantizer.graph.metadata import NodeFacts
from worker.quantizer.graph.serialized import copy_of
from worker.quantizer.graph.values import node_name
from worker.quantizer.plan.candidates import leave_subgraphs
from worker.quantizer.plan.selection import Matcher, Selection
from worker.quantizer.plan.types import NodePlan, PlanLog, QuantizationPlan, Role
from worker.quantizer.refine.draft import Case, Draft, Filled
from worker.quantizer.refine.values import NO_FLOAT32, kept_wide, opset_of_graph, out_of_range, refused
from worker.quantizer.run.services import Services

NO_DATA = "there is no calibration data: values beyond the range of float16 were not checked"


def plan_float16(graph: ir.Graph, config: QuantizationConfig, facts: NodeFacts, plan_log: PlanLog) -> QuantizationPlan:
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
    plan, plan_log, prepared = draft.plan.copy(), draft.plan_log.followed_by(), draft.prepared
    with services.stages.stage("statistics"):
        if case.calibration.is_random:
            plan_log.note(NO_DATA)
        else:
            nodes = [node for node in draft.graph if plan.nodes[node_name(node)].role is Role.HALF]
            _leave(plan, out_of_range(prepared.model, nodes, case, services))
    with services.stages.stage("parameters"):
        services.run.progress("parameters")

        def make(float16_nodes: set[str]) -> ir.Model:
            model = copy_of(prepared.model)
            to_float16(model, float16_nodes, opset_of_graph(model.graph), interface=plan.half_interface)
            return model

        _leave(plan, refused(make, _float16_nodes(plan), case, services))
    return replace(draft, plan=plan, plan_log=plan_log)


def _leave(plan: QuantizationPlan, reasons: Mapping[str, Reason]) -> None:
    for name, reason in reasons.items():
        plan.nodes[name].role, plan.nodes[name].reason = None, reason


def _float16_nodes(plan: QuantizationPlan) -> set[str]:
    return {name for name, entry in plan.nodes.items() if entry.role is Role.HALF}


def emit_float16(model: ir.Model, plan: QuantizationPlan) -> Emitted:
    """The model in float16; inputs and outputs keep their types."""
    to_float16(model, _float16_nodes(plan), opset_of_graph(model.graph), interface=plan.half_interface)
    model.producer_name, model.producer_version = PRODUCER, None
    return Emitted(model)


_NAMED_AT_MOST = 8


def with_float16(filled: Filled, case: Case, services: Services) -> Filled:
    """The same drafts, in the last of which all that can computes in float16.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    draft = filled.draft
    plan, plan_log = draft.plan.copy(), draft.plan_log.followed_by()
    with services.stages.stage("float16"):
        services.run.progress("float16")
        wide = kept_wide(draft.graph)
        others = [node for node in draft.graph if node_name(node) not in wide]
        if case.calibration.is_random:
            plan_log.note(NO_DATA)
        else:
            wide |= out_of_range(draft.prepared.model, others, case, services)
        float16_nodes = {node_name(node) for node in draft.graph} - wide.keys()

        def make(chosen: set[str]) -> ir.Model:
            return emit(copy_of(draft.prepared.model), _beside(plan, chosen, case)).model

        wide |= refused(make, float16_nodes, case, services)
        float16_nodes -= wide.keys()
    plan_log.note(*_told(float16_nodes, wide))
    drafts = [*filled.drafts[:-1], replace(draft, plan=_beside(plan, float16_nodes, case), plan_log=plan_log)]
    return replace(filled, drafts=drafts)


def _beside(plan: QuantizationPlan, float16_nodes: set[str], case: Case) -> QuantizationPlan:
    found = plan.copy()
    found.float16_nodes, found.half_interface = frozenset(float16_nodes), case.config.interface == "float16"
    return found


def _told(float16_nodes: set[str], wide: dict[str, Reason]) -> list[str]:
    """How many nodes compute in float16, and which do not though they compute floats."""
    kept = {name: reason for name, reason in wide.items() if reason.code != NO_FLOAT32.code}
    told = [f"{len(float16_nodes)} nodes compute in float16 where they compute on no integers; {len(kept)} in float32"]
    for words, count in Counter(reason.words for reason in kept.values()).most_common(_NAMED_AT_MOST):
        names = [name for name, reason in kept.items() if reason.words == words]
        told.append(f"float32: {', '.join(names[:3])}{' ...' if count > 3 else ''} ({words})")
    return told
