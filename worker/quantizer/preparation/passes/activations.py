"""Gelu (Hendrycks and Gimpel 2016), hard-sigmoid and hard-swish that are written out become one node.

y = x (1 + t) / 2 with t = erf(x / sqrt(2)), or with t = tanh(sqrt(2 / pi) (x + 0.044715 x^3)), equation of section 2.
Both sides are compared as polynomials in x and t, so that the order of factors and the place of constants do not
matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from service.contracts.reason import Reason
from worker.quantizer.graph.rewriting import (
    Editor,
    Rewrite,
    only_reader,
    other_operand,
    producer,
    rewrites,
    scalar,
)
from worker.quantizer.graph.values import activation_limits, float_attribute

_OPSET = 20
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow")
_LARGEST_GROUP = 12
_LARGEST_PRODUCT = 64  # terms; a Gelu needs far fewer
_TOLERANCE = 1e-5
Polynomial = dict[tuple[int, int], float]  # (power of x, power of t) -> coefficient
_ARGUMENTS: dict[str, Polynomial] = {
    "Erf": {(1, 0): math.sqrt(0.5)},
    "Tanh": {(1, 0): math.sqrt(2 / math.pi), (3, 0): math.sqrt(2 / math.pi) * 0.044715},
}
_GELU: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}


@dataclass(frozen=True)
class WrittenGelu:
    """A Gelu in several operators: of ``source``, by ``nodes``, which make ``result``."""

    source: ir.Value
    nodes: tuple[ir.Node, ...]
    result: ir.Value


def written_gelu(anchor: ir.Node) -> WrittenGelu | None:
    """That around an Erf or Tanh, None if it is none."""
    argument = anchor.inputs[0]
    source = _source(argument, _ARGUMENTS[anchor.op_type]) if argument is not None else None
    result = _result(anchor.outputs[0], source) if source is not None else None
    if argument is None or source is None or result is None:
        return None
    nodes = [*_between(result, source, anchor.outputs[0]), anchor, *_between(argument, source, None)]
    return WrittenGelu(source, tuple(dict.fromkeys(nodes)), result)


@rewrites(*_ARGUMENTS, what="groups became Gelu")
def fuse_gelu(anchor: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """The Erf form and the tanh form -> Gelu (opset 20)."""
    found = written_gelu(anchor)
    if found is None:
        return None
    form = {"approximate": "none" if anchor.op_type == "Erf" else "tanh"}
    return editor.too_old("Gelu", _OPSET) or editor.fused("Gelu", found.source, found.nodes, found.result, form)


def _source(argument: ir.Value, wanted: Polynomial) -> ir.Value | None:
    """The value x for which ``argument`` is ``wanted``: one of those that the argument is made from."""
    work, seen = [argument], {argument}
    while work and len(seen) <= _LARGEST_GROUP:
        value = work.pop(0)
        if _equal(_polynomial(argument, {value: {(1, 0): 1.0}}), wanted):
            return value
        node = producer(value, *_ARITHMETIC)
        for operand in node.inputs if node is not None else ():
            if operand is not None and operand not in seen and scalar(operand) is None:
                seen.add(operand)
                work.append(operand)
    return None


def _result(value: ir.Value, source: ir.Value) -> ir.Value | None:
    """The value behind erf or tanh that is the Gelu of ``source``."""
    leaves: dict[ir.Value, Polynomial] = {source: {(1, 0): 1.0}, value: {(0, 1): 1.0}}
    for _ in range(4):
        node = only_reader(value, *_ARITHMETIC)
        if node is None:
            return None
        value = node.outputs[0]
        if _equal(_polynomial(value, leaves), _GELU):
            return value
    return None


def _between(value: ir.Value, source: ir.Value, inner: ir.Value | None) -> list[ir.Node]:
    """Arithmetic nodes that make ``value`` of ``source`` and ``inner``, the last first."""
    nodes: list[ir.Node] = []
    work = [value]
    while work:
        current = work.pop()
        node = None if current is source or current is inner else producer(current, *_ARITHMETIC)
        if node is not None and node not in nodes:
            nodes.append(node)
            work += [operand for operand in node.inputs if operand is not None]
    return nodes


def _polynomial(value: ir.Value | None, leaves: dict[ir.Value, Polynomial], depth: int = 8) -> Polynomial | None:
    """``value`` as a polynomial in ``leaves``, None if it is none."""
    if value is None or depth == 0:
        return None
    if value in leaves:
        return leaves[value]
    number = scalar(value)
    if number is not None:
        return {(0, 0): number}
    node = producer(value, *_ARITHMETIC)
    if node is None:
        return None
    left = _polynomial(node.inputs[0], leaves, depth - 1)
    right = _polynomial(node.inputs[1], leaves, depth - 1) if left is not None else None
    if left is None or right is None:
        return None
    return _combined(node.op_type, left, right)


def _combined(op_type: str, left: Polynomial, right: Polynomial) -> Polynomial | None:
    if op_type in ("Add", "Sub"):
        sign = 1.0 if op_type == "Add" else -1.0
        return {key: left.get(key, 0.0) + sign * right.get(key, 0.0) for key in left | right}
    if op_type == "Mul":
        return _product(left, right)
    if set(right) != {(0, 0)}:
        return None
    number = right[0, 0]
    if op_type == "Div":
        return {key: factor / number for key, factor in left.items()} if number else None
    if number not in (2.0, 3.0):
        return None
    squared = _product(left, left)
    return squared if number == 2 or squared is None else _product(squared, left)


def _product(left: Polynomial, right: Polynomial) -> Polynomial | None:
    if len(left) * len(right) > _LARGEST_PRODUCT:
        return None
    made: Polynomial = {}
    for (a, b), factor in left.items():
        for (c, d), other in right.items():
            made[a + c, b + d] = made.get((a + c, b + d), 0.0) + factor * other
    return made


def _equal(found: Polynomial | None, wanted: Polynomial) -> bool:
    if found is None or not all(key in wanted or abs(factor) <= _TOLERANCE for key, factor in found.items()):
        return False
    return all(abs(found.get(key, 0.0) - factor) <= _TOLERANCE * abs(factor) for key, factor in wanted.items())


# Hard-sigmoid and hard-swish written out become one node.
#
# HardSigmoid(x) = clip(a x + b, 0, 1), HardSwish(x) = x clip(x / 6 + 1/2, 0, 1) (Howard et al. 2019, section 5.2).
# Exporters write clip(x + 3, 0, 6) / 6 and its like: whatever the order of factors, s clip(A x + B, 0, h) with s h = 1
# is clip(s A x + s B, 0, 1).

_SWISH_OPSET = 14
_LIMITING = ("Clip", "Min", "Max")
_LARGEST_AFFINE = 2  # nodes before the limits


@dataclass(frozen=True)
class _Ramp:
    """s clip(slope x + offset, 0, height), s still to be found."""

    source: ir.Value  # x
    slope: float
    offset: float
    height: float
    nodes: tuple[ir.Node, ...]  # the matched ones, first to last
    result: ir.Value  # of the last


@rewrites(*_LIMITING, "HardSigmoid", what="groups became HardSwish")
def fuse_hard_swish(anchor: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """X times its hard-sigmoid, scaled before or behind the product -> HardSwish (opset 14)."""
    before, value, nodes = _scaled(anchor.outputs[0])
    product = only_reader(value, "Mul")
    source = None if product is None else other_operand(product, value)
    # What makes x may be affine too, as a learnt scale and offset in front of the activation are.
    ramp = next((ramp for ramp in _ramps(anchor) if ramp.source is source), None)
    if product is None or ramp is None:
        return None
    scale, result = before, product.outputs[0]
    nodes = (*ramp.nodes, *nodes, product)
    if not _near(scale * ramp.height, 1.0):
        behind, result, more = _scaled(result)
        scale, nodes = scale * behind, (*nodes, *more)
    whole = (scale * ramp.height, 6 * scale * ramp.slope, 2 * scale * ramp.offset)
    if not all(_near(found, 1.0) for found in whole):
        return None
    return editor.too_old("HardSwish", _SWISH_OPSET) or editor.fused("HardSwish", ramp.source, nodes, result)


@rewrites(*_LIMITING, what="groups became HardSigmoid")
def fuse_hard_sigmoid(anchor: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """A straight line between limits, scaled to [0, 1] -> HardSigmoid."""
    ramps = _ramps(anchor)
    ramp = ramps[-1] if ramps else None
    if ramp is None or ramp.slope <= 0 or not 0 < ramp.offset < ramp.height:
        return None
    scale, result, nodes = (1.0, ramp.result, ()) if _near(ramp.height, 1.0) else _scaled(ramp.result)
    if not _near(scale * ramp.height, 1.0):
        return None
    form = {"alpha": scale * ramp.slope, "beta": scale * ramp.offset}
    return editor.fused("HardSigmoid", ramp.source, (*ramp.nodes, *nodes), result, form)


def _ramps(anchor: ir.Node) -> list[_Ramp]:
    """What ends in the limits of ``anchor``, of all that it may start from, the nearest first."""
    if anchor.op_type == "HardSigmoid":
        slope, offset = float_attribute(anchor, "alpha", 0.2), float_attribute(anchor, "beta", 0.5)
        source = anchor.inputs[0]
        return [] if source is None else [_Ramp(source, slope, offset, 1.0, (anchor,), anchor.outputs[0])]
    limited = _limited(anchor)
    if limited is None:
        return []
    value, height, limiting = limited
    slope, offset = 1.0, 0.0
    nodes: tuple[ir.Node, ...] = ()
    found = []
    for _ in range(_LARGEST_AFFINE):
        step = _affine(value)
        if step is None:
            break
        value, factor, addend, node = step
        slope, offset, nodes = slope * factor, offset + slope * addend, (node, *nodes)
        found.append(_Ramp(value, slope, offset, height, (*nodes, *limiting), anchor.outputs[0]))
    return found


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
