"""The recipes by mode: how each makes its plan, fills it with numbers, and writes it down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from service.contracts.config import Mode, QuantizationConfig
from service.contracts.dtypes import BLOCK_DTYPES, FLOAT_DTYPES
from worker.quantizer.context import Context
from worker.quantizer.emit import emit
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.numerics.emission import required_opset
from worker.quantizer.plan.build import build_plan
from worker.quantizer.plan.parameters import fill_parameters
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.recipes.dynamic import emit_dynamic, plan_dynamic
from worker.quantizer.recipes.halfs import emit_float16, plan_float16
from worker.quantizer.recipes.parameters_only import plan_weights
from worker.quantizer.recipes.static import fill_static
from worker.quantizer.refine.draft import Draft, Filled

Planner = Callable[[ir.Graph, QuantizationConfig, Mapping[str, str]], QuantizationPlan]

_PLAIN_OPSET = 17
# 4- and 16-bit integers and scales per block are standard from opset 21 on.
_WIDE_OPSET = 21
_PLAIN_DTYPES = ("int8", "uint8", "int32", "float32")


@dataclass(frozen=True)
class Recipe:
    """One mode of quantization.

    Attributes:
        plan: (prepared graph, config, operators as uploaded) -> plan without numbers.
        fill: puts the numbers in, in place, and tells what algorithms made of it.
        emit: writes the plan into a copy of the prepared model.
    """

    plan: Planner
    fill: Callable[[Prepared, QuantizationPlan, Context], Filled]
    emit: Callable[[ir.Model, QuantizationPlan], ir.Model]


def _plan_weights_only(graph: ir.Graph, config: QuantizationConfig, op_types: Mapping[str, str]) -> QuantizationPlan:
    return plan_weights(graph, config, op_types, why_not="mode weights_only concerns the weights of linear nodes")


def _fill_weights(prepared: Prepared, plan: QuantizationPlan, context: Context) -> Filled:
    with context.stages.stage("parameters"):
        context.run.progress("parameters")
        fill_parameters(prepared.graph, plan, threads=context.threads)
    return Filled([Draft(prepared, plan)])


def _fill_nothing(prepared: Prepared, plan: QuantizationPlan, context: Context) -> Filled:
    """A conversion has no numbers to find."""
    return Filled([Draft(prepared, plan)])


RECIPES: dict[Mode, Recipe] = {
    "static": Recipe(build_plan, fill_static, emit),
    "weights_only": Recipe(_plan_weights_only, _fill_weights, emit),
    "dynamic": Recipe(plan_dynamic, _fill_weights, emit_dynamic),
    "float16": Recipe(plan_float16, _fill_nothing, emit_float16),
}


def wanted_opset(config: QuantizationConfig) -> int:
    """The opset from which on every type of the config has standard operators."""
    activations = [config.activation, *(o.activation for o in config.overrides if o.activation)]
    activations += [o.input_activation for o in config.overrides if o.input_activation]
    weights = [config.weight, *(o.weight for o in config.overrides if o.weight)]
    biases = [config.bias, *(o.bias for o in config.overrides if o.bias)]
    dtypes: set[str] = {spec.dtype for spec in activations}
    dtypes |= {spec.dtype for spec in weights} | {spec.dtype for spec in biases}
    blocks = any(weight.granularity == "per_block" for weight in weights)
    return max(_PLAIN_OPSET, *(_opset_of(dtype) for dtype in dtypes), _WIDE_OPSET if blocks else 0)


def _opset_of(dtype: str) -> int:
    if dtype in (*FLOAT_DTYPES, *BLOCK_DTYPES):
        return required_opset(dtype)
    return _PLAIN_OPSET if dtype in _PLAIN_DTYPES else _WIDE_OPSET
