"""Whether a node can run on integers at all: by its operator, its tensors, and the user's word."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import DEFAULT_DOMAINS, constant, is_constant, is_float32, string_attribute
from worker.quantizer.plan.profile import Target
from worker.quantizer.plan.rules.dpu import is_dpu_hard_sigmoid
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.types import Role

# Marks a node that an algorithm has put in and that is to compute in float; the value is the reason.
STAYS_FLOAT = "quantmill.stays_float"


def candidate(node: ir.Node, target: Target, selection: Selection) -> tuple[Role | None, str | None]:
    """The role that the node could have, or None and the reason."""
    if node.domain not in DEFAULT_DOMAINS:
        return None, f"operators of domain {node.domain} stay in float"
    if STAYS_FLOAT in node.meta:
        return None, str(node.meta[STAYS_FLOAT])
    role = target.roles.get(node.op_type)
    if role is None:
        return None, target.reason(node.op_type)
    excluded = selection.reason(node)
    if excluded is not None:
        return None, excluded
    if not is_float32(node.outputs[0]):
        dtype = node.outputs[0].dtype
        return None, f"its output is {dtype.name.lower()}" if dtype else "the type of its output is unknown"
    if role is not Role.ARITHMETIC and (node.inputs[0] is None or is_constant(node.inputs[0])):
        return None, "its input is constant"
    reason = _reason(node, role, whole=target.whole)
    return (None, reason) if reason else (role, None)


def may_return_float(node: ir.Node) -> bool:
    """True for linear nodes that return float where only float nodes read them: what makes scores.

    MatMul, Gemm, and a Conv over a single position, as classifiers end with.
    """
    shape = node.outputs[0].shape
    single_position = shape is not None and len(shape) > 2 and all(dim == 1 for dim in list(shape)[2:])
    return node.op_type in ("MatMul", "Gemm") or (node.op_type == "Conv" and single_position)


def _reason(node: ir.Node, role: Role, *, whole: bool) -> str | None:
    if role is Role.LINEAR:
        return _linear_reason(node)
    if role is Role.ARITHMETIC:
        return _arithmetic_reason(node, whole=whole)
    # Targets differ in which of these share the grid of their input; what each can do does not.
    return _unary_reason(node) or _mover_reason(node)


def _linear_reason(node: ir.Node) -> str | None:
    weight = node.inputs[1]
    if not is_float32(node.inputs[0]) or not is_float32(weight):
        return "its operands are not float32"
    if not is_constant(weight):
        return None if node.op_type == "MatMul" else "its weight is not constant"
    return None if _is_finite(weight) else "its weight is empty or holds NaN or Inf"


def _is_finite(value: ir.Value | None) -> bool:
    array = constant(value)
    return array is not None and array.size > 0 and bool(np.isfinite(array).all())


def _arithmetic_reason(node: ir.Node, *, whole: bool) -> str | None:
    constants = [value for value in node.inputs if is_constant(value)]
    if constants and not whole:
        return "one operand is a constant: no integer kernel is faster than float here"
    if len(constants) == len(node.inputs):
        return "its input is constant"
    if not all(is_float32(value) for value in node.inputs):
        return "its operands are not float32"
    return None if all(map(_is_finite, constants)) else "a constant operand is empty or holds NaN or Inf"


def _unary_reason(node: ir.Node) -> str | None:
    if not is_float32(node.inputs[0]):
        return "it does not move float32 data"
    if node.op_type == "Clip" and any(value is not None and not is_constant(value) for value in node.inputs[1:]):
        return "its limits are not constant"
    if node.op_type == "PRelu" and not _is_finite(node.inputs[1]):
        return "its slope is not constant, or holds NaN or Inf"
    if node.op_type == "HardSigmoid" and not is_dpu_hard_sigmoid(node):
        return "only HardSigmoid with alpha 1/6 and beta 1/2 has an integer kernel"
    return None


def _mover_reason(node: ir.Node) -> str | None:
    if node.op_type == "Pad":
        if (
            string_attribute(node, "mode", "constant") == "constant"
            and len(node.inputs) > 2
            and node.inputs[2] is not None
        ):
            value = constant(node.inputs[2])
            if value is None or float(value.reshape(-1)[0]) != 0.0:
                return "it pads with a value other than 0"
        return None
    if node.op_type == "Resize" and string_attribute(node, "mode", "nearest") == "cubic":
        return "cubic interpolation leaves the range of its input"
    return None
