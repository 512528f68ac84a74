"""Decomposed L2 normalization becomes LpNormalization: y = x / max(||x||_2, floor) along one axis.

LpNormalization has no floor, and gives 0 for a vector of zeros. The fused node therefore computes the same for every
vector longer than the floor; floors above 1e-6 are left alone.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import (
    INNER_READ_ELSEWHERE,
    INPUT_NOT_FLOAT32,
    Editor,
    Rewrite,
    enclosed,
    only_reader,
    other_operand,
    producer,
    reduced_axes,
    rewrites,
    scalar,
    squaring,
    static_shape,
)
from worker.quantizer.graph.values import constant, int_attribute, is_float32, node_name

EXPANDED_OTHERWISE = declare("length-expanded-otherwise", "its length is expanded to another shape")
SEVERAL_AXES = declare("several-axes", "it normalizes over more than one axis")
AXIS_DROPPED = declare("axis-dropped", "it does not keep the reduced axis")
HIGH_FLOOR = declare("high-floor", "its floor of {floor:g} changes short vectors")

_LARGEST_FLOOR = 1e-6


@rewrites("ReduceL2", "ReduceSumSquare", "ReduceSum", what="groups became LpNormalization")
def fuse_l2_norm(reduction: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Division by the own length in its usual spellings -> LpNormalization with p = 2.

    Follow the length from where it is reduced to where x is divided by it.
    """
    nodes, value, floor = [reduction], reduction.outputs[0], 0.0
    if reduction.op_type == "ReduceSum":
        squared = squaring(reduction.inputs[0])
        if squared is None:
            return None
        nodes.insert(0, squared)
    source = nodes[0].inputs[0]
    if source is None:
        return None
    if reduction.op_type != "ReduceL2":
        square_floor, value, nodes = _through_floor(value, nodes)
        root = only_reader(value, "Sqrt")
        if root is None:
            return None
        floor, nodes, value = math.sqrt(square_floor), [*nodes, root], root.outputs[0]
    own_floor, value, nodes = _through_floor(value, nodes)
    expand = only_reader(value, "Expand")
    if expand is not None:
        if not _expands_to(expand, source):
            return EXPANDED_OTHERWISE()
        shape_node = producer(expand.inputs[1], "Shape")
        nodes += [shape_node, expand] if shape_node is not None and len(shape_node.outputs[0].uses()) == 1 else [expand]
        value = expand.outputs[0]
    divide = only_reader(value, "Div")
    if divide is None or divide.inputs[0] is not source or divide.inputs[1] is not value:
        return None
    axes = reduced_axes(reduction)
    if axes is None or len(axes) != 1:
        return SEVERAL_AXES()
    if not int_attribute(reduction, "keepdims", 1):
        return AXIS_DROPPED()
    if not is_float32(source):
        return INPUT_NOT_FLOAT32()
    if max(floor, own_floor) > _LARGEST_FLOOR:
        return HIGH_FLOOR(floor=max(floor, own_floor))
    nodes.append(divide)
    if not enclosed(nodes, [divide.outputs[0]]):
        return INNER_READ_ELSEWHERE()
    node = editor.node("LpNormalization", [source], node_name(divide), {"axis": axes[0], "p": 2})
    return Rewrite(nodes, [node], [(divide.outputs[0], node.outputs[0])], source=source)


def _through_floor(value: ir.Value, nodes: list[ir.Node]) -> tuple[float, ir.Value, list[ir.Node]]:
    """The floor that Clip, Max or Add puts under ``value``, and the value and the nodes up to behind it."""
    node = only_reader(value, "Clip", "Max", "Add")
    if node is None:
        return 0.0, value, nodes
    if node.op_type == "Clip":
        bounded = len(node.inputs) > 2 and node.inputs[2] is not None
        floor = scalar(node.inputs[1]) if len(node.inputs) > 1 and not bounded else None
    else:
        floor = scalar(other_operand(node, value))
    if floor is None or floor < 0:
        return 0.0, value, nodes
    return floor, node.outputs[0], [*nodes, node]


def _expands_to(expand: ir.Node, source: ir.Value) -> bool:
    """True if the result has the shape of ``source`` for sure."""
    shape = producer(expand.inputs[1], "Shape")
    if shape is not None:
        return shape.inputs[0] is source and not int_attribute(shape, "start", 0) and "end" not in shape.attributes
    wanted = constant(expand.inputs[1])
    known = static_shape(source)
    return wanted is not None and known is not None and tuple(int(axis) for axis in wanted) == known
