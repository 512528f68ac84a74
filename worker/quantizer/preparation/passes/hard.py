"""Hard-sigmoid and hard-swish written out become one node.

HardSigmoid(x) = clip(a x + b, 0, 1), HardSwish(x) = x clip(x / 6 + 1/2, 0, 1) (Howard et al. 2019, section 5.2).
Exporters write clip(x + 3, 0, 6) / 6 and its like: whatever the order of factors, s clip(A x + B, 0, h) with s h = 1 is
clip(s A x + s B, 0, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from service.contracts.reason import Reason
from worker.quantizer.graph.rewriting import (
    INNER_READ_ELSEWHERE,
    INPUT_NOT_FLOAT32,
    OPSET_TOO_OLD,
    Editor,
    Rewrite,
    enclosed,
    only_reader,
    other_operand,
    producer,
    rewrites,
    scalar,
)
from worker.quantizer.graph.values import activation_limits, float_attribute, is_float32, node_name

_SWISH_OPSET = 14
_TOLERANCE = 1e-5
_LIMITING = ("Clip", "Min", "Max")
_LARGEST_AFFINE = 2  # nodes before the limits


@dataclass(frozen=True)
class _Ramp:
    """s clip(slope x + offset, 0, height), s still to be found.

    Attributes:
        source: x.
        nodes: the matched ones, first to last.
        result: of the last.
    """

    source: ir.Value
    slope: float
    offset: float
    height: float
    nodes: tuple[ir.Node, ...]
    result: ir.Value


@rewrites(*_LIMITING, "HardSigmoid", what="groups became HardSwish")
def fuse_hard_swish(anchor: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """X times its hard-sigmoid, scaled before or behind the product -> HardSwish (opset 14)."""
    ramp = _ramp(anchor)
    if ramp is None:
        return None
    before, value, nodes = _scaled(ramp.result)
    product = only_reader(value, "Mul")
    if product is None or other_operand(product, value) is not ramp.source:
        return None
    scale, result = before, product.outputs[0]
    nodes = (*ramp.nodes, *nodes, product)
    if not _near(scale * ramp.height, 1.0):
        behind, result, more = _scaled(result)
        scale, nodes = scale * behind, (*nodes, *more)
    whole = (scale * ramp.height, 6 * scale * ramp.slope, 2 * scale * ramp.offset)
    if not all(_near(found, 1.0) for found in whole):
        return None
    if editor.opset is None or editor.opset < _SWISH_OPSET:
        return OPSET_TOO_OLD(op_type="HardSwish", needed=_SWISH_OPSET, opset=editor.opset)
    return _one("HardSwish", ramp.source, nodes, result, {}, editor)


@rewrites(*_LIMITING, what="groups became HardSigmoid")
def fuse_hard_sigmoid(anchor: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """A straight line between limits, scaled to [0, 1] -> HardSigmoid."""
    ramp = _ramp(anchor)
    if ramp is None:
        return None
    scale, result, nodes = (1.0, ramp.result, ()) if _near(ramp.height, 1.0) else _scaled(ramp.result)
    if not _near(scale * ramp.height, 1.0):
        return None
    form = {"alpha": scale * ramp.slope, "beta": scale * ramp.offset}
    return _one("HardSigmoid", ramp.source, (*ramp.nodes, *nodes), result, form, editor)


def _one(
    op_type: str,
    source: ir.Value,
    nodes: tuple[ir.Node, ...],
    result: ir.Value,
    attributes: dict[str, float],
    editor: Editor,
) -> Rewrite | Reason:
    if not is_float32(source):
        return INPUT_NOT_FLOAT32()
    if not enclosed(nodes, [result]):
        return INNER_READ_ELSEWHERE()
    node = editor.node(op_type, [source], node_name(nodes[-1]), attributes)
    return Rewrite(nodes, [node], [(result, node.outputs[0])], source=source)


def _ramp(anchor: ir.Node) -> _Ramp | None:
    """What ends in the limits of ``anchor``; None if it is no line that rises from an offset above 0."""
    if anchor.op_type == "HardSigmoid":
        slope, offset = float_attribute(anchor, "alpha", 0.2), float_attribute(anchor, "beta", 0.5)
        source = anchor.inputs[0]
        return None if source is None else _Ramp(source, slope, offset, 1.0, (anchor,), anchor.outputs[0])
    limited = _limited(anchor)
    if limited is None:
        return None
    value, height, limiting = limited
    slope, offset = 1.0, 0.0
    nodes: tuple[ir.Node, ...] = ()
    for _ in range(_LARGEST_AFFINE):
        step = _affine(value)
        if step is None:
            break
        value, factor, addend, node = step
        slope, offset, nodes = slope * factor, offset + slope * addend, (node, *nodes)
    if not nodes or slope <= 0 or not 0 < offset < height:
        return None
    return _Ramp(value, slope, offset, height, (*nodes, *limiting), anchor.outputs[0])


def _limited(node: ir.Node) -> tuple[ir.Value, float, tuple[ir.Node, ...]] | None:
    """(operand, height, nodes) of a limit to [0, height], as one Clip, or Min and Max or Relu."""
    if node.op_type == "Clip":
        limits, value = activation_limits(node), node.inputs[0]
        rises = limits is not None and limits[0] == 0 < limits[1] < float("inf")
        return (value, limits[1], (node,)) if value is not None and limits is not None and rises else None
    outer = _with_constant(node)
    if outer is None:
        return None
    inner = producer(outer[0], "Max", "Relu") if node.op_type == "Min" else producer(outer[0], "Min")
    found = None
    if inner is not None:
        found = (inner.inputs[0], 0.0) if inner.op_type == "Relu" else _with_constant(inner)
    if inner is None or found is None or found[0] is None:
        return None
    high, low = (outer[1], found[1]) if node.op_type == "Min" else (found[1], outer[1])
    return (found[0], high, (inner, node)) if low == 0 < high else None


def _affine(value: ir.Value) -> tuple[ir.Value, float, float, ir.Node] | None:
    """(operand, factor, addend, node) of the node that makes ``value``, if that is an affine map by two numbers."""
    node = producer(value, "Add", "Sub", "Mul", "Div")
    found = _with_constant(node) if node is not None else None
    if node is None or found is None:
        return None
    operand, number = found
    if node.op_type in ("Sub", "Div") and node.inputs[0] is not operand:
        return None
    if node.op_type in ("Add", "Sub"):
        return operand, 1.0, number if node.op_type == "Add" else -number, node
    return None if number == 0 else (operand, number if node.op_type == "Mul" else 1 / number, 0.0, node)


def _with_constant(node: ir.Node) -> tuple[ir.Value, float] | None:
    """The operand and the number of a node of one each."""
    for value in node.inputs:
        other = other_operand(node, value) if value is not None else None
        number = scalar(other) if other is not None else None
        if value is not None and number is not None and scalar(value) is None:
            return value, number
    return None


def _scaled(value: ir.Value) -> tuple[float, ir.Value, tuple[ir.Node, ...]]:
    """The number that the one reader of ``value`` multiplies it by, its result, the reader; (1, value, ()) if none."""
    node = only_reader(value, "Mul", "Div")
    step = _affine(node.outputs[0]) if node is not None else None
    if node is None or step is None or step[0] is not value:
        return 1.0, value, ()
    return step[1], node.outputs[0], (node,)


def _near(found: float, wanted: float) -> bool:
    return abs(found - wanted) < _TOLERANCE
