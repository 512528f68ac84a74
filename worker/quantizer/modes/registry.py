"""The modes: how each makes its plan, fills it and writes it down; the algorithms by their names; QOperator format."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from service.contracts.algorithms import Algorithm
from service.contracts.config import Mode, QuantizationConfig
from service.contracts.costs import held_back_samples
from service.contracts.reason import declare
from service.contracts.specs import NUMBER_TYPES, WeightSpec, is_integer
from worker.quantizer.emit import BLOCKS_OPSET, emit
from worker.quantizer.equalization.bias_correction import BiasCorrectionStep
from worker.quantizer.equalization.cross_layer import CrossLayerEqualizationStep
from worker.quantizer.equalization.outlier_channels import OutlierChannelsStep
from worker.quantizer.equalization.smooth_quant import SmoothQuantStep
from worker.quantizer.finetune.step import FinetuneStep
from worker.quantizer.graph.serialized import serialized
from worker.quantizer.modes.dynamic import AT_RUN_TIME, emit_dynamic, plan_dynamic, plan_weights
from worker.quantizer.modes.float16 import emit_float16, fill_float16, plan_float16, with_float16
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.preparation.prepare import LOWEST_OPSET
from worker.quantizer.refine.draft import STATIC, Case, Draft, Filled, Form
from worker.quantizer.refine.driver import refine
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Step, TimeLimit, Toolkit, calibrate
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import refusals, session_options
from worker.quantizer.search.autopilot import AutopilotStep
from worker.quantizer.search.mixed_precision import MixedPrecisionStep
from worker.quantizer.search.selective import SelectivePrecisionStep
from worker.quantizer.search.sensitivity import SensitivityStep
from worker.quantizer.training import TrainingStep

# The algorithms by their names in a config.

# Each takes the config's entry of its method.
STEPS: dict[str, Callable[[Any], Step[Any]]] = {
    "adaquant": FinetuneStep,
    "adaround": FinetuneStep,
    "bias_correction": BiasCorrectionStep,
    "cross_layer_equalization": CrossLayerEqualizationStep,
    "smooth_quant": SmoothQuantStep,
    "awq": SmoothQuantStep,
    "outlier_channels": OutlierChannelsStep,
    "qat": TrainingStep,
    "sensitivity": SensitivityStep,
    "mixed_precision": MixedPrecisionStep,
    "selective_precision": SelectivePrecisionStep,
    "autopilot": AutopilotStep,
}


def step_of(algorithm: Algorithm) -> Step[Any]:
    """The step that an entry of ``algorithms`` asks for."""
    return STEPS[algorithm.method](algorithm)


NOT_LINEAR = declare("not-linear", "mode weights_only concerns the weights of linear and recurrent nodes")
_PLAIN_OPSET = 17
# QuantizeLinear and DequantizeLinear know float16 from here on.
_HALF_PAIRS_OPSET = 19


@dataclass(frozen=True)
class ModeRules:
    """One mode of quantization."""

    form: Form  # plans and writes
    # puts the numbers into a planned draft and tells what algorithms made of it
    fill: Callable[[Draft, Case, Services], Filled]


def _fill_with_data(draft: Draft, case: Case, services: Services) -> Filled:
    """Calibrate the plan and run the config's algorithms on it."""
    config = case.config
    steps = [step_of(algorithm) for algorithm in config.algorithms]
    calibrated = calibrate(draft, case, services, steps, supplied=config.tensor_ranges)
    judged = any(algorithm.holds_samples_back for algorithm in config.algorithms)
    samples = held_back_samples(case.calibration_samples)
    time_limit = TimeLimit.of(config.max_seconds)
    toolkit = Toolkit(case, services, samples if judged else (), step_of, time_limit=time_limit)
    drafts, outcomes = refine(calibrated, steps, toolkit, Judge(case, services, samples))
    filled = Filled(drafts, outcomes)
    return with_float16(filled, case, services) if config.has_float16 else filled


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
    "weights_only": ModeRules(Form(partial(plan_weights, why_not=NOT_LINEAR()), emit), _fill_weights),
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


# QOperator format: Q/DQ pairs and the operators between them become QLinear operators.
#
# onnxruntime fuses them itself whenever it loads a Q/DQ model; here it does so once and writes down the outcome. So the
# operators, those of its own domain com.microsoft among them, are the very ones that it would run.


def to_qoperator(model: bytes, *, threads: int, metadata: Mapping[str, str] | None = None) -> tuple[bytes, int]:
    """The model with QLinear operators, and how many operators between Q/DQ pairs could not be replaced.

    Args:
        model: serialized model with Q/DQ pairs, 8 bits.
        threads: of the session that converts.
        metadata: what the model has to say of itself; onnxruntime does not hand it on.

    Raises:
        UnsupportedModelError: onnxruntime refuses the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "qoperator.onnx"
        options = session_options(threads, optimized=True)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        # int8 activations as they are; by default x86 leaves nodes that have them in float.
        options.add_session_config_entry("session.qdqisint8allowed", "1")
        with refusals("quantized model"):
            ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        proto = onnx.load(path)
    used = {node.domain for node in proto.graph.node}
    for entry in [entry for entry in proto.opset_import if entry.domain not in used]:
        proto.opset_import.remove(entry)
    onnx.helper.set_model_props(
        proto, {entry.key: entry.value for entry in proto.metadata_props} | dict(metadata or {})
    )
    left = sum(node.op_type == "QuantizeLinear" for node in proto.graph.node)
    return serialized(proto), left
