"""Operators that run on integers between quantized ones: they move, choose or limit values, and do so to floats too.

Scales are positive, so that the largest integer stands for the largest float; one scale holds for the whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.values import constant, input_of, name_of, node_name, string_attribute
from worker.quantizer.numerics.integer import PER_TENSOR
from worker.quantizer.ops.table import named
from worker.quantizer.preparation.passes.dequantizing.stored import constant_of, dequantized, holds_integers, stored
from worker.quantizer.preparation.passes.dequantizing.undoing import (
    FOREIGN_INTEGERS,
    OTHER_PARAMETERS,
    SCALES_NOT_CONSTANT,
    Form,
    Found,
    Integers,
    Undoing,
)

SCALES_MOVE = declare("scales-move", "it moves values with different scales")
FILLS_WITH_INTEGERS = declare("fills-with-integers", "it fills with values that are not given as constants")

# Those that several operands of one scale go into, and the first of these.
_SEVERAL = {"Concat": 0, "Max": 0, "Min": 0, "Where": 1}
_FIRST = frozenset(named(lambda record: record.keeps_scale)) - _SEVERAL.keys()
# Their results are no integers that stand for floats.
_TOLD = frozenset({"ArgMax", "ArgMin", "Shape", "Size"})


def _of_one_scale(
    node: ir.Node, undoing: Undoing, operands: Sequence[ir.Value | None] | None = None
) -> Integers | Found:
    """What the first of the operands that stands for floats means, by default of the first operand alone."""
    operands = node.inputs[:1] if operands is None else operands
    known = next((one for value in operands if (one := undoing.integers(value)) is not None), None)
    if known is None:
        return undoing.computed_on(node)
    return known if known.one_scale else SCALES_MOVE()


def moved(node: ir.Node, undoing: Undoing) -> Found:
    """The same operator on what its first operand stands for."""
    known = _of_one_scale(node, undoing)
    if not isinstance(known, Integers):
        return known
    if node.op_type == "Resize" and "crop" in string_attribute(node, "coordinate_transformation_mode", ""):
        return FILLS_WITH_INTEGERS()
    return _put(node, undoing, known, [known.real, *node.inputs[1:]])


def joined(node: ir.Node, undoing: Undoing) -> Found:
    """Operands that all have the same scale and zero point; constants are taken to have it."""
    first = _SEVERAL[node.op_type]
    known = _of_one_scale(node, undoing, node.inputs[first:])
    if not isinstance(known, Integers):
        return known
    inputs: list[ir.Value | None] = list(node.inputs[:first])
    for value in node.inputs[first:]:
        found = _same(value, known, undoing)
        if isinstance(found, Reason):
            return found
        inputs.append(found)
    return _put(node, undoing, known, inputs)


def _same(value: ir.Value | None, known: Integers, undoing: Undoing) -> ir.Value | Reason:
    other = undoing.integers(value)
    if other is not None:
        fits = other.one_scale and other.same(known.scale, known.zero_point)
        return other.real if fits else OTHER_PARAMETERS(maker=known.maker)
    held, scale, zero = stored(value), constant_of(known.scale), constant_of(known.zero_point)
    if value is None or held is None or held.rows is not None or not holds_integers(held.array.dtype):
        return FOREIGN_INTEGERS()
    if scale is None or (known.zero_point is not None and zero is None):
        return SCALES_NOT_CONSTANT()
    key = ("moved", held.key, id(known.scale), id(known.zero_point))
    return undoing.weight(name_of(value), key, lambda: dequantized(held.array, scale, zero, PER_TENSOR))


def padded(node: ir.Node, undoing: Undoing) -> Found:
    """Pad fills with an integer, 0 if none is given, which stands for a float too."""
    known = _of_one_scale(node, undoing)
    if not isinstance(known, Integers):
        return known
    inputs = [known.real, *node.inputs[1:]]
    if string_attribute(node, "mode", "constant") == "constant":
        fill = _float_of(input_of(node, 2), known)
        if isinstance(fill, Reason):
            return fill
        inputs += [None] * (3 - len(inputs))
        inputs[2] = undoing.small(f"{node_name(node)}_fill", fill)
    return _put(node, undoing, known, inputs)


def limited(node: ir.Node, undoing: Undoing) -> Found:
    """Relu and Clip limit integers, which stand for other limits of the floats."""
    known = _of_one_scale(node, undoing)
    if not isinstance(known, Integers):
        return known
    given: list[ir.Value | None] = [None] if node.op_type == "Relu" else list(node.inputs[1:])
    limits: list[ir.Value | None] = []
    for value in given:
        if value is None and node.op_type != "Relu":
            limits.append(None)
            continue
        limit = _float_of(value, known)
        if isinstance(limit, Reason):
            return limit
        if node.op_type == "Relu" and limit == 0:
            return _put(node, undoing, known, [known.real])
        limits.append(undoing.small(f"{node_name(node)}_limit", limit))
    return _put(node, undoing, known, [known.real, *limits], op_type="Clip")


def _float_of(value: ir.Value | None, known: Integers) -> np.ndarray | Reason:
    """The float that a constant integer of one element stands for; 0 where it is left out."""
    scale, zero = constant_of(known.scale), constant_of(known.zero_point)
    array = np.zeros((), np.int64) if value is None else constant(value)
    if scale is None or (known.zero_point is not None and zero is None):
        return SCALES_NOT_CONSTANT()
    if array is None or array.size != 1:
        return FILLS_WITH_INTEGERS()
    return dequantized(array.reshape(()).astype(np.int64), scale, zero, PER_TENSOR).reshape(())


def told(node: ir.Node, undoing: Undoing) -> Found:
    """Shape, Size and the place of the largest are those of the floats."""
    known = _of_one_scale(node, undoing)
    if not isinstance(known, Integers):
        return known
    node.replace_input_with(0, known.real)
    return True


def _put(
    node: ir.Node, undoing: Undoing, known: Integers, inputs: list[ir.Value | None], *, op_type: str | None = None
) -> Found:
    made = undoing.put(node, op_type or node.op_type, inputs, node.attributes.items())
    for k, value in enumerate(made.outputs):
        if node.op_type == "MaxPool" and k == 1:
            value.dtype = ir.DataType.INT64  # places, not values
            undoing.replace(node, value, k)
        elif value.name:
            meaning = Integers(value, known.scale, known.zero_point, node_name(node), whole=True)
            undoing.give(node.outputs[k], meaning)
    return True


FORMS: dict[str, Form] = {
    **dict.fromkeys(_FIRST, moved),
    **dict.fromkeys(_SEVERAL, joined),
    **dict.fromkeys(_TOLD, told),
    "Clip": limited,
    "Pad": padded,
    "Relu": limited,
}
