"""Nodes that no grid of integers suits, by the values they see: masks, divisors, small terms that decide.

A mask of -1e4 takes all but one of the steps of a grid, and -Inf has none. A divisor that is rounded to 0 makes Inf of
what is finite. A tensor that is empty on all data has no range at all. Such nodes stay in float; only where the graph
may hold such a thing are values looked at, in a pass of its own before the plan is filled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

from service.contracts.errors import EngineError, UnsupportedModelError
from service.contracts.reason import Reason, declare
from service.contracts.specs import bits_of, is_integer
from worker.quantizer.data import choose_batch_size
from worker.quantizer.emit.float16 import can_turn, float_constants, handed_on
from worker.quantizer.graph.rewriting import rank_of, scalar
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    constant,
    float_attribute,
    is_constant,
    is_float32,
    name_of,
    node_name,
    string_attribute,
)
from worker.quantizer.numerics.integer import FAINT_HALF, LARGEST_HALF, exceeds_half, fades_in_half, holds_in_half
from worker.quantizer.ops.table import Family, Float16, operator
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.faults import culprit_among
from worker.quantizer.runtime.session import Session, is_large
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.ranges import Extent, Extents, extent_of

MASKED = declare(
    "masked",
    ('its values reach {largest}, which means "none" (a mask, a fill value): integers would lose all other values'),
    hint="Mask with a small number relative to the scores, such as -20.",
)
NO_VALUES = declare(
    "no-values", "a tensor that it reads or makes is empty on all calibration data", hint="Add data that fills it."
)
DIVISOR = declare(
    "divisor",
    "integers would round the divisor {tensor} to 0: it goes down to {smallest}, and up to {largest}",
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


# Which nodes compute in float16, beside quantized ones or all alike: by range, and by what the runtime runs.

# Transposes that onnxruntime 1.31 must not find in float16.
#
# It fuses a Transpose that moves the first axis to the place before the last, or to the end, with the MatMul that reads
# it; where the other factor has another rank, and a Cast to float32 lies between, it then reads beyond a shape, and the
# process dies (matmul_transpose_fusion.cc). Where the Transpose is float32, no Cast lies there.
_BETWEEN = ("Cast", "Identity")


def fatal_transposes(graph: ir.Graph) -> set[str]:
    """Names of such nodes of the main graph: a MatMul's operand is one of them, or several are merged into one."""
    found: set[str] = set()
    for node in graph:
        if node.op_type == "MatMul":
            for value, other in zip(node.inputs, reversed(node.inputs), strict=True):
                found.update(node_name(transpose) for transpose in _fatal(value, rank_of(other)))
    return found


def _fatal(value: ir.Value | None, other_rank: int | None) -> list[ir.Node]:
    """Those that follow one another before a factor, as far back as they do such a thing together."""
    fatal, chain, together = list[ir.Node](), list[ir.Node](), list[int]()
    while value is not None and (maker := value.producer()) is not None:
        if maker.op_type == "Transpose":
            chain.append(maker)
            order = _order(maker)
            together = [order[axis] for axis in together] if len(together) == len(order) else order
            if _moves_first(together) and other_rank != len(together):
                fatal = list(chain)
        elif maker.op_type not in _BETWEEN:
            break
        value = maker.inputs[0]
    return fatal


def _order(transpose: ir.Node) -> list[int]:
    given = transpose.attributes.get("perm")
    return list(given.as_ints()) if given is not None else list(reversed(range(rank_of(transpose.inputs[0]) or 0)))


def _moves_first(order: list[int]) -> bool:
    rank = len(order)
    return rank > 2 and order in ([*range(1, rank - 1), 0, rank - 1], [*range(1, rank), 0])


NO_FLOAT16_KERNEL = declare("no-float16-kernel", "{op_type} has no float16 kernel")
NO_FLOAT32 = declare("computes-no-float32", "it computes no float32")
NO_HALF_FORM = declare("no-float16-form", "{op_type} has no form that makes float16 of what it reads")
BEYOND_HALF = declare(
    "beyond-float16",
    "what it reads or makes reaches {largest:.3g}, and float16 ends at 65504",
    hint="Scale the tensor down in the model, or leave the node in float32.",
)
CONSTANT_BEYOND_HALF = declare("constant-beyond-float16", "one of its constants is beyond 65504, the largest float16")
BELOW_HALF = declare(
    "below-float16",
    "its inputs or outputs do not exceed {largest:.3g}, where float16 loses almost all precision",
    hint="Scale the tensor up in the model, or leave the node in float32.",
)
CONSTANT_BELOW_HALF = declare("constant-below-float16", "a constant of it is too small for float16, which makes it 0")
FLOOR_BEYOND_HALF = declare(
    "floor-beyond-float16",
    "for a row of zeros it would read or compute {value:.3g}, which float16 cannot represent",
    hint="Guard with a larger term: float16 represents 1e-6 and more.",
)
FATAL_FUSION = declare(
    "fatal-float16-fusion",
    "onnxruntime would merge it with the MatMul after it, and fails at that in float16",
    hint="Transpose after the MatMul, or leave the node in float32.",
)
REFUSED_AS_HALF = declare("refused-as-float16", "onnxruntime does not run it in float16: {words}")
_MOST_REFUSALS = 32


def opset_of_graph(graph: ir.Graph) -> int:
    """Of the default domain."""
    return graph.opset_imports.get("", 0)


def kept_wide(graph: ir.Graph) -> dict[str, Reason]:
    """By node of the main graph that cannot compute in float16: why, told by the graph alone."""
    opset, handed, at_zero = opset_of_graph(graph), handed_on(graph), floors(graph)
    fatal = fatal_transposes(graph)
    found = {}
    for node in graph:
        reason = _no_form(node, opset)
        if reason is None and handed.intersection(node.outputs):
            reason = NO_HALF_FORM(op_type=node.op_type)
        lost = [at_zero[value] for value in (*node.inputs, *node.outputs) if value in at_zero]
        lost = [number for number in lost if not holds_in_half(number)]
        if reason is None and node_name(node) in fatal:
            reason = FATAL_FUSION()
        if reason is None and lost:
            reason = FLOOR_BEYOND_HALF(value=lost[0])
        if reason is not None:
            found[node_name(node)] = reason
    return found


def _no_form(node: ir.Node, opset: int) -> Reason | None:
    if not any(is_float32(value) for value in node.outputs):
        return NO_FLOAT32()
    reducing = (
        operator(node.op_type).float16 is Float16.UNREDUCED and string_attribute(node, "reduction", "none") != "none"
    )
    if node.op_type in DEFAULT_OP_BLOCK_LIST or reducing:
        return NO_FLOAT16_KERNEL(op_type=node.op_type)
    if not can_turn(node, opset):
        return NO_HALF_FORM(op_type=node.op_type)
    constants = float_constants(node)
    if any(map(exceeds_half, constants)):
        return CONSTANT_BEYOND_HALF()
    return CONSTANT_BELOW_HALF() if any(map(fades_in_half, constants)) or _faint_variance(node) else None


def _faint_variance(node: ir.Node) -> bool:
    """True if a channel's variance, which is divided by, is one that float16 does not hold."""
    variance = constant(node.inputs[4]) if node.op_type == "BatchNormalization" else None
    if variance is None:
        return False
    exact = variance.astype(np.float64) + float_attribute(node, "epsilon", 1e-5)
    return bool((np.abs(variance - variance.astype(np.float16)) > 0.02 * np.abs(exact)).any())


def out_of_range(model: ir.Model, nodes: Iterable[ir.Node], case: Case, services: Services) -> dict[str, Reason]:
    """By node that reads or makes values that float16 does not hold on the calibration data: why it stays in float32.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    nodes = list(nodes)
    read = {value for node in nodes for value in (*node.inputs, *node.outputs) if value is not None}
    activations = (value for value in read if is_float32(value) and value.name and not is_constant(value))
    observers = {name_of(value): Extents() for value in activations}
    requests = [Request(name, observer) for name, observer in sorted(observers.items())]
    if requests:
        case.collect(model, requests, services)
    largest = {name: observer.result().largest for name, observer in observers.items()}
    reasons = {}
    for node in nodes:
        reached = [largest.get(value.name or "", 0.0) for value in (*node.inputs, *node.outputs) if value is not None]
        faint = [reach for reach in reached if 0.0 < reach < FAINT_HALF]
        if max(reached, default=0.0) > LARGEST_HALF:
            reasons[node_name(node)] = BEYOND_HALF(largest=max(reached))
        elif faint:
            reasons[node_name(node)] = BELOW_HALF(largest=max(faint))
    return reasons


def refused(
    make: Callable[[set[str]], ir.Model], float16_nodes: set[str], case: Case, services: Services
) -> dict[str, Reason]:
    """By node that the runtime does not run in float16: why; one after the other, each time on one sample.

    ``make`` gives the model with these nodes, by name, in float16.

    Raises:
        EngineError, UnsupportedModelError: the runtime fails at something else.
        CanceledError: the run was canceled.
    """
    size = choose_batch_size(case.inputs, case.calibration, 1)
    batch = next(iter(case.calibration.batches(case.inputs, size, samples=range(1))), None)
    found: dict[str, Reason] = {}
    while True:
        services.run.check()
        model = make(float16_nodes - found.keys())
        try:
            session = Session(model, threads=services.threads, what="quantized model", optimized=not is_large(model))
            if batch is not None:
                session.run(batch.feeds)
        except (EngineError, UnsupportedModelError) as error:
            culprit = culprit_among(error, float16_nodes - found.keys())
            if culprit is None or len(found) == _MOST_REFUSALS:
                raise
            found[culprit.node] = REFUSED_AS_HALF(words=culprit.words)
        else:
            return found
