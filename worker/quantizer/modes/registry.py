"""The modes: how each makes its plan, fills it with numbers, and writes it down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from service.contracts.config import Mode, QuantizationConfig
from service.contracts.costs import held_back_samples
from service.contracts.reason import declare
from service.contracts.specs import NUMBER_TYPES, WeightSpec, is_integer
from worker.quantizer.emit import BLOCKS_OPSET, emit
from worker.quantizer.graph.facts import NodeFacts
from worker.quantizer.modes.dynamic import AT_RUN_TIME, emit_dynamic, plan_dynamic
from worker.quantizer.modes.float16 import emit_float16, fill_float16, plan_float16, with_float16
from worker.quantizer.modes.parameters_only import plan_weights
from worker.quantizer.modes.steps import step_of
from worker.quantizer.plan.log import PlanLog
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.prepare import LOWEST_OPSET
from worker.quantizer.refine.calibration import calibrate
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import STATIC, Draft, Filled, Form
from worker.quantizer.refine.driver import refine
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Toolkit
from worker.quantizer.run.services import Services

NOT_LINEAR = declare("not-linear", "mode weights_only concerns the weights of linear and recurrent nodes")

_PLAIN_OPSET = 17
# QuantizeLinear and DequantizeLinear know float16 from here on.
_HALF_PAIRS_OPSET = 19


@dataclass(frozen=True)
class ModeRules:
    """One mode of quantization.

    Attributes:
        form: plans and writes.
        fill: puts the numbers into a planned draft and tells what algorithms made of it.
    """

    form: Form
    fill: Callable[[Draft, Case, Services], Filled]


def _fill_with_data(draft: Draft, case: Case, services: Services) -> Filled:
    """Calibrate the plan and run the config's algorithms on it."""
    config = case.config
    steps = [step_of(algorithm) for algorithm in config.algorithms]
    calibrated = calibrate(draft, case, services, steps, supplied=config.tensor_ranges)
    judged = any(algorithm.is_judged for algorithm in config.algorithms)
    samples = held_back_samples(case.calibration_samples)
    toolkit = Toolkit(case, services, samples if judged else 0, step_of)
    drafts, outcomes = refine(calibrated, steps, toolkit, Judge(case, services, samples))
    filled = Filled(drafts, outcomes)
    return with_float16(filled, case, services) if config.has_float16 else filled


def _plan_weights_only(
    graph: ir.Graph, config: QuantizationConfig, facts: NodeFacts, plan_log: PlanLog
) -> QuantizationPlan:
    return plan_weights(graph, config, facts, plan_log, why_not=NOT_LINEAR())


def _fill_weights(draft: Draft, case: Case, services: Services) -> Filled:
    """Quantize the weights; with algorithms that choose their integers on data."""
    if case.config.algorithms:
        return _fill_with_data(draft, case, services)
    with services.stages.stage("parameters"):
        services.run.progress("parameters")
        draft.plan_log.note(*Parameters(draft.graph, draft.plan).fill(threads=services.threads))
    return Filled([draft])


def _fill_float16(draft: Draft, case: Case, services: Services) -> Filled:
    """A conversion has no grids to find, but nodes to leave out."""
    return Filled([fill_float16(draft, case, services)])


MODES: dict[Mode, ModeRules] = {
    "static": ModeRules(STATIC, _fill_with_data),
    "weights_only": ModeRules(Form(_plan_weights_only, emit), _fill_weights),
    "dynamic": ModeRules(Form(plan_dynamic, emit_dynamic, AT_RUN_TIME), _fill_weights),
    "float16": ModeRules(Form(plan_float16, emit_float16), _fill_float16),
}


def wanted_opset(config: QuantizationConfig) -> int:
    """The opset from which on every type of the config has standard operators."""
    opsets = (NUMBER_TYPES[dtype].opset for dtype in _dtypes(config))
    float16_nodes = _HALF_PAIRS_OPSET if config.has_float16 else 0
    return max(_PLAIN_OPSET, *opsets, BLOCKS_OPSET if _has_blocks(config) else 0, float16_nodes)


def lowest_opset(config: QuantizationConfig) -> int:
    """The opset that a model must have: for integers, onnxruntime's own Q/DQ operators stand in for newer ones."""
    opsets = (NUMBER_TYPES[dtype].opset for dtype in _dtypes(config) if not is_integer(dtype))
    return max(LOWEST_OPSET, *opsets, BLOCKS_OPSET if _has_blocks(config) else 0)


def _dtypes(config: QuantizationConfig) -> set[str]:
    activations = [config.activation, *(o.activation for o in config.overrides if o.activation)]
    activations += [o.input_activation for o in config.overrides if o.input_activation]
    weights = _weights(config)
    biases = [config.bias, *(o.bias for o in config.overrides if o.bias)]
    dtypes: set[str] = {spec.dtype for spec in activations}
    return dtypes | {spec.dtype for spec in weights} | {spec.dtype for spec in biases}


def _has_blocks(config: QuantizationConfig) -> bool:
    return any(weight.granularity == "per_block" for weight in _weights(config))


def _weights(config: QuantizationConfig) -> list[WeightSpec]:
    tables = [] if config.embedding is None else [config.embedding]
    return [config.weight, *tables, *(o.weight for o in config.overrides if o.weight)]
