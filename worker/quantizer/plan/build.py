"""Builds the plan: decides node by node, then tensor by tensor, before any range is known.

Rules, in order:
1. A node is a candidate if the target has an integer kernel for it, its tensors are float32 and the user did not
exclude it.
2. An activation function that alone reads a candidate's result is fused with it, and so is a limit per channel
behind it: the Q/DQ pair stands behind both.
3. Elementwise, pooling and data-moving nodes are quantized only between quantized nodes; chains that begin or end in
float (normalization, softmax, residual streams of transformers) keep their precision and gain nothing from integers.
4. Data-moving nodes share one grid between input and output.
5. MatMul, Gemm and a Conv over a single position (a classifier's head) whose result only float nodes read return
float: the scores keep their full precision, without ties. On targets whose kernels can, all weighted layers do.
6. Behind an integer tensor, a node that only moves values moves integers even if float nodes read its result: nothing
is lost, and less is moved. onnxruntime would do so by itself, but fails at it for int8 from opset 21 on.
7. In a model with quantized regions nodes outside of them stay in float, nothing is fused across a border, and rules 3
and 5 take the border for a quantized node: what enters and what leaves has a Q/DQ pair.

For a target that wants the whole network in integers rules 3, 5 and 6 do not count, constant operands are quantized,
and an activation function that no node takes in is quantized by itself. The target's own rules run on the roles after
rule 1, and on the specs at the end.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.reason import Reason, declare
from service.contracts.specs import (
    ActivationDtype,
    ActivationSpec,
    MinMaxCalibration,
    NonOverflowCalibration,
    WeightSpec,
    bits_of,
    is_block,
    is_integer,
)
from worker.quantizer.graph.metadata import ACROSS_BORDER, Borders, NodeFacts, apart
from worker.quantizer.graph.values import (
    is_constant,
    is_float32,
    name_of,
    node_name,
    users,
)
from worker.quantizer.numerics.blocks import BLOCK_FORMATS
from worker.quantizer.numerics.integer import PER_TENSOR
from worker.quantizer.plan.candidates import (
    candidate,
    keep_only_between_quantized,
    leave_subgraphs,
    may_return_float,
    plan_subgraph_weights,
    read_by_quantized,
)
from worker.quantizer.plan.grids import belongs_before, plan_parameters
from worker.quantizer.plan.selection import Matcher, Selection
from worker.quantizer.plan.stored_weights import plan_embeddings, plan_recurrent, recurrence_in_float
from worker.quantizer.plan.targets import TARGETS
from worker.quantizer.plan.types import (
    ActivationPlan,
    NodePlan,
    PlanLog,
    QuantizationPlan,
    Role,
    RuleContext,
    Stage,
    Target,
    WeightPlan,
)

# The type of 16 bits in the place of one of 8.
WIDER: dict[str, ActivationDtype] = {"int8": "int16", "uint8": "uint16"}

OWNER_IN_FLOAT = declare("owner-in-float", "the node that it belongs to stays in float")
NO_TAKER = declare(
    "no-node-takes-it-in",
    "no quantized node before it takes {op_type} in",
    hint="Let the activation function follow a convolution directly.",
)
NOT_TAKEN_IN_THIS_FORM = declare("form-not-taken-in", "the node before it does not take this {op_type} in")
INPUT_READ_ELSEWHERE = declare(
    "input-read-elsewhere",
    "its input is read elsewhere too, so the node before it cannot take it in",
    hint="Read the result of the activation function in both places.",
)


def build_plan(
    graph: ir.Graph, config: QuantizationConfig, facts: NodeFacts, plan_log: PlanLog | None = None
) -> QuantizationPlan:
    """The plan for a prepared graph, without ranges and integers.

    The graph is edited for the target; ``plan_log`` takes what the reader of the report should know. Returns a plan
    with a NodePlan for every node, sub-graph nodes included.
    """
    plan_log = PlanLog() if plan_log is None else plan_log
    target = TARGETS[config.target]
    selection = Selection(config, Matcher(graph, facts.op_types))
    plan = QuantizationPlan(integer_limits=target.integer_limits)
    for node in graph:
        role, reason = candidate(node, target, selection, facts)
        plan.nodes[node_name(node)] = NodePlan(node_name(node), node.op_type, role, reason)
    leave_subgraphs(graph, plan)
    context = RuleContext(graph, plan, config, plan_log)
    target.run(Stage.NODES, context)
    _fuse_activations(graph, plan, target, selection, facts)
    movers = {
        name
        for name, entry in plan.nodes.items()
        if entry.op_type in target.lossless and entry.role is Role.TRANSPARENT
    }
    if not target.whole:
        keep_only_between_quantized(graph, plan)
    _plan_tensors(graph, plan, selection, movers, target, plan_log)
    widen(plan, facts)
    if not target.whole:  # which run all of a layer on integers or none of it
        plan_recurrent(graph, plan, selection, plan_log, why_float=recurrence_in_float(target.name))
    target.run(Stage.SPECS, context)
    if not target.whole:  # which want the same type everywhere, and take floats where a host looks rows up
        plan_embeddings(graph, plan, selection, plan_log)
    if config.subgraphs == "weights":  # runs in float wherever it runs, so that the target's rules do not concern it
        plan_subgraph_weights(graph, plan, selection, plan_log)
    return plan


def _fuse_activations(
    graph: ir.Graph, plan: QuantizationPlan, target: Target, selection: Selection, facts: NodeFacts
) -> None:
    for node in graph:
        entry = plan.nodes[node_name(node)]
        if node_name(node) in facts.simulated:
            _fuse_simulated(node, entry, plan)
        elif belongs_before(node, plan) and selection.excluded(node) is None:
            entry.role, entry.reason = Role.FUSED, None
        elif entry.role is Role.UNARY and node.op_type in target.fusible:
            reason = _not_taken_in(node, plan, target, facts)
            if reason is None:
                entry.role = Role.FUSED
            elif not target.whole:
                entry.role, entry.reason = None, reason


def _fuse_simulated(node: ir.Node, entry: NodePlan, plan: QuantizationPlan) -> None:
    """A factor that belongs to the node before it goes where that node goes."""
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    before = plan.nodes[node_name(producer)] if producer is not None else None
    entry.role = Role.FUSED if before is not None and before.quantized else None
    entry.reason = None if entry.quantized else OWNER_IN_FLOAT()


def _not_taken_in(node: ir.Node, plan: QuantizationPlan, target: Target, facts: NodeFacts) -> Reason | None:
    """Why no node before this one takes it in; None if one does."""
    value = node.inputs[0]
    producer = value.producer() if value is not None else None
    if producer is not None and node_name(producer) in facts.simulated and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    before = plan.nodes.get(node_name(producer)) if producer is not None else None
    if value is None or before is None or not before.quantized or before.op_type not in target.takes_in:
        return NO_TAKER(op_type=node.op_type)
    if producer is not None and apart((producer, node)):
        return ACROSS_BORDER()
    if not target.fuses(node):
        return NOT_TAKEN_IN_THIS_FORM(op_type=node.op_type)
    if len(users(value)) > 1 or value.is_graph_output():
        return INPUT_READ_ELSEWHERE()
    return None


def _plan_tensors(
    graph: ir.Graph,
    plan: QuantizationPlan,
    selection: Selection,
    movers: set[str],
    target: Target,
    plan_log: PlanLog,
) -> None:
    source: dict[str, str] = {}
    specs: dict[str, ActivationSpec] = {}
    borders = Borders(graph)
    for node in graph:
        entry = plan.nodes[node_name(node)]
        if entry.role is None and entry.name in movers and _comes_as_integers(node.inputs[0], plan, source):
            entry.role, entry.reason = Role.TRANSPARENT, None
        if entry.role is None:
            continue
        if entry.role is not Role.LINEAR:
            _plan_constants(node, entry.role, plan, selection)
        if entry.role is Role.FUSED:
            continue
        inputs = _activation_inputs(node, entry.role)
        for value in inputs:
            if name_of(value) not in source:  # a graph input, or the result of a float node
                source[name_of(value)] = name_of(value)
                specs[name_of(value)] = selection.activation(node)
        if entry.role is Role.TRANSPARENT:
            root = source[name_of(inputs[0])]
            for value in (plan.carrier(node), *node.outputs[1:]):
                if value.name and is_float32(value):
                    source[value.name] = root
        else:
            result = plan.carrier(node)
            gives_float = entry.role is Role.LINEAR and target.float_results
            may = not target.whole and (may_return_float(node) or gives_float)
            if not may or borders.leaves(result) or read_by_quantized(result, plan, graph):
                source[name_of(result)] = name_of(result)
                specs[name_of(result)] = selection.activation(node)
        if entry.role is Role.LINEAR:
            plan_parameters(node, plan, selection, plan_log)
    specs |= _wanted_by_readers(graph, plan, selection, source, plan_log)
    for tensor, root in source.items():
        plan.activations[tensor] = ActivationPlan(tensor, root, specs[root])


def widen(plan: QuantizationPlan, facts: NodeFacts) -> None:
    """Give tensors and weights that an algorithm has chosen more bits; the target's rules may take them back.

    Weights become int8 around zero, whatever they were: kernels of 8 bits want that, and there it costs little.
    """
    for entry in plan.activations.values():
        if entry.source in facts.widened and entry.spec.dtype in WIDER:
            entry.spec = entry.spec.model_copy(update={"dtype": WIDER[entry.spec.dtype]})
    for weight in plan.weights.values():
        if weight.initializer in facts.widened and can_widen(weight):
            weight.spec = weight.spec.model_copy(update={"dtype": "int8", "symmetric": True})


def can_widen(weight: WeightPlan) -> bool:
    """True for weights that ``widen`` gives 8 bits: integers of fewer, without blocks."""
    spec = weight.spec
    return is_integer(spec.dtype) and bits_of(spec.dtype) < 8 and spec.granularity != "per_block"


def _wanted_by_readers(
    graph: ir.Graph, plan: QuantizationPlan, selection: Selection, source: Mapping[str, str], plan_log: PlanLog
) -> dict[str, ActivationSpec]:
    """Specs by source tensor that nodes ask for in what they read; the first reader's counts."""
    wanted: dict[str, ActivationSpec] = {}
    for node in graph:
        entry = plan.nodes[node_name(node)]
        spec = selection.input_activation(node)
        if spec is None or entry.role in (None, Role.FUSED):
            continue
        for value in _activation_inputs(node, entry.role):
            root = source[name_of(value)]
            if wanted.setdefault(root, spec) != spec:
                told = f"not the input_activation of {entry.name!r} counts"
                plan_log.note(f"tensor {name_of(value)!r} has other readers: {told}")
    return wanted


def _plan_constants(node: ir.Node, role: Role, plan: QuantizationPlan, selection: Selection) -> None:
    """Constant operands of an elementwise node are stored like weights, in the type of activations."""
    if role is Role.ARITHMETIC:
        operands = list(node.inputs)
    elif node.op_type == "PRelu":
        operands = list(node.inputs[1:2])
    else:
        return
    spec = selection.activation(node)
    for value in operands:
        if value is None or not is_constant(value) or name_of(value) in plan.weights:
            continue
        if is_block(spec.dtype) and not value.shape:
            continue  # one number has no axis for a block to run along
        stored = WeightSpec(
            dtype=spec.dtype,
            symmetric=spec.symmetric,
            scale=spec.scale,
            granularity="per_tensor",
            calibration=NonOverflowCalibration() if spec.scale == "power_of_two" else MinMaxCalibration(),
        )
        blocks = BLOCK_FORMATS[spec.dtype].granularity(-1) if is_block(spec.dtype) else PER_TENSOR
        plan.weights[name_of(value)] = WeightPlan(name_of(value), node_name(node), stored, blocks)


def _comes_as_integers(value: ir.Value | None, plan: QuantizationPlan, source: Mapping[str, str]) -> bool:
    producer = value.producer() if value is not None else None
    if value is None or producer is None or value.name not in source:
        return False
    return plan.nodes[node_name(producer)].quantized


def _activation_inputs(node: ir.Node, role: Role) -> list[ir.Value]:
    if role is Role.ARITHMETIC:
        return [value for value in node.inputs if value is not None and not is_constant(value)]
    first = [value for value in node.inputs[:1] if value is not None]
    if node.op_type == "MatMul" and node.inputs[1] is not None and not is_constant(node.inputs[1]):
        return [*first, node.inputs[1]]
    return first
