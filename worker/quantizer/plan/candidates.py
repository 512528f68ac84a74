"""Whether a node can run on integers at all: by its operator, its tensors, and the user's word."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.facts import NodeFacts
from worker.quantizer.graph.rewriting import scalar
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    is_constant,
    is_float32,
    node_name,
    string_attribute,
)
from worker.quantizer.ops.linear import MATRIX_PRODUCTS
from worker.quantizer.ops.windows import counts_beyond, has_gaps
from worker.quantizer.plan.profile import SHAPES, Target
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.types import Role
from worker.quantizer.plan.weights import OPERANDS_NOT_FLOAT32, TRAINING_FAULT, is_finite, unusable_weight

FOREIGN_DOMAIN = declare(
    "foreign-domain",
    "operators of domain {domain} stay in float",
    hint="Export the model with standard ONNX operators.",
)
OUTPUT_UNKNOWN = declare(
    "output-type-unknown",
    "the type of its output is unknown",
    hint="Run shape inference on the model, or export it with static shapes.",
)
OUTPUT_DOUBLE = declare("output-double", "its output is double", hint="Export the model in float32.")
OUTPUT_INTEGER = declare(
    "output-integer",
    "its output is {dtype}",
    hint=SHAPES,
    by_design=True,
)
OUTPUT_NOT_FLOAT32 = declare("output-not-float32", "its output is {dtype}")
INPUT_CONSTANT = declare("input-constant", "its input is constant")
CONSTANT_OPERAND = declare(
    "constant-operand",
    "one operand is a constant: no integer kernel is faster than float here",
    hint="Fold the constant into the layer before or after the node.",
)
CONSTANT_NOT_FINITE = declare(
    "constant-not-finite",
    "a constant operand is empty or holds NaN or Inf",
    hint=TRAINING_FAULT,
)
DATA_NOT_FLOAT32 = declare("data-not-float32", "it does not move float32 data")
LIMITS_NOT_CONSTANT = declare(
    "limits-not-constant", "its limits are not constant", hint="Give the node constant limits."
)
SLOPE_UNUSABLE = declare(
    "slope-unusable",
    "its slope is not constant, or holds NaN or Inf",
    hint=TRAINING_FAULT,
)
POOL_DILATED = declare(
    "pool-dilated",
    "no integer kernel averages a window with gaps",
    hint="Average without dilations.",
)
POOL_COUNTS_BEYOND = declare(
    "pool-counts-beyond",
    "integer kernels count otherwise where windows that count pads reach beyond them",
    hint="Average without ceil_mode, or without count_include_pad.",
)
PADS_NONZERO = declare(
    "pads-nonzero",
    "it pads with a value other than 0",
    hint="Pad with 0, or let the next convolution pad.",
)
CUBIC_RESIZE = declare(
    "cubic-resize",
    "cubic interpolation leaves the range of its input",
    hint="Resize with mode linear or nearest.",
)


def candidate(
    node: ir.Node, target: Target, selection: Selection, facts: NodeFacts
) -> tuple[Role | None, Reason | None]:
    """The role that the node could have, or None and the reason."""
    if node.domain not in DEFAULT_DOMAINS:
        return None, FOREIGN_DOMAIN(domain=node.domain)
    if node_name(node) in facts.kept_float:
        return None, facts.kept_float[node_name(node)]
    role = target.roles.get(node.op_type)
    if role is None:
        return None, target.reason(node.op_type)
    excluded = selection.reason(node)
    if excluded is not None:
        return None, excluded
    if not is_float32(node.outputs[0]):
        return None, _not_float32(node.outputs[0].dtype)
    if role is not Role.ARITHMETIC and (node.inputs[0] is None or is_constant(node.inputs[0])):
        return None, INPUT_CONSTANT()
    reason = _reason(node, role, whole=target.whole) or target.refuses(node)
    return (None, reason) if reason else (role, None)


def may_return_float(node: ir.Node) -> bool:
    """True for linear nodes that return float where only float nodes read them: what makes scores.

    MatMul, Gemm, and a Conv over a single position, as classifiers end with.
    """
    shape = node.outputs[0].shape
    single_position = shape is not None and len(shape) > 2 and all(dim == 1 for dim in list(shape)[2:])
    return node.op_type in MATRIX_PRODUCTS or (node.op_type == "Conv" and single_position)


def _not_float32(dtype: ir.DataType | None) -> Reason:
    if dtype is None:
        return OUTPUT_UNKNOWN()
    if dtype is ir.DataType.DOUBLE:
        return OUTPUT_DOUBLE()
    word = dtype.name.lower()
    return (OUTPUT_INTEGER if dtype.is_integer() and dtype.is_signed() else OUTPUT_NOT_FLOAT32)(dtype=word)


def _reason(node: ir.Node, role: Role, *, whole: bool) -> Reason | None:
    if role is Role.LINEAR:
        return _linear_reason(node)
    if role is Role.ARITHMETIC:
        return _arithmetic_reason(node, whole=whole)
    # Targets differ in which of these share the grid of their input; what each can do does not.
    return _unary_reason(node) or _mover_reason(node)


def _linear_reason(node: ir.Node) -> Reason | None:
    weight = node.inputs[1]
    if not is_float32(node.inputs[0]):
        return OPERANDS_NOT_FLOAT32()
    if node.op_type == "MatMul" and is_float32(weight) and not is_constant(weight):
        return None
    return unusable_weight(weight)


def _arithmetic_reason(node: ir.Node, *, whole: bool) -> Reason | None:
    constants = [value for value in node.inputs if is_constant(value)]
    if constants and not whole:
        return CONSTANT_OPERAND()
    if len(constants) == len(node.inputs):
        return INPUT_CONSTANT()
    if not all(is_float32(value) for value in node.inputs):
        return OPERANDS_NOT_FLOAT32()
    return None if all(map(is_finite, constants)) else CONSTANT_NOT_FINITE()


def _unary_reason(node: ir.Node) -> Reason | None:
    if not is_float32(node.inputs[0]):
        return DATA_NOT_FLOAT32()
    if node.op_type == "Clip" and any(value is not None and not is_constant(value) for value in node.inputs[1:]):
        return LIMITS_NOT_CONSTANT()
    if node.op_type == "PRelu" and not is_finite(node.inputs[1]):
        return SLOPE_UNUSABLE()
    return None


def _mover_reason(node: ir.Node) -> Reason | None:
    if node.op_type == "AveragePool" and has_gaps(node):
        return POOL_DILATED()
    if node.op_type == "AveragePool" and counts_beyond(node):
        return POOL_COUNTS_BEYOND()
    filling = node.inputs[2] if node.op_type == "Pad" and len(node.inputs) > 2 else None
    if filling is not None and string_attribute(node, "mode", "constant") == "constant" and scalar(filling) != 0.0:
        return PADS_NONZERO()
    if node.op_type == "Resize" and string_attribute(node, "mode", "nearest") == "cubic":
        return CUBIC_RESIZE()
    return None
