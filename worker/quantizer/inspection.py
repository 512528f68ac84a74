"""What a target would run on integers, told before anything is quantized and without data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from service.contracts.base import VERSION
from service.contracts.config import QuantizationConfig
from service.contracts.graph_view import Inspection, NodeInspection
from service.contracts.preparation import fixed_inputs
from worker.quantizer.graph.values import node_name
from worker.quantizer.intake.inspect import open_model
from worker.quantizer.modes.planning import plan_model, prepare_model
from worker.quantizer.plan.candidates import ACTIVATIONS_IN_FLOAT
from worker.quantizer.plan.types import PlanLog, QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared

_QUANTIZED = {
    "static": "run quantized",
    "dynamic": "run quantized",
    "weights_only": "get quantized weights",
    "float16": "run in float16",
}


def inspect_file(path: Path, config: QuantizationConfig, *, threads: int) -> Inspection:
    """Say for every node of a model what ``config`` would make of it on its target.

    Args:
        path: the .onnx file; external data lies in its folder.
        config: resolved recipe; everything in it that needs data is passed over.
        threads: threads that the runtime may use.

    Raises:
        ModelError: the model cannot be used, or is quantized already.
        InvalidConfigError: the config names nodes, inputs or shapes that the model does not have.
    """
    uploaded = open_model(path)
    uploaded.judge(threads=threads)
    fixed_inputs(uploaded.summary.inputs, config.preparation)
    nodes, plan_log = inspect_nodes(uploaded.model, config)
    quantized = sum(node.quantized for node in nodes)
    stored = sum(node.activation_reason is not None for node in nodes)
    within = sum(node.activation_reason_code == ACTIVATIONS_IN_FLOAT.code for node in nodes)
    return Inspection(
        target=config.target,
        mode=config.mode,
        model_sha256=uploaded.summary.sha256,
        engine_version=VERSION,
        summary=f"{quantized - stored} of {len(nodes)} nodes {_QUANTIZED[config.mode]} on {config.target}"
        + (f", and {within} inside sub-graphs get quantized weights" if within else "")
        + (f", and {stored - within} recurrent layers get quantized weights." if stored > within else "."),
        node_count=len(nodes),
        quantized_count=quantized,
        nodes=nodes,
        notes=tuple(plan_log.notes),
    )


def inspect_nodes(model: ir.Model, config: QuantizationConfig) -> tuple[tuple[NodeInspection, ...], PlanLog]:
    """The nodes of the prepared model by the planner of the config's mode, and what there is to tell of its plan.

    Args:
        model: float model, changed or replaced.
        config: resolved recipe.

    Raises:
        AlreadyQuantizedError: the model holds quantized operators.
        InvalidConfigError: a selector names a node or an operator that is not there.
        UnsupportedModelError: the model cannot be prepared.
    """
    prepared, notes = prepare_model(model, config)
    planned = plan_model(prepared, config)
    replaced = {decision.where: f"{decision.what}: {decision.why}" for decision in planned.edits}
    return tuple(_nodes(prepared, planned.plan, replaced)), planned.plan_log.followed_by(*notes)


def _nodes(prepared: Prepared, plan: QuantizationPlan, replaced: dict[str, str]) -> Iterator[NodeInspection]:
    for node in prepared.graph.all_nodes():
        entry = plan.nodes[node_name(node)]
        reason, inner = entry.reason, entry.activation_reason
        yield NodeInspection(
            name=entry.name,
            op=prepared.op_types.get(entry.name, entry.op_type),
            quantized=entry.quantized,
            reason=reason.words if reason else replaced.get(entry.name),
            reason_code=reason.code if reason else None,
            activation_reason=inner.words if inner else None,
            activation_reason_code=inner.code if inner else None,
            hint=reason.hint if reason else None,
            by_design=reason is not None and reason.by_design,
        )
