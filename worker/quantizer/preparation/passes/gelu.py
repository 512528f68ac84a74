"""Decomposed Gelu (Hendrycks and Gimpel 2016) becomes one node, however its factors are grouped.

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
    INNER_READ_ELSEWHERE,
    INPUT_NOT_FLOAT32,
    OPSET_TOO_OLD,
    Editor,
    Rewrite,
    enclosed,
    only_reader,
    producer,
    rewrites,
    scalar,
)
from worker.quantizer.graph.values import is_float32, node_name

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
    if editor.opset is None or editor.opset < _OPSET:
        return OPSET_TOO_OLD(op_type="Gelu", needed=_OPSET, opset=editor.opset)
    if not is_float32(found.source):
        return INPUT_NOT_FLOAT32()
    if not enclosed(found.nodes, [found.result]):
        return INNER_READ_ELSEWHERE()
    made = found.result.producer()
    if made is None:
        return None
    form = {"approximate": "none" if anchor.op_type == "Erf" else "tanh"}
    node = editor.node("Gelu", [found.source], node_name(made), form)
    return Rewrite(found.nodes, [node], [(found.result, node.outputs[0])], source=found.source)


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
