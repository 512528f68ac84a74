"""Conversion to float16: weights, activations and operators, as far as range and runtime allow."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

from service.contracts.config import QuantizationConfig
from service.contracts.errors import EngineError, UnsupportedModelError
from service.contracts.reason import Reason, declare
from worker.quantizer.data import choose_batch_size
from worker.quantizer.emit import PRODUCER, Emitted
from worker.quantizer.emit.halfs import LARGEST_HALF, beyond_half, can_turn, handed_on, to_halfs
from worker.quantizer.graph.facts import NodeFacts
from worker.quantizer.graph.skeleton import copy_of
from worker.quantizer.graph.values import is_constant, is_float32, name_of, node_name, string_attribute
from worker.quantizer.plan.journal import Journal
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.subgraphs import leave_subgraphs
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Draft
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session, is_large
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.reducers import MinMax

NO_FLOAT16_KERNEL = declare("no-float16-kernel", "{op_type} has no float16 kernel")
NO_FLOAT32 = declare("computes-no-float32", "it computes no float32")
NO_HALF_FORM = declare("no-float16-form", "{op_type} has no form that makes float16 of what it reads")
BEYOND_HALF = declare(
    "beyond-float16",
    "what it reads or makes reaches {largest:.3g}, and float16 ends at 65504",
    hint="Scale the tensor down in the model, or leave the node in float32.",
)
CONSTANT_BEYOND_HALF = declare("constant-beyond-float16", "a constant of it lies beyond 65504, where float16 ends")
REFUSED_AS_HALF = declare("refused-as-float16", "onnxruntime does not run it in float16: {words}")

_REDUCING = ("ScatterElements", "ScatterND")
_MOST_REFUSALS = 32


def plan_float16(graph: ir.Graph, config: QuantizationConfig, facts: NodeFacts, journal: Journal) -> QuantizationPlan:
    """Which nodes compute in float16: all that make floats, but for excluded ones and operators without a kernel."""
    selection = Selection(config, Matcher(graph, facts.op_types))
    plan, handed, opset = QuantizationPlan(), handed_on(graph), opset_of_graph(graph)
    for node in graph:
        reason = _no_form(node, opset) or selection.reason(node)
        if reason is None and handed.intersection(node.outputs):
            reason = NO_HALF_FORM(op_type=node.op_type)
        plan.nodes[node_name(node)] = NodePlan(node_name(node), node.op_type, None if reason else Role.HALF, reason)
    leave_subgraphs(graph, plan)
    return plan


def opset_of_graph(graph: ir.Graph) -> int:
    """Of the default domain."""
    return graph.opset_imports.get("", 0)


def _no_form(node: ir.Node, opset: int) -> Reason | None:
    """Why a node cannot compute in float16, by what it is; None if it can."""
    if not any(is_float32(value) for value in (*node.inputs, *node.outputs)):
        return NO_FLOAT32()
    reducing = node.op_type in _REDUCING and string_attribute(node, "reduction", "none") != "none"
    if node.op_type in DEFAULT_OP_BLOCK_LIST or reducing:
        return NO_FLOAT16_KERNEL(op_type=node.op_type)
    if not can_turn(node, opset):
        return NO_HALF_FORM(op_type=node.op_type)
    return CONSTANT_BEYOND_HALF() if beyond_half(node) else None


def fill_float16(draft: Draft, case: Case, services: Services) -> Draft:
    """Take out of the plan what float16 does not hold on the calibration data, and what the runtime does not run.

    Raises:
        EngineError: the runtime fails on the data, whatever is taken out.
        CanceledError: the run was canceled.
    """
    plan, journal = draft.plan.copy(), draft.journal.followed_by()
    with services.stages.stage("statistics"):
        if case.calibration.is_random:
            journal.note("there is no calibration data: whether values leave the range of float16 was not looked at")
        else:
            _leave_out_of_range(draft, plan, case, services)
    with services.stages.stage("parameters"):
        services.run.progress("parameters")
        _leave_refused(draft, plan, case, services)
    return Draft(draft.prepared, plan, journal, draft.statistics)


def _leave_out_of_range(draft: Draft, plan: QuantizationPlan, case: Case, services: Services) -> None:
    """Leave nodes in float32 that read or make values beyond float16's range."""
    halfs = [node for node in draft.graph if plan.nodes[node_name(node)].role is Role.HALF]
    read = {value for node in halfs for value in (*node.inputs, *node.outputs) if value is not None}
    reducers = {name_of(value): MinMax() for value in read if _is_activation(value)}
    requests = [Request(name, reducer) for name, reducer in sorted(reducers.items())]
    if requests:
        case.collect(draft.prepared.model, requests, services)
    largest = {}
    for name, reducer in reducers.items():
        found = reducer.result()
        largest[name] = max(abs(found.minimum), abs(found.maximum))
    for node in halfs:
        reached = max((_reach(value, largest) for value in (*node.inputs, *node.outputs)), default=0.0)
        if reached > LARGEST_HALF:
            entry = plan.nodes[node_name(node)]
            entry.role, entry.reason = None, BEYOND_HALF(largest=reached)


def _is_activation(value: ir.Value) -> bool:
    return is_float32(value) and bool(value.name) and not is_constant(value)


def _reach(value: ir.Value | None, largest: Mapping[str, float]) -> float:
    return 0.0 if value is None else largest.get(value.name or "", 0.0)


def _leave_refused(draft: Draft, plan: QuantizationPlan, case: Case, services: Services) -> None:
    """Run the model on one sample; leave what the runtime refuses in float32, one node after the other."""
    size = choose_batch_size(case.inputs, case.calibration, 1)
    batch = next(iter(case.calibration.batches(case.inputs, size, limit=1)), None)
    for _ in range(_MOST_REFUSALS):
        services.run.check()
        model = emit_float16(copy_of(draft.prepared.model), plan).model
        try:
            session = Session(model, threads=services.threads, what="quantized model", optimized=not is_large(model))
            if batch is not None:
                session.run(batch.feeds)
        except (EngineError, UnsupportedModelError) as error:
            name = _culprit(error, plan)
            if name is None:
                raise
            words = error.detail.split(": ", 1)[-1]
            plan.nodes[name].role, plan.nodes[name].reason = None, REFUSED_AS_HALF(words=words)
        else:
            return


def _culprit(error: EngineError | UnsupportedModelError, plan: QuantizationPlan) -> str | None:
    """The node in float16 that the runtime names: by itself, or in its words."""
    halfs = [name for name, entry in plan.nodes.items() if entry.role is Role.HALF]
    named = error.where.get("node")
    if named in halfs:
        return str(named)
    found = [name for name in halfs if f"({name})" in error.detail or f"'{name}'" in error.detail]
    return max(found, key=len) if found else None


def emit_float16(model: ir.Model, plan: QuantizationPlan) -> Emitted:
    """The model in float16; inputs and outputs keep their types."""
    halfs = {name for name, entry in plan.nodes.items() if entry.role is Role.HALF}
    to_halfs(model, halfs, opset_of_graph(model.graph))
    model.producer_name, model.producer_version = PRODUCER, None
    return Emitted(model)
