"""Builds the plan: decides node by node, then tensor by tensor, before any range is known.

Rules, in order:
1. A node is a candidate if the target has an integer kernel for it, its tensors are float32 and the user did not
exclude it.
2. An activation function that alone reads a candidate's result is fused with it: the Q/DQ pair stands behind it.
3. Elementwise, pooling and data-moving nodes are quantized only between quantized nodes; chains that begin or end in
float (normalization, softmax, residual streams of transformers) keep their precision and gain nothing from integers.
4. Data-moving nodes share one grid between input and output.
5. MatMul, Gemm and a Conv over a single position (a classifier's head) whose result only float nodes read return
float: the scores keep their full precision, without ties.
6. Behind an integer tensor, a node that only moves values moves integers even if float nodes read its result: nothing
is lost, and less is moved. onnxruntime would do so by itself, but fails at it for int8 from opset 21 on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.specs import ActivationSpec
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    constant,
    is_constant,
    is_float32,
    name_of,
    node_name,
    string_attribute,
    subgraph_nodes,
    users,
)
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.targets import TARGETS, Target
from worker.quantizer.plan.types import ActivationPlan, NodePlan, QuantizationPlan, Role
from worker.quantizer.plan.weights import plan_parameters

_BOUNDED = (Role.ARITHMETIC, Role.UNARY, Role.TRANSPARENT)


def build_plan(
    graph: ir.Graph, config: QuantizationConfig, op_types: Mapping[str, str] | None = None
) -> QuantizationPlan:
    """The plan for a prepared graph, without ranges and integers.

    Args:
        graph: prepared main graph.
        config: resolved config.
        op_types: operators by node name as uploaded, where preparation changed them; selectors match either.

    Returns:
        A plan with a NodePlan for every node, sub-graph nodes included.
    """
    target = TARGETS[config.target]
    selection = Selection(config, Matcher(graph, op_types))
    plan = QuantizationPlan()
    for node in graph:
        role, reason = _candidate(node, target, selection)
        plan.nodes[node_name(node)] = NodePlan(node_name(node), node.op_type, role, reason)
    for node in subgraph_nodes(graph):
        reason = "nodes inside sub-graphs stay in float"
        plan.nodes.setdefault(node_name(node), NodePlan(node_name(node), node.op_type, None, reason))
    _fuse_activations(graph, plan, target)
    movers = {
        name
        for name, entry in plan.nodes.items()
        if entry.op_type in target.lossless and entry.role is Role.TRANSPARENT
    }
    _keep_only_between_quantized(graph, plan)
    _plan_tensors(graph, plan, selection, movers)
    return plan


def _candidate(node: ir.Node, target: Target, selection: Selection) -> tuple[Role | None, str | None]:
    """Role of the node by rule 1, or None and the reason."""
    if node.domain not in DEFAULT_DOMAINS:
        return None, f"operators of domain {node.domain} stay in float"
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
    reason = {
        Role.LINEAR: _linear_reason,
        Role.ARITHMETIC: _arithmetic_reason,
        Role.UNARY: _unary_reason,
        Role.TRANSPARENT: _transparent_reason,
    }[role](node)
    return (None, reason) if reason else (role, None)


def _linear_reason(node: ir.Node) -> str | None:
    weight = node.inputs[1]
    if not is_float32(node.inputs[0]) or not is_float32(weight):
        return "its operands are not float32"
    if not is_constant(weight):
        return None if node.op_type == "MatMul" else "its weight is not constant"
    array = constant(weight)
    if array is None or array.size == 0 or not np.isfinite(array).all():
        return "its weight is empty or holds NaN or Inf"
    return None


def _arithmetic_reason(node: ir.Node) -> str | None:
    if any(is_constant(value) for value in node.inputs):
        return "one operand is a constant: no integer kernel is faster than float here"
    if not all(is_float32(value) for value in node.inputs):
        return "its operands are not float32"
    return None


def _unary_reason(node: ir.Node) -> str | None:
    if node.op_type == "Clip" and any(value is not None and not is_constant(value) for value in node.inputs[1:]):
        return "its limits are not constant"
    return None


def _transparent_reason(node: ir.Node) -> str | None:
    if not is_float32(node.inputs[0]):
        return "it does not move float32 data"
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


def _fuse_activations(graph: ir.Graph, plan: QuantizationPlan, target: Target) -> None:
    for node in graph:
        entry = plan.nodes[node_name(node)]
        if entry.role is not Role.UNARY or node.op_type not in target.fusible:
            continue
        value = node.inputs[0]
        producer = value.producer() if value is not None else None
        before = plan.nodes.get(node_name(producer)) if producer is not None else None
        if value is None or before is None or before.role not in (Role.LINEAR, Role.ARITHMETIC):
            entry.role, entry.reason = None, f"no quantized node before it takes {node.op_type} in"
        elif len(users(value)) > 1 or value.is_graph_output():
            entry.role, entry.reason = None, "its input is read elsewhere too, so the node before it cannot take it in"
        else:
            entry.role = Role.FUSED


def _keep_only_between_quantized(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Rule 3, to a fixed point; decisions are only ever taken back."""
    nodes = list(graph)
    changed = True
    while changed:
        changed = False
        comes_quantized: set[ir.Value] = set()
        for node in nodes:
            entry = plan.nodes[node_name(node)]
            fed = any(value in comes_quantized for value in node.inputs if value is not None)
            if entry.role in (*_BOUNDED, Role.FUSED) and not fed:
                entry.role, entry.reason, changed = None, "no quantized node feeds it", True
            if entry.quantized:
                comes_quantized.update(node.outputs)
        for node in reversed(nodes):
            entry = plan.nodes[node_name(node)]
            if entry.role in _BOUNDED and not _read_by_quantized(carrier(node, plan), plan, graph):
                entry.role, entry.reason, changed = None, "no quantized node reads its result", True


def carrier(node: ir.Node, plan: QuantizationPlan) -> ir.Value:
    """The value behind which the node's Q/DQ pair stands: its output, or that of the fused activation."""
    output = node.outputs[0]
    for reader in users(output):
        entry = plan.nodes.get(node_name(reader))
        if entry is not None and entry.role is Role.FUSED:
            return reader.outputs[0]
    return output


def _read_by_quantized(value: ir.Value, plan: QuantizationPlan, graph: ir.Graph) -> bool:
    outputs = value.producer().outputs if value.producer() is not None else [value]  # type: ignore[union-attr]
    return any(
        reader.graph is graph and plan.nodes[node_name(reader)].quantized for v in outputs for reader in users(v)
    )


def _plan_tensors(graph: ir.Graph, plan: QuantizationPlan, selection: Selection, movers: set[str]) -> None:
    source: dict[str, str] = {}
    specs: dict[str, ActivationSpec] = {}
    for node in graph:
        entry = plan.nodes[node_name(node)]
        if entry.role is None and entry.name in movers and _comes_as_integers(node.inputs[0], plan, source):
            entry.role, entry.reason = Role.TRANSPARENT, None
        if entry.role is None or entry.role is Role.FUSED:
            continue
        inputs = _activation_inputs(node, entry.role)
        for value in inputs:
            if name_of(value) not in source:  # a graph input, or the result of a float node
                source[name_of(value)] = name_of(value)
                specs[name_of(value)] = selection.activation(node)
        if entry.role is Role.TRANSPARENT:
            root = source[name_of(inputs[0])]
            for value in node.outputs:
                if value.name and is_float32(value):
                    source[value.name] = root
        else:
            result = carrier(node, plan)
            if not (_may_return_float(node) and not _read_by_quantized(result, plan, graph)):
                source[name_of(result)] = name_of(result)
                specs[name_of(result)] = selection.activation(node)
        if entry.role is Role.LINEAR:
            plan_parameters(node, plan, selection)
    for tensor, root in source.items():
        plan.activations[tensor] = ActivationPlan(tensor, root, specs[root])


def _comes_as_integers(value: ir.Value | None, plan: QuantizationPlan, source: Mapping[str, str]) -> bool:
    producer = value.producer() if value is not None else None
    if value is None or producer is None or value.name not in source:
        return False
    return plan.nodes[node_name(producer)].quantized


def _may_return_float(node: ir.Node) -> bool:
    shape = node.outputs[0].shape
    single_position = shape is not None and len(shape) > 2 and all(dim == 1 for dim in list(shape)[2:])
    return node.op_type in ("MatMul", "Gemm") or (node.op_type == "Conv" and single_position)


def _activation_inputs(node: ir.Node, role: Role) -> list[ir.Value]:
    if role is Role.ARITHMETIC:
        return [value for value in node.inputs if value is not None]
    first = [value for value in node.inputs[:1] if value is not None]
    if node.op_type == "MatMul" and node.inputs[1] is not None and not is_constant(node.inputs[1]):
        return [*first, node.inputs[1]]
    return first
