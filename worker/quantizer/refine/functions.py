"""Ranges of tensors that an activation function alone reads: by what the function makes of them.

A SiLU hands on next to nothing of what lies below -6, and its operand may go down to -30: a grid over all of that keeps
half of its steps for what becomes 0. So the range is the one with the least square error behind the function, and the
result's range is what the function makes of that. What this cuts off may be what the layers behind live on: all such
ranges together have to bring the outputs closer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.specs import NonOverflowCalibration, is_integer
from worker.quantizer.graph.rewriting import other_operand
from worker.quantizer.graph.values import DEFAULT_DOMAINS, float_attribute, name_of, users
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.statistics.grids import Function, GridFamily, SquaredError, mse_range
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.sampling import SampledValues, WeightedValues

# Values that the errors are measured on.
_VALUES = 1 << 14
# The range is taken if its error is smaller by this part: less is noise of the sample.
_WORTH = 0.1


def _sigmoid(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = 0.5 + 0.5 * np.tanh(0.5 * x)
    return found


def _hard_sigmoid(node: ir.Node) -> Function:
    alpha, beta = float_attribute(node, "alpha", 0.2), float_attribute(node, "beta", 0.5)
    return lambda x: np.clip(alpha * x + beta, 0.0, 1.0)


def _leaky(node: ir.Node) -> Function:
    alpha = float_attribute(node, "alpha", 0.01)
    return lambda x: np.where(x < 0.0, alpha * x, x)


def _elu(node: ir.Node) -> Function:
    alpha = float_attribute(node, "alpha", 1.0)
    return lambda x: np.where(x < 0.0, alpha * np.expm1(np.minimum(x, 0.0)), x)


def _swish(node: ir.Node) -> Function:
    alpha = float_attribute(node, "alpha", 1.0)
    return lambda x: x * _sigmoid(alpha * x)


_FUNCTIONS: Mapping[str, Callable[[ir.Node], Function]] = {
    "Elu": _elu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda node: lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "LeakyRelu": _leaky,
    "Sigmoid": lambda node: _sigmoid,
    "Softplus": lambda node: lambda x: np.logaddexp(0.0, x),
    "Swish": _swish,
    "Tanh": lambda node: np.tanh,
}


@dataclass(frozen=True)
class Behind:
    """What alone reads a tensor."""

    function: Function
    result: str  # name of what it makes


def functions_behind(graph: ir.Graph, plan: QuantizationPlan) -> dict[str, Behind]:
    """The function of each quantized tensor that nothing else reads, by the tensor's name."""
    shared: dict[str, int] = {}
    for planned in plan.activations.values():
        shared[planned.source] = shared.get(planned.source, 0) + 1
    found = {}
    for node in graph:
        value = node.inputs[0] if node.op_type in _FUNCTIONS and node.domain in DEFAULT_DOMAINS else None
        entry = plan.activations.get(value.name or "") if value is not None else None
        if value is None or entry is None or entry.source != value.name or shared[entry.source] > 1:
            continue
        if not is_integer(entry.spec.dtype) or value.is_graph_output():
            continue
        if isinstance(entry.spec.calibration, NonOverflowCalibration):
            continue  # nothing is to be cut off
        function = _function_of(node, value)
        if function is not None:
            found[name_of(value)] = function
    return found


def _function_of(node: ir.Node, value: ir.Value) -> Behind | None:
    """f, or x f(x) where a Mul reads both; None if anything else reads x."""
    others = [reader for reader in users(value) if reader is not node]
    function = _FUNCTIONS[node.op_type](node)
    if not others:
        return Behind(function, name_of(node.outputs[0]))
    result = node.outputs[0]
    products = [reader for reader in users(result) if reader.op_type == "Mul"]
    if len(others) == 1 and products == others == users(result) and other_operand(others[0], result) is value:
        return Behind(lambda x: x * function(x), name_of(others[0].outputs[0]))
    return None


def watch_functions(
    functions: Mapping[str, Behind], needed: Mapping[str, object], samples: int
) -> dict[str, SampledValues]:
    """Observers of the tensors whose ranges are to be found."""
    return {name: SampledValues(_VALUES, samples) for name in functions if name in needed}


def settle_functions(
    ranges: Mapping[str, Range],
    plan: QuantizationPlan,
    functions: Mapping[str, Behind],
    seen: Mapping[str, SampledValues],
) -> dict[str, Range]:
    """Ranges that leave less of an error behind the function than those of the tensors' methods, and of its results.

    ``ranges`` are finite; ``seen`` has the observers of ``watch_functions``.
    """
    better: dict[str, Range] = {}
    results: dict[str, Range] = {}
    for name, observer in seen.items():
        family, behind = GridFamily.of(plan.activations[name].spec), functions[name]
        found = _least(observer.result(), family, behind.function, ranges[name])
        if found is None:
            continue
        better[name] = found
        made = plan.activations.get(behind.result)
        if made is not None and made.source == behind.result and behind.result in ranges:
            results[behind.result] = _within(ranges[behind.result], behind.function(_levels(found, family)))
    return {**results, **better}


def _levels(found: Range, family: GridFamily) -> np.ndarray:
    """What a grid of integers of that range holds."""
    scale, zero = family.parameters(np.asarray(found.minimum), np.asarray(found.maximum))
    low, high = family.limits
    return np.asarray((np.arange(low, high + 1) - zero) * scale)


def _within(found: Range, values: np.ndarray) -> Range:
    return Range(max(found.minimum, float(values.min())), min(found.maximum, float(values.max())))


def _least(data: WeightedValues, family: GridFamily, function: Function, before: Range) -> Range | None:
    if not data.usable or not np.isfinite([before.minimum, before.maximum]).all():
        return None
    errors = SquaredError(family, data, function)
    found = mse_range(data, family, function)
    known, made = errors(*(np.array([one, other]) for one, other in _ends(before, found)))
    return found if made < (1.0 - _WORTH) * known else None


def _ends(one: Range, other: Range) -> tuple[tuple[float, float], tuple[float, float]]:
    return (one.minimum, other.minimum), (one.maximum, other.maximum)
