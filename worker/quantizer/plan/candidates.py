"""Whether a node can run on integers: by its operator and tensors, by what stands around it, and in sub-graphs."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.metadata import Borders, NodeFacts
from worker.quantizer.graph.rewriting import scalar
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    is_constant,
    is_float32,
    node_name,
    owners,
    string_attribute,
    subgraph_nodes,
    users,
)
from worker.quantizer.ops.linear import MATRIX_PRODUCTS, is_linear, is_recurrent, recurrent_weights
from worker.quantizer.ops.windows import counts_beyond, has_gaps
from worker.quantizer.plan.grids import (
    OPERANDS_NOT_FLOAT32,
    TRAINING_FAULT,
    WEIGHT_NOT_CONSTANT,
    is_finite,
    plan_weight,
    unusable_weight,
)
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.stored_weights import enter_recurrent
from worker.quantizer.plan.types import SHAPES, NodePlan, PlanLog, QuantizationPlan, Role, Target

FOREIGN_DOMAIN = declare(
    "foreign-domain",
    "operators of domain {domain} stay in float",
    hint="Export the model with standard ONNX operators.",
)
OUTPUT_UNKNOWN = declare(
    "output-type-unknown",
    "the type of its output is unknown",
    hint="Run shape inference on the model, or export it with static shapes.",
)
OUTPUT_DOUBLE = declare("output-double", "its output is double", hint="Export the model in float32.")
OUTPUT_INTEGER = declare(
    "output-integer",
    "its output is {dtype}",
    hint=SHAPES,
    by_design=True,
)
OUTPUT_NOT_FLOAT32 = declare("output-not-float32", "its output is {dtype}")
INPUT_CONSTANT = declare("input-constant", "its input is constant")
CONSTANT_OPERAND = declare(
    "constant-operand",
    "one operand is a constant: no integer kernel is faster than float here",
    hint="Fold the constant into the layer before or after the node.",
)
CONSTANT_NOT_FINITE = declare(
    "constant-not-finite",
    "a constant operand is empty or contains NaN or Inf",
    hint=TRAINING_FAULT,
)
DATA_NOT_FLOAT32 = declare("data-not-float32", "it does not move float32 data")
LIMITS_NOT_CONSTANT = declare(
    "limits-not-constant", "its limits are not constant", hint="Give the node constant limits."
)
SLOPE_UNUSABLE = declare(
    "slope-unusable",
    "its slope is not constant, or contains NaN or Inf",
    hint=TRAINING_FAULT,
)
POOL_DILATED = declare(
    "pool-dilated",
    "no integer kernel averages a window with gaps",
    hint="Average without dilations.",
)
POOL_COUNTS_BEYOND = declare(
    "pool-counts-beyond",
    "integer kernels count otherwise where windows that count pads reach beyond them",
    hint="Average without ceil_mode, or without count_include_pad.",
)
PADS_NONZERO = declare(
    "pads-nonzero",
    "it pads with a value other than 0",
    hint="Pad with 0, or let the next convolution pad.",
)
CUBIC_RESIZE = declare(
    "cubic-resize",
    "cubic interpolation leaves the range of its input",
    hint="Resize with mode linear or nearest.",
)


def candidate(
    node: ir.Node, target: Target, selection: Selection, facts: NodeFacts
) -> tuple[Role | None, Reason | None]:
    """The role that the node could have, or None and the reason."""
    if node.domain not in DEFAULT_DOMAINS:
        return None, FOREIGN_DOMAIN(domain=node.domain)
    if node_name(node) in facts.kept_float:
        return None, facts.kept_float[node_name(node)]
    role = target.roles.get(node.op_type)
    if role is None:
        return None, target.reason(node.op_type)
    excluded = selection.reason(node)
    if excluded is not None:
        return None, excluded
    if not is_float32(node.outputs[0]):
        return None, _not_float32(node.outputs[0].dtype)
    if role is not Role.ARITHMETIC and (node.inputs[0] is None or is_constant(node.inputs[0])):
        return None, INPUT_CONSTANT()
    reason = _reason(node, role, whole=target.whole) or target.refuses(node)
    return (None, reason) if reason else (role, None)


def may_return_float(node: ir.Node) -> bool:
    """True for linear nodes that return float where only float nodes read them: what makes scores.

    MatMul, Gemm, and a Conv over a single position, as classifiers end with.
    """
    shape = node.outputs[0].shape
    single_position = shape is not None and len(shape) > 2 and all(dim == 1 for dim in list(shape)[2:])
    return node.op_type in MATRIX_PRODUCTS or (node.op_type == "Conv" and single_position)


def _not_float32(dtype: ir.DataType | None) -> Reason:
    if dtype is None:
        return OUTPUT_UNKNOWN()
    if dtype is ir.DataType.DOUBLE:
        return OUTPUT_DOUBLE()
    word = dtype.name.lower()
    return (OUTPUT_INTEGER if dtype.is_integer() and dtype.is_signed() else OUTPUT_NOT_FLOAT32)(dtype=word)


def _reason(node: ir.Node, role: Role, *, whole: bool) -> Reason | None:
    if role is Role.LINEAR:
        return _linear_reason(node)
    if role is Role.ARITHMETIC:
        return _arithmetic_reason(node, whole=whole)
    # Targets differ in which of these share the grid of their input; what each can do does not.
    return _unary_reason(node) or _mover_reason(node)


def _linear_reason(node: ir.Node) -> Reason | None:
    weight = node.inputs[1]
    if not is_float32(node.inputs[0]):
        return OPERANDS_NOT_FLOAT32()
    if node.op_type == "MatMul" and is_float32(weight) and not is_constant(weight):
        return None
    return unusable_weight(weight)


def _arithmetic_reason(node: ir.Node, *, whole: bool) -> Reason | None:
    constants = [value for value in node.inputs if is_constant(value)]
    if constants and not whole:
        return CONSTANT_OPERAND()
    if len(constants) == len(node.inputs):
        return INPUT_CONSTANT()
    if not all(is_float32(value) for value in node.inputs):
        return OPERANDS_NOT_FLOAT32()
    return None if all(map(is_finite, constants)) else CONSTANT_NOT_FINITE()


def _unary_reason(node: ir.Node) -> Reason | None:
    if not is_float32(node.inputs[0]):
        return DATA_NOT_FLOAT32()
    if node.op_type == "Clip" and any(value is not None and not is_constant(value) for value in node.inputs[1:]):
        return LIMITS_NOT_CONSTANT()
    if node.op_type == "PRelu" and not is_finite(node.inputs[1]):
        return SLOPE_UNUSABLE()
    return None


def _mover_reason(node: ir.Node) -> Reason | None:
    if node.op_type == "AveragePool" and has_gaps(node):
        return POOL_DILATED()
    if node.op_type == "AveragePool" and counts_beyond(node):
        return POOL_COUNTS_BEYOND()
    filling = node.inputs[2] if node.op_type == "Pad" and len(node.inputs) > 2 else None
    if filling is not None and string_attribute(node, "mode", "constant") == "constant" and scalar(filling) != 0.0:
        return PADS_NONZERO()
    if node.op_type == "Resize" and string_attribute(node, "mode", "nearest") == "cubic":
        return CUBIC_RESIZE()
    return None


# Rule 3 of planning: elementwise, pooling and data-moving nodes are quantized only between quantized nodes.
#
# The border of a quantized region counts as one.

_FLOAT_ANYWAY = "Nothing: the network around it is in float anyway."
NOT_FED = declare("not-fed-by-quantized", "no quantized node feeds it", hint=_FLOAT_ANYWAY, by_design=True)
NOT_READ = declare("not-read-by-quantized", "no quantized node reads its result", hint=_FLOAT_ANYWAY, by_design=True)
_BOUNDED = (Role.ARITHMETIC, Role.UNARY, Role.TRANSPARENT)


def keep_only_between_quantized(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Take back decisions until every bounded node is fed and read by a quantized one.

    Decisions are only ever taken back, so the order does not change which remain; one sweep in either direction and
    then only the neighbours of what changed make it linear in the number of edges.
    """
    nodes, borders = list(graph), Borders(graph)
    waiting: dict[ir.Node, None] = {}
    for node in nodes:
        _judge(node, plan, graph, borders, waiting, sides=("fed",))
    for node in reversed(nodes):
        _judge(node, plan, graph, borders, waiting, sides=("read",))
    while waiting:
        changed, waiting = waiting, {}
        for node in changed:
            _judge(node, plan, graph, borders, waiting, sides=("fed", "read"))


def _judge(
    node: ir.Node,
    plan: QuantizationPlan,
    graph: ir.Graph,
    borders: Borders,
    waiting: dict[ir.Node, None],
    *,
    sides: tuple[str, ...],
) -> None:
    """Take the node back if it must be; its neighbours then wait to be judged."""
    entry = plan.nodes[node_name(node)]
    reason = None
    if "fed" in sides and entry.role in (*_BOUNDED, Role.FUSED) and not _fed(node, plan, borders):
        reason = NOT_FED()
    elif "read" in sides and entry.role in _BOUNDED:
        made = plan.carrier(node)
        reason = None if borders.leaves(made) or read_by_quantized(made, plan, graph) else NOT_READ()
    if reason is None:
        return
    entry.role, entry.reason = None, reason
    waiting.update((reader, None) for value in node.outputs for reader in users(value) if reader.graph is graph)
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        if producer is None:
            continue
        waiting[producer] = None
        # what is fused carries the result of the node before it
        before = producer.inputs[0].producer() if producer.inputs and producer.inputs[0] is not None else None
        if plan.nodes[node_name(producer)].role is Role.FUSED and before is not None:
            waiting[before] = None


def _fed(node: ir.Node, plan: QuantizationPlan, borders: Borders) -> bool:
    given = [value for value in node.inputs if value is not None and not is_constant(value)]
    return any(_entry(value, plan) or borders.enters(value, node) for value in given)


def _entry(value: ir.Value, plan: QuantizationPlan) -> NodePlan | None:
    producer = value.producer()
    entry = plan.nodes.get(node_name(producer)) if producer is not None else None
    return entry if entry is not None and entry.quantized else None


def read_by_quantized(value: ir.Value, plan: QuantizationPlan, graph: ir.Graph) -> bool:
    """True if a quantized node of ``graph`` reads ``value`` or another result of its producer."""
    producer = value.producer()
    outputs = producer.outputs if producer is not None else [value]
    return any(
        reader.graph is graph and plan.nodes[node_name(reader)].quantized
        for found in outputs
        for reader in users(found)
    )


# Nodes inside sub-graphs (bodies of If, Loop and Scan): what becomes of them.
#
# Their weights may be quantized, which asks for no data. Their activations stay in float: what a body computes never
# leaves it but as a result, as often as the body runs and in shapes that may differ each time, so that calibration,
# which reads tensors of the main graph, does not see it.

_UNROLL = "Export the model without control flow, for instance by unrolling its loops"
IN_FLOAT = declare(
    "in-subgraph",
    "nodes inside sub-graphs stay in float",
    hint=f"{_UNROLL}; or set subgraphs to weights, for modes static and weights_only.",
)
ACTIVATIONS_IN_FLOAT = declare(
    "activations-in-subgraph",
    "activations inside sub-graphs stay in float: calibration sees the main graph alone",
    hint=f"{_UNROLL}.",
)


def leave_subgraphs(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Enter the nodes of all sub-graphs into the plan as ones that stay in float."""
    for node in subgraph_nodes(graph):
        plan.nodes.setdefault(node_name(node), NodePlan(node_name(node), node.op_type, None, IN_FLOAT()))


def plan_subgraph_weights(graph: ir.Graph, plan: QuantizationPlan, selection: Selection, plan_log: PlanLog) -> None:
    """Quantize the weights that linear and recurrent nodes of sub-graphs read from the main graph.

    The weights were moved to the main graph, which is planned: its spec counts for a weight that both read.
    """
    for node in subgraph_nodes(graph):
        entry = plan.nodes[node_name(node)]
        recurrent = is_recurrent(node)
        if not recurrent and not is_linear(node):
            entry.reason = ACTIVATIONS_IN_FLOAT()
            continue
        weights = recurrent_weights(node) if recurrent else (node.inputs[1],)
        refused = (_not_a_weight(weight, graph) for weight in weights)
        entry.reason = selection.reason(node) or next(filter(None, refused), None)
        if entry.reason is None:
            (enter_recurrent if recurrent else plan_weight)(node, plan, selection, plan_log)
            entry.role, entry.activation_reason = Role.STORED, ACTIVATIONS_IN_FLOAT()


def _not_a_weight(weight: ir.Value | None, graph: ir.Graph) -> Reason | None:
    if is_float32(weight) and is_constant(weight) and weight is not None and weight.graph is not graph:
        return WEIGHT_NOT_CONSTANT()
    return unusable_weight(weight)


def common_home(graph: ir.Graph, readers: list[ir.Node]) -> ir.Graph:
    """Where to restore a weight: in the innermost graph that all readers see, but in no body that runs many times.

    A branch of an If that is not taken then costs nothing, and a loop restores the weight once.
    """
    if all(node.graph is graph for node in readers):
        return graph
    held_by = owners(graph)
    paths = [_path(node, graph, held_by) for node in readers]
    common: list[ir.Graph] = [
        steps[0] for steps in zip(*paths, strict=False) if all(step is steps[0] for step in steps)
    ]
    return common[-1]


def _path(node: ir.Node, graph: ir.Graph, held_by: dict[ir.Graph, ir.Node]) -> list[ir.Graph]:
    """The graphs around ``node`` from the main graph inwards, as far as each runs once at most."""
    inwards: list[ir.Graph] = []
    part = node.graph
    while isinstance(part, ir.Graph) and part is not graph:
        owner = held_by[part]
        inwards = [part, *inwards] if owner.op_type == "If" else []
        part = owner.graph
    return [graph, *inwards]
