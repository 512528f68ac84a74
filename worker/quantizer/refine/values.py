"""Nodes that no grid of integers suits, by the values that they see: masks before a Softmax, divisors, nothing.

A mask of -1e4 takes all but one of the steps of a grid, and -Inf has none. A divisor that is rounded to 0 makes Inf of
what is finite. A tensor that is empty on all data has no range at all. Such nodes stay in float; only where the graph
may hold such a thing are values looked at, in a pass of its own before the plan is filled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from service.contracts.specs import bits_of, is_integer
from worker.quantizer.graph.rewriting import scalar
from worker.quantizer.graph.values import DEFAULT_DOMAINS, constant, is_constant, is_float32, name_of, node_name
from worker.quantizer.ops.table import Family, operator
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.run.services import Services
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.ranges import Extent, Extents, extent_of

MASKED = declare(
    "masked",
    "its values reach {largest}, which stands for none (a mask, a filling): integers would keep nothing of the others",
    hint="Mask with a number that is small beside the scores, such as -20.",
)
NO_VALUES = declare(
    "no-values", "a tensor that it reads or makes is empty on all calibration data", hint="Add data that fills it."
)
DIVISOR = declare(
    "divisor",
    "integers would round {tensor}, by which is divided, to 0: it goes down to {smallest}, and up to {largest}",
    hint="Limit it from below, by a Clip or a larger epsilon.",
)


def settle_values(draft: Draft, case: Case, services: Services) -> Draft:
    """The draft, or one with such nodes in float.

    The draft is planned, without numbers.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    graph, plan = draft.graph, draft.plan
    if case.config.mode != "static":  # others have no grids of activations before they run
        return draft
    masking = _before_softmax(graph, plan) | _behind_filling(graph, plan)
    doubtful = _of_uncertain_size(graph, plan, case)
    divisors = _divisors(graph, plan)
    watched = {value for node in (*masking, *doubtful) for value in _floats(node)} | set(divisors)
    seen = {name_of(value): Extents() for value in watched if not is_constant(value)}
    if not seen:
        return draft
    with services.stages.stage("statistics"):
        case.collect(draft.prepared.model, [Request(name, seen[name]) for name in sorted(seen)], services)
    extents = {name: observer.result() for name, observer in seen.items()}
    reasons = {node_name(node): reason for node in masking if (reason := _masked(node, masking, extents))}
    for node in doubtful:
        if any(extents[name_of(value)].is_empty for value in _floats(node) if not is_constant(value)):
            reasons[node_name(node)] = NO_VALUES()
    for value, nodes in divisors.items():
        reason = _rounded_to_zero(value, extents[name_of(value)], plan)
        reasons |= {} if reason is None else {node_name(node): reason for node in nodes}
    if not reasons:
        return draft
    facts = draft.prepared.facts.with_kept_float(reasons)
    return draft.replanned(case.config, replace(draft.prepared, facts=facts))


def _before_softmax(graph: ir.Graph, plan: QuantizationPlan) -> set[ir.Node]:
    """Softmax nodes and what a mask passes on its way there, where any of these is to be quantized."""
    found: set[ir.Node] = set()
    for softmax in graph:
        if operator(softmax.op_type).family is not Family.SOFTMAX or softmax.domain not in DEFAULT_DOMAINS:
            continue
        way, ahead = {softmax}, [softmax]
        while ahead:
            makers = (value.producer() for value in ahead.pop().inputs if is_float32(value) and value is not None)
            new = {node for node in makers if node is not None and operator(node.op_type).carries and node not in way}
            way |= new
            ahead += new
        if any(plan.nodes[node_name(node)].quantized for node in way):
            found |= way
    return found


def _behind_filling(graph: ir.Graph, plan: QuantizationPlan) -> set[ir.Node]:
    """Nodes that a large filling of a Pad passes, or that take it away, where any of these is to be quantized."""
    filled: set[ir.Value] = set()
    found: list[ir.Node] = []
    for node in graph:
        filling = scalar(node.inputs[2]) if node.op_type == "Pad" and len(node.inputs) > 2 else None
        if (filling is not None and extent_of(np.asarray(filling)).has_sentinel) or filled.intersection(node.inputs):
            found.append(node)
            if operator(node.op_type).carries or node.op_type in ("MaxPool", "Pad"):
                filled.update(node.outputs)
    return set(found) if any(plan.nodes[node_name(node)].quantized for node in found) else set()


def _masked(node: ir.Node, masking: set[ir.Node], extents: dict[str, Extent]) -> Reason | None:
    """Why a node on the way to a Softmax stays in float; None if it meets no sentinel."""
    values = [
        value for value in _floats(node) if operator(node.op_type).family is not Family.SOFTMAX or value in node.inputs
    ]
    for value in values:
        array = constant(value)
        extent = extents[name_of(value)] if array is None else extent_of(array)
        if extent.has_sentinel:
            return MASKED(largest="Inf" if extent.infinite else f"{extent.largest:.3g}")
    return None


def _divisors(graph: ir.Graph, plan: QuantizationPlan) -> dict[ir.Value, list[ir.Node]]:
    """Quantized tensors by which is divided, or of which a logarithm is taken, with the nodes that round them."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in graph:
        place = operator(node.op_type).divisor if node.domain in DEFAULT_DOMAINS else None
        value = node.inputs[place] if place is not None else None
        if value is None or is_constant(value) or value.name not in plan.activations:
            continue
        if node.op_type == "Pow" and (scalar(node.inputs[1]) or 0.0) >= 0.0:
            continue
        nodes, ahead = [node], value.producer()
        while ahead is not None:
            nodes.append(ahead)
            moves = plan.role_of(ahead) in (Role.TRANSPARENT, Role.FUSED) and ahead.inputs[0] is not None
            ahead = ahead.inputs[0].producer() if moves and ahead.inputs[0] is not None else None
        found.setdefault(value, []).extend(nodes)
    return found


def _rounded_to_zero(value: ir.Value, extent: Extent, plan: QuantizationPlan) -> Reason | None:
    """Why nodes round no such divisor; None if its grid keeps what is smallest, or it is not on integers."""
    dtype = plan.activations[name_of(value)].spec.dtype
    if not is_integer(dtype) or extent.is_empty or not np.isfinite(extent.smallest):
        return None
    step = (max(extent.maximum, 0.0) - min(extent.minimum, 0.0)) / (2 ** bits_of(dtype) - 1)
    if extent.smallest > step:  # known down to a factor of 2; a grid may be coarser by as much
        return None
    return DIVISOR(tensor=name_of(value), smallest=f"{extent.smallest:.3g}", largest=f"{extent.largest:.3g}")


def _of_uncertain_size(graph: ir.Graph, plan: QuantizationPlan, case: Case) -> list[ir.Node]:
    """Quantized nodes behind operators that select values, and behind inputs that the data leaves empty."""
    arrays = case.calibration.summary.arrays
    uncertain = {
        value
        for value in graph.inputs
        if value.name in arrays and 0 in (arrays[value.name].shape[1:] + (arrays[value.name].shortest or ()))
    }
    found = []
    for node in graph:
        if operator(node.op_type).size_by_values or uncertain.intersection(node.inputs):
            uncertain.update(node.outputs)
            if plan.nodes[node_name(node)].quantized:
                found.append(node)
    return found


def _floats(node: ir.Node) -> Iterable[ir.Value]:
    values = (value for value in (*node.inputs, *node.outputs) if value is not None and value.name)
    return [value for value in values if is_float32(value)]


# What a network computes of rows of zeros: a small term under a root, a logarithm or a division decides there alone.
#
# Calibration data need not hold such a row, and the run does: padding, silence, a black picture.

# Larger ones are no guard against 0.
_LARGEST_FLOOR = 2.0**-8


def floors(graph: ir.Graph) -> dict[ir.Value, float]:
    """By value of the main graph that hangs on such a term alone where its input is 0: what it then is."""
    found: dict[ir.Value, float] = {}
    for node in graph:
        if node.domain in DEFAULT_DOMAINS and node.inputs and node.inputs[0] is not None:
            floor = _floor(node, found)
            if floor is not None and math.isfinite(floor):
                found[node.outputs[0]] = floor
    return found


def _floor(node: ir.Node, known: dict[ir.Value, float]) -> float | None:
    """What the node makes where the input of a guard before it, or its own, is 0."""
    numbers = [None if value is None else known.get(value, _constant(value)) for value in node.inputs[:2]]
    first, second = numbers[0], numbers[1] if len(numbers) > 1 else None
    fed = [value for value in node.inputs if value is not None and value in known]
    if not fed:
        term = second if first is None else first
        guards = node.op_type in ("Add", "Max", "Clip") and term is not None and 0.0 < term <= _LARGEST_FLOOR
        return term if guards else None
    if operator(node.op_type).keeps_values:
        return first
    if first is not None and first > 0.0 and node.op_type in ("Sqrt", "Reciprocal"):
        return math.sqrt(first) if node.op_type == "Sqrt" else 1.0 / first
    if first is None or second is None:
        return None
    if node.op_type == "Pow" and first > 0.0:
        with np.errstate(all="ignore"):
            return float(np.float64(first) ** second)
    if node.op_type == "Div" and second:
        return first / second
    return first * second if node.op_type == "Mul" else None


def _constant(value: ir.Value) -> float | None:
    found = scalar(value) if is_constant(value) else None
    return None if found is None else float(found)
