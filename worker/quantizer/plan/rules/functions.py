"""A function written out in several operators is planned as one: no Q/DQ pair stands inside.

Between the operators of a SiLU, an RMSNorm, a LayerNorm, a GELU or a rotary embedding stand squares, roots, gates and
products that cancel; rounded each to a grid of its own they cost digits, and a float operator between two pairs gains
nothing from them. What enters the function and what leaves it keeps its pair. Functions whose operators all have an
integer kernel are left to these, which are faster (onnxruntime's Sigmoid and Mul).

- SiLU: x sigmoid(beta x) (Elfwing et al. 2018).
- RMSNorm: x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019).
- rotary embedding (Su et al. 2021): x cos + rotated(x) sin, with (-x2, x1) as the rotated halves; or
  (x1 cos - x2 sin, x1 sin + x2 cos), pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import enclosed, only_reader, other_operand, producer, scalar, squaring
from worker.quantizer.graph.values import DEFAULT_DOMAINS, is_constant, name_of, node_name
from worker.quantizer.operators.channels import MOVERS
from worker.quantizer.plan.profile import RuleContext
from worker.quantizer.plan.types import Decision
from worker.quantizer.preparation.passes.gelu import written_gelu
from worker.quantizer.preparation.passes.norms import standardized

PART_OF_FUNCTION = declare(
    "part-of-function",
    "it is part of a {function} that is written out, which computes in float inside",
    hint="Nothing: what enters and what leaves the function is quantized. Target option float_functions switches it.",
    by_design=True,
)


@dataclass(frozen=True)
class Function:
    """One that is written out.

    Attributes:
        name: as people call it.
        nodes: its operators.
        results: what leaves it.
    """

    name: str
    nodes: tuple[ir.Node, ...]
    results: tuple[ir.Value, ...]

    @property
    def inner(self) -> tuple[ir.Value, ...]:
        """What its operators hand to each other."""
        return tuple(value for node in self.nodes for value in node.outputs if value not in self.results)


def float_functions(context: RuleContext) -> list[Decision]:
    """Operators of a function compute in float; the one that makes its result may keep its role."""
    made = []
    for function in _mixed(context):
        for node in function.nodes:
            entry = context.plan.nodes[node_name(node)]
            if entry.quantized and not set(node.outputs) & set(function.results):
                entry.role, entry.reason = None, PART_OF_FUNCTION(function=function.name)
                why = f"part of a {function.name}"
                made.append(Decision("float_functions", entry.name, "left in float", why))
    return made


def without_inner_pairs(context: RuleContext) -> list[Decision]:
    """Tensors inside a function have no Q/DQ pair."""
    made = []
    for function in _mixed(context):
        for value in function.inner:
            if context.plan.activations.pop(name_of(value), None) is not None:
                why = f"inside a {function.name}"
                made.append(Decision("float_functions", name_of(value), "no Q/DQ pair", why))
    return made


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
        origins = {_origin(negated.inputs[0]), _origin(kept)}
        if len(origins) == 1 and any(_origin(operand) in origins for operand in straight.inputs):
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


def _origin(value: ir.Value | None) -> ir.Value | None:
    """What was moved into ``value``."""
    while (node := producer(value, *MOVERS)) is not None:
        value = node.inputs[0]
    return value


_BY_ANCHOR = {
    "Sigmoid": _silu,
    "Sqrt": _normalization,
    "Pow": _normalization,
    "Erf": _gelu,
    "Tanh": _gelu,
    "Add": _rotary,
}
