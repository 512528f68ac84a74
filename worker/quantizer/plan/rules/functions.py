"""What computes in float between two pairs, for the sake of digits or of the kernel.

Functions that are written out: between the operators of a SiLU, an RMSNorm, a LayerNorm, a GELU or a rotary embedding
stand squares, roots, gates and products that cancel; rounded each to a grid of its own they cost digits, and a float
operator between two pairs gains nothing from them. What enters the function and what leaves it keeps its pair.
Functions whose operators all have an integer kernel are left to these, which are faster (onnxruntime's Sigmoid and
Mul).

- SiLU: x sigmoid(beta x) (Elfwing et al. 2018).
- RMSNorm: x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019).
- rotary embedding (Su et al. 2021): x cos + rotated(x) sin, with (-x2, x1) as the rotated halves; or
  (x1 cos - x2 sin, x1 sin + x2 cos), pair by pair.

What only feeds powers, roots, logarithms and divisions: a normalization written out as Sub, Pow, ReduceMean, Add, Sqrt,
Div has terms of very different size, and on the grid of the variance the epsilon that guards the division is 0. Its
operators have no integer kernel, and so the nodes between them would be rounded for nothing.

Epilogues: no Q/DQ pair stands between a weighted layer and what the target computes together with it. An epilogue is
what follows element by element from the layer's result alone: an activation function of one node or of several (SiLU,
HardSwish, GELU). Behind a convolution the Add of a residual block belongs to it as well. A pair in between would split
the kernel in two; the other operand of the Add needs one, or the kernel could not return integers.
Source: NVIDIA, TensorRT Developer Guide, Q/DQ Layer-Placement Recommendations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import enclosed, only_reader, other_operand, producer, scalar, squaring
from worker.quantizer.graph.values import DEFAULT_DOMAINS, is_constant, name_of, node_name, users
from worker.quantizer.ops.channels import moved_from
from worker.quantizer.ops.linear import CONVOLUTIONS, LINEAR
from worker.quantizer.ops.table import Family, operator
from worker.quantizer.plan.types import Decision, Role, RuleContext
from worker.quantizer.preparation.passes.activations import written_gelu
from worker.quantizer.preparation.passes.norms import standardized

PART_OF_FUNCTION = declare(
    "part-of-function",
    "it is part of a {function} that is written out, which computes in float inside",
    hint="Nothing: what enters and what leaves the function is quantized. Target option float_functions switches it.",
    by_design=True,
)


@dataclass(frozen=True)
class Function:
    """One that is written out."""

    name: str  # as people call it
    nodes: tuple[ir.Node, ...]  # its operators
    results: tuple[ir.Value, ...]  # what leaves it

    @property
    def inner(self) -> tuple[ir.Value, ...]:
        """What its operators hand to each other."""
        return tuple(value for node in self.nodes for value in node.outputs if value not in self.results)


def float_functions(context: RuleContext) -> Iterator[Decision]:
    """Operators of a function compute in float; the one that makes its result may keep its role."""
    for function in _mixed(context):
        for node in function.nodes:
            entry = context.plan.nodes[node_name(node)]
            if entry.quantized and not set(node.outputs) & set(function.results):
                reason = PART_OF_FUNCTION(function=function.name)
                yield context.leave_in_float(node, reason, "float_functions", f"part of a {function.name}")


def without_inner_pairs(context: RuleContext) -> Iterator[Decision]:
    """Tensors inside a function have no Q/DQ pair."""
    for function in _mixed(context):
        for value in function.inner:
            if context.plan.activations.pop(name_of(value), None) is not None:
                why = f"inside a {function.name}"
                yield Decision("float_functions", name_of(value), "no Q/DQ pair", why)


def _mixed(context: RuleContext) -> Iterator[Function]:
    """Functions some of whose operators have no role; one that the user splits by selectors is one as well."""
    for function in written_functions(context.graph):
        if not all(context.plan.nodes[node_name(node)].quantized for node in function.nodes):
            yield function


def written_functions(graph: ir.Graph) -> Iterator[Function]:
    """All that the main graph holds, in its order."""
    for node in graph:
        if node.domain in DEFAULT_DOMAINS and node.op_type in _BY_ANCHOR:
            found = _BY_ANCHOR[node.op_type](node)
            if found is not None and enclosed(found.nodes, found.results):
                yield found


def gains(graph: ir.Graph) -> Iterator[ir.Node]:
    """The Mul nodes by whose constant a written-out normalization weights its channels."""
    for function in written_functions(graph):
        last = function.nodes[-1]
        if function.name == "RMSNorm" and last.op_type == "Mul" and any(map(is_constant, last.inputs)):
            yield last


def _silu(gate: ir.Node) -> Function | None:
    argument, product = gate.inputs[0], only_reader(gate.outputs[0], "Mul")
    source = other_operand(product, gate.outputs[0]) if product is not None else None
    if argument is None or source is None or product is None:
        return None
    if source is argument:
        return Function("SiLU", (gate, product), (product.outputs[0],))
    scaling = producer(argument, "Mul", "Div")
    if scaling is None or scaling.inputs[0] is not source or scalar(scaling.inputs[1]) is None:
        return None
    return Function("SiLU", (scaling, gate, product), (product.outputs[0],))


def _normalization(root: ir.Node) -> Function | None:
    found = standardized(root)
    if found is not None and not isinstance(found, Reason):
        return Function("LayerNorm", found.nodes, (found.result,))
    if root.op_type == "Pow" and scalar(root.inputs[1]) != -0.5:
        return None
    shifted = producer(_behind_cast(root.inputs[0]), "Add")
    means = [producer(_behind_cast(value), "ReduceMean") for value in shifted.inputs] if shifted is not None else []
    mean = next((node for node in means if node is not None), None)
    square = squaring(_behind_cast(mean.inputs[0])) if mean is not None else None
    if shifted is None or mean is None or square is None or square.inputs[0] is None:
        return None
    if scalar(other_operand(shifted, mean.outputs[0])) is None:
        return None
    nodes, value = [square, mean, shifted, root], root.outputs[0]
    inverted = only_reader(value, "Reciprocal", "Div")
    if inverted is not None and (inverted.op_type == "Reciprocal" or scalar(inverted.inputs[0]) == 1):
        nodes, value = [*nodes, inverted], inverted.outputs[0]
    quotient = only_reader(value, "Mul", "Div")
    if quotient is None or _behind_cast(other_operand(quotient, value)) is not _behind_cast(square.inputs[0]):
        return None
    nodes, value = [*nodes, quotient], quotient.outputs[0]
    cast = only_reader(value, "Cast")
    if cast is not None:
        nodes, value = [*nodes, cast], cast.outputs[0]
    weighted = only_reader(value, "Mul")
    if weighted is not None and is_constant(other_operand(weighted, value)):
        nodes, value = [*nodes, weighted], weighted.outputs[0]
    return Function("RMSNorm", tuple(nodes), (value,))


def _behind_cast(value: ir.Value | None) -> ir.Value | None:
    cast = producer(value, "Cast")
    return value if cast is None else cast.inputs[0]


def _gelu(anchor: ir.Node) -> Function | None:
    found = written_gelu(anchor)
    return None if found is None else Function("GELU", found.nodes, (found.result,))


def _rotary(total: ir.Node) -> Function | None:
    """By its last Add: halves that change places, or the second result of pairs, whose Sub makes the first."""
    products = [producer(value, "Mul") for value in total.inputs]
    first, second = products if len(products) == 2 else (None, None)
    if first is None or second is None or first is second:
        return None
    return _of_halves(first, second, total) or _of_halves(second, first, total) or _of_pairs(first, second, total)


def _of_halves(straight: ir.Node, turned: ir.Node, total: ir.Node) -> Function | None:
    for value in turned.inputs:
        joined = producer(value, "Concat")
        if joined is None or len(joined.inputs) != 2:
            continue
        negated, kept = (producer(joined.inputs[0], "Neg"), joined.inputs[1])
        if negated is None or producer(kept, "Neg") is not None:
            continue
        origins = {moved_from(negated.inputs[0]), moved_from(kept)}
        if len(origins) == 1 and any(moved_from(operand) in origins for operand in straight.inputs):
            return Function("rotary embedding", (negated, joined, straight, turned, total), (total.outputs[0],))
    return None


def _of_pairs(first: ir.Node, second: ir.Node, total: ir.Node) -> Function | None:
    """x1 sin + x2 cos, with x1 cos - x2 sin beside it."""
    for one in first.inputs:
        for usage in one.uses() if one is not None and not is_constant(one) else ():
            twin = usage.node
            difference = only_reader(twin.outputs[0], "Sub") if twin.op_type == "Mul" and twin is not first else None
            other = producer(difference.inputs[1], "Mul") if difference is not None else None
            if difference is None or other is None or difference.inputs[0] is not twin.outputs[0]:
                continue
            if one is None or _crossed(one, (first, second), (twin, other)):
                nodes = (twin, other, difference, first, second, total)
                return Function("rotary embedding", nodes, (difference.outputs[0], total.outputs[0]))
    return None


def _crossed(one: ir.Value, added: tuple[ir.Node, ir.Node], taken: tuple[ir.Node, ir.Node]) -> bool:
    """True if the products are (one sin, two cos) and (one cos, two sin)."""
    sine, cosine = other_operand(added[0], one), other_operand(taken[0], one)
    if sine is None or cosine is None:
        return False
    twos = other_operand(added[1], cosine), other_operand(taken[1], sine)
    return twos[0] is not None and twos[0] is twos[1]


_BY_ANCHOR = {
    "Sigmoid": _silu,
    "Sqrt": _normalization,
    "Pow": _normalization,
    "Erf": _gelu,
    "Tanh": _gelu,
    "Add": _rotary,
}


FEEDS_SENSITIVE = declare(
    "feeds-sensitive-operator",
    "it only feeds {op_type}, which needs more digits than integers have",
    hint="Use BatchNormalization in place of a normalization written out.",
)


def _needs_digits(node: ir.Node) -> bool:
    """A division by a constant is a multiplication."""
    known = operator(node.op_type)
    by_constant = known.family is Family.ARITHMETIC and is_constant(node.inputs[1])
    return known.needs_digits and not by_constant


def float_chains(context: RuleContext) -> list[Decision]:
    """Leave nodes in float all of whose readers are such operators, or are themselves left in float for that."""
    plan, made = context.plan, []
    chained: dict[str, str] = {}
    for node in reversed(list(context.graph)):
        entry = plan.nodes[node_name(node)]
        if _needs_digits(node) and not entry.quantized:
            chained[entry.name] = node.op_type
            continue
        readers = [reader for value in node.outputs for reader in users(value)]
        is_output = any(value.is_graph_output() for value in node.outputs)
        if entry.role in (None, Role.LINEAR) or not readers or is_output:
            continue
        causes = [chained.get(node_name(reader)) for reader in readers]
        if None in causes:
            continue
        chained[entry.name] = causes[0] or ""
        why = "terms of a normalization vanish on one grid"
        made.append(context.leave_in_float(node, FEEDS_SENSITIVE(op_type=causes[0]), "float_chains", why))
    return made[::-1]


def fuse_epilogues(context: RuleContext) -> list[Decision]:
    """Take the pairs out of epilogues; what leaves them keeps its own."""
    layers: dict[ir.Value, ir.Node] = {}  # by value: the layer from whose result alone it follows
    members: dict[ir.Node, ir.Node] = {}  # by node: the layer that it is computed with
    made = []
    for node in context.graph:
        operands = [value for value in node.inputs if value is not None and not is_constant(value)]
        if node.op_type in LINEAR and context.plan.nodes[node_name(node)].role is Role.LINEAR:
            layers[node.outputs[0]] = node
        elif operator(node.op_type).pointwise and operands:
            layer = layers.get(operands[0])
            if layer is not None and all(layers.get(value) is layer for value in operands):
                layers[node.outputs[0]] = members[node] = layer
    for node in context.graph:
        taken = _taken_by_add(node, layers, context)
        inner = [value for value in node.outputs if _stays_inside(value, layers, members)]
        if taken is not None:
            made.append(_drop(taken, f"{node_name(node)} is computed with the layer before it", context))
        made += [_drop(value, "all that reads it is computed with the layer before it", context) for value in inner]
    return [decision for decision in made if decision is not None]


def _stays_inside(value: ir.Value, layers: dict[ir.Value, ir.Node], members: dict[ir.Node, ir.Node]) -> bool:
    readers = users(value)
    inside = bool(readers) and all(reader in members and members[reader] is layers.get(value) for reader in readers)
    return inside and not value.is_graph_output()


def _taken_by_add(node: ir.Node, layers: dict[ir.Value, ir.Node], context: RuleContext) -> ir.Value | None:
    """The operand of a quantized Add that a convolution computes for it alone; of two the first."""
    if node.op_type != "Add" or context.plan.nodes[node_name(node)].role is not Role.ARITHMETIC:
        return None
    first, second = node.inputs[0], node.inputs[1]
    if first is None or second is None or layers.get(first) is layers.get(second):
        return None
    for value, other in ((first, second), (second, first)):
        layer = layers.get(value)
        alone = users(value) == [node] and not value.is_graph_output()
        stored = other.name in context.plan.activations
        if layer is not None and layer.op_type in CONVOLUTIONS and alone and stored and _fills(value, node.outputs[0]):
            return value
    return None


def _fills(value: ir.Value, made: ir.Value) -> bool:
    """False where ``value`` is repeated to the shape of ``made``; lengths that are not known count as the same."""
    if value.shape is None or made.shape is None or len(value.shape) != len(made.shape):
        return False
    return all(length != 1 or length == wanted for length, wanted in zip(value.shape, made.shape, strict=True))


def _drop(value: ir.Value, why: str, context: RuleContext) -> Decision | None:
    if context.plan.activations.pop(name_of(value), None) is None:
        return None
    return Decision("fuse_epilogues", name_of(value), "no Q/DQ pair", why)
