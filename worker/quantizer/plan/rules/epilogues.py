"""No Q/DQ pair stands between a weighted layer and what the target computes together with it.

Such an epilogue is what follows element by element from the layer's result alone: an activation function of one node or
of several (SiLU, HardSwish, GELU). Behind a convolution the Add of a residual block belongs to it as well. A pair in
between would split the kernel in two; the other operand of the Add needs one, or the kernel could not return integers.

Source: NVIDIA, TensorRT Developer Guide, Q/DQ Layer-Placement Recommendations.
"""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.values import is_constant, name_of, node_name, users
from worker.quantizer.operators.linear import CONVOLUTIONS, LINEAR
from worker.quantizer.operators.table import operator
from worker.quantizer.plan.profile import RuleContext
from worker.quantizer.plan.types import Decision, Role


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
