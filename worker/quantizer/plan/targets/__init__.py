"""The targets by name, and when their rules run: ``edit_graph`` before planning, ``move_grids`` after filling."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from worker.quantizer.plan.rules.grids import half_scales
from worker.quantizer.plan.selection import Matcher, Selection
from worker.quantizer.plan.targets.amd_npu import AMD_NPU_CNN, AMD_NPU_TRANSFORMER
from worker.quantizer.plan.targets.runtimes import ONNXRUNTIME_CPU, ONNXRUNTIME_GPU, OPENVINO, QNN, TENSORRT
from worker.quantizer.plan.types import Decision, PlanLog, QuantizationPlan, Rule, RuleContext, Stage, Target
from worker.quantizer.preparation.prepare import Prepared

TARGETS = {
    target.name: target
    for target in (ONNXRUNTIME_CPU, ONNXRUNTIME_GPU, TENSORRT, QNN, OPENVINO, AMD_NPU_CNN, AMD_NPU_TRANSFORMER)
}


def edits_graph(config: QuantizationConfig) -> bool:
    """True if ``edit_graph`` may change a graph."""
    return config.mode == "static" and bool(TARGETS[config.target].rules_of(Stage.GRAPH))


def edit_graph(prepared: Prepared, config: QuantizationConfig) -> list[Decision]:
    """Replace operators of a prepared model by those that the target computes; changed in place.

    What is replaced may compute something else than before: every replacement is returned, for the report. Nodes that
    the config excludes stay as they are, and so does the graph unless ``mode`` is static.

    Its facts say then what was put in.
    """
    if not edits_graph(config):
        return []
    selection = Selection(config, Matcher(prepared.graph, prepared.op_types))
    context = RuleContext(prepared.graph, QuantizationPlan(), config, PlanLog(), selection)
    made = TARGETS[config.target].run(Stage.GRAPH, context)
    prepared.facts = prepared.facts.with_simulated(context.simulated).with_stand_ins(context.stand_ins)
    return made


def move_grids(
    graph: ir.Graph, plan: QuantizationPlan, config: QuantizationConfig, plan_log: PlanLog
) -> list[Decision]:
    """Move the grids of a filled plan to where the target can work with them; changed in place.

    Weights and biases are quantized anew where their grid moves. Run again after a step that changed grids or biases,
    it moves only what that step has broken.
    """
    context = RuleContext(graph, plan, config, plan_log)
    made = TARGETS[config.target].run(Stage.GRIDS, context)
    if config.has_float16:
        scaled = half_scales(context)
        plan_log.decide(scaled)
        made = [*made, *scaled]
    return made


__all__ = ["TARGETS", "Rule", "RuleContext", "Stage", "Target", "edit_graph", "edits_graph", "move_grids"]
