"""Which nodes compute in float16, beside quantized ones or all alike: by range, and by what the runtime runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

from service.contracts.errors import EngineError, UnsupportedModelError
from service.contracts.reason import Reason, declare
from worker.quantizer.data import choose_batch_size
from worker.quantizer.emit.float16 import can_turn, float_constants, handed_on
from worker.quantizer.graph.rewriting import rank_of
from worker.quantizer.graph.values import (
    constant,
    float_attribute,
    is_constant,
    is_float32,
    name_of,
    node_name,
    string_attribute,
)
from worker.quantizer.numerics.integer import FAINT_HALF, LARGEST_HALF, exceeds_half, fades_in_half, holds_in_half
from worker.quantizer.ops.table import Float16, operator
from worker.quantizer.refine.draft import Case
from worker.quantizer.refine.values import floors
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.faults import culprit_among
from worker.quantizer.runtime.session import Session, is_large
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.ranges import Extents

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
CONSTANT_BEYOND_HALF = declare("constant-beyond-float16", "a constant of it lies beyond 65504, where float16 ends")
BELOW_HALF = declare(
    "below-float16",
    "what it reads or makes does not exceed {largest:.3g}, where float16 has hardly a digit left",
    hint="Scale the tensor up in the model, or leave the node in float32.",
)
CONSTANT_BELOW_HALF = declare("constant-below-float16", "a constant of it is too small for float16, which makes it 0")
FLOOR_BEYOND_HALF = declare(
    "floor-beyond-float16",
    "of a row of zeros it would read or make {value:.3g}, which float16 does not hold",
    hint="Guard with a larger term: 1e-6 and more float16 holds.",
)
FATAL_FUSION = declare(
    "fatal-float16-fusion",
    "onnxruntime would merge it with the MatMul behind it, and fail at that in float16",
    hint="Transpose behind the MatMul, or leave the node in float32.",
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
    observers = {name_of(value): Extents() for value in read if _is_activation(value)}
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


def _is_activation(value: ir.Value) -> bool:
    return is_float32(value) and bool(value.name) and not is_constant(value)


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
    batch = next(iter(case.calibration.batches(case.inputs, size, limit=1)), None)
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
