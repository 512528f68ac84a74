"""Heads that lose their meaning in integers stay in float.

A head is what no MatMul, Gemm or convolution comes after. Three forms are told by the graph alone:
- scores: exp(x + step) = exp(x) * exp(step), so behind a Sigmoid, Softmax or Exp one rounding step of its input is a
  relative error of the score, the same for scores of 0.001 and of 0.9;
- boxes beside scores: a Concat of results within [0, 1] with others of any size puts both on the grid of the larger;
- detection: what comes after the last weighted layer of a detector turns its results into boxes: it adds grids or
  anchors of hundreds, takes Exp of sizes, multiplies scores with each other, joins boxes with scores. One 8-bit scale
  over coordinates and scores leaves neither: its step is pixels wide for boxes and larger than a score. Told by
  NonMaxSuppression; a constant that differs from position to position, added to or multiplied with what stands beside
  scores; an Exp that is no part of a softmax, whose result is multiplied; scores within [0, 1] multiplied with each
  other. It stays in float from the last weighted layer on.

Boxes that leave the network as its last layer made them are results like others: in float that layer costs time and
gains nothing (0.2 dB and less on real detectors).
The mean over the bins of a softmax (Li et al. 2020, Generalized Focal Loss) is a weighted layer by its operator alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.graph.rewriting import producer, static_shape
from worker.quantizer.graph.values import constant, is_constant, node_name, users
from worker.quantizer.ops.channels import MOVERS, moved_from
from worker.quantizer.ops.linear import LINEAR
from worker.quantizer.ops.table import Family, named, operator
from worker.quantizer.plan.candidates import may_return_float
from worker.quantizer.plan.types import Decision, Role, RuleContext

_SCORES = named(lambda record: record.within_one)
_KEEP = "Switch the target option float_heads off to quantize it anyway."
MIXED_HEAD = declare(
    "scores-beside-others", "it concatenates scores within [0, 1] with results of any size", hint=_KEEP
)
MAKES_SCORES = declare(
    "makes-scores", "it makes scores: {op_type} turns a rounding step into a relative error", hint=_KEEP
)


def find_heads(graph: ir.Graph) -> set[ir.Node]:
    """Nodes that no linear node comes after, and whose result reaches a graph output.

    On its way there it is only moved, joined with others, or combined with constants.
    """
    before_linear: set[ir.Node] = set()
    leading_out: set[ir.Node] = set()
    for node in reversed(list(graph)):
        readers = [reader for value in node.outputs for reader in users(value)]
        if any(reader.op_type in LINEAR or reader in before_linear for reader in readers):
            before_linear.add(node)
        elif any(value.is_graph_output() for value in node.outputs) or any(
            reader in leading_out and _hands_on(reader) for reader in readers
        ):
            leading_out.add(node)
    return leading_out


def _hands_on(node: ir.Node) -> bool:
    """True if the result is the operand, moved, joined with others, or combined with constants."""
    if node.op_type in MOVERS or node.op_type == "Concat":
        return True
    return operator(node.op_type).family is Family.ARITHMETIC and any(is_constant(value) for value in node.inputs)


def float_mixed_heads(context: RuleContext) -> Iterator[Decision]:
    """Leave a Concat of scores with anything else in float, and what only moves its result."""
    heads = find_heads(context.graph)
    for node in context.graph:
        entry = context.plan.nodes[node_name(node)]
        if node.op_type == "Concat" and node in heads and entry.quantized:
            operands = [value for value in node.inputs if value is not None and value.producer() is not None]
            bounded = [producer(moved_from(value), *_SCORES) is not None for value in operands]
            if any(bounded) and not all(bounded):
                yield context.leave_in_float(node, MIXED_HEAD(), "float_heads", "on one grid the scores would vanish")


def float_scores(context: RuleContext) -> Iterator[Decision]:
    """Of what makes scores, convolutions compute in float: no integer kernel of theirs returns it, as others do."""
    heads = find_heads(context.graph)
    for node in context.graph:
        if not operator(node.op_type).exponential or node not in heads or node.inputs[0] is None:
            continue
        value = moved_from(node.inputs[0])
        origin = value.producer() if value is not None else None
        entry = context.plan.nodes.get(node_name(origin)) if origin is not None else None
        if origin is None or entry is None or entry.role is not Role.LINEAR or may_return_float(origin):
            continue
        why = f"{node.op_type} makes scores of its result"
        yield context.leave_in_float(origin, MAKES_SCORES(op_type=node.op_type), "float_heads", why)


DETECTION_HEAD = declare(
    "detection-head",
    "it belongs to a detection head: {why}",
    hint=_KEEP,
)
_NMS = "boxes are suppressed by their overlap"
_GRID = "a grid or anchors are put to its result"
_SIZES = "Exp makes sizes of its result"
_PRODUCT = "scores are multiplied with each other"

_LARGEST_GRID = 1 << 24  # elements of a constant that are looked at


def tell_detection(context: RuleContext) -> None:
    """Say that a head is in integers because the target wants whole networks."""
    found = detection_heads(context.graph)
    quantized = [node for node in found if context.plan.nodes[node_name(node)].quantized]
    if quantized:
        why = found[quantized[0]]
        context.plan_log.note(
            f"the network ends in a detection head ({why}): target {context.config.target} needs the whole "
            f"network in integers, so {len(quantized)} nodes of it are quantized, {node_name(quantized[0])!r} "
            "first; name them in exclude where boxes or scores must be exact"
        )


def float_detection(context: RuleContext, *, layers: bool = True) -> Iterator[Decision]:
    """Leave heads in float, with ``layers`` those that feed them too: a convolution in integers cannot return float."""
    for node, why in detection_heads(context.graph).items():
        entry = context.plan.nodes[node_name(node)]
        weighted = entry.role is Role.LINEAR
        if not entry.quantized or (weighted and (not layers or may_return_float(node))):
            continue
        yield context.leave_in_float(node, DETECTION_HEAD(why=why), "float_heads", why)


def detection_heads(graph: ir.Graph) -> dict[ir.Node, str]:
    """Nodes of detection heads and the last weighted layers before them, and by what each was told."""
    tail = _tail(graph)
    scores = any(node.op_type in _SCORES for node in tail)
    found: dict[ir.Node, str] = {}
    seen: set[ir.Node] = set()
    for node in tail:
        why = _told_by(node, tail, scores=scores)
        if why is not None:
            _spread(node, why, tail, found, seen)
    return {node: found[node] for node in graph if node in found}


def _tail(graph: ir.Graph) -> dict[ir.Node, None]:
    """Nodes that no weighted layer comes after."""
    before: set[ir.Node] = set()
    tail = []
    for node in reversed(list(graph)):
        readers = [reader for value in node.outputs for reader in users(value)]
        if any(reader in before for reader in readers) or (node.op_type in LINEAR and not _is_mean_of_bins(node)):
            before.add(node)
        else:
            tail.append(node)
    return dict.fromkeys(reversed(tail))


def _is_mean_of_bins(node: ir.Node) -> bool:
    """True for a layer of one output channel that reads a softmax."""
    weight = static_shape(node.inputs[1])
    single = weight is not None and (weight[0] if node.op_type == "Conv" else weight[-1]) == 1
    return single and producer(moved_from(node.inputs[0]), "Softmax") is not None


def _told_by(node: ir.Node, tail: dict[ir.Node, None], *, scores: bool) -> str | None:
    if node.op_type == "NonMaxSuppression":
        return _NMS
    if operator(node.op_type).family is Family.ARITHMETIC and scores and any(map(_differs_by_position, node.inputs)):
        return _GRID
    if node.op_type == "Exp" and _makes_sizes(node, tail):
        return _SIZES
    bounded = [producer(moved_from(value), *_SCORES) for value in node.inputs]
    if node.op_type == "Mul" and all(made in tail for made in bounded if made is not None) and None not in bounded:
        return _PRODUCT
    return None


def _differs_by_position(value: ir.Value | None) -> bool:
    """True for a constant that varies along two axes: over positions, and over coordinates or their other axis."""
    shape = static_shape(value)
    if not is_constant(value) or shape is None or sum(length > 1 for length in shape) < 2:
        return False
    array = constant(value) if np.prod(shape) <= _LARGEST_GRID else None
    return array is not None and array.dtype.kind == "f" and bool(array.size) and bool((array != array.flat[0]).any())


def _makes_sizes(exp: ir.Node, tail: dict[ir.Node, None]) -> bool:
    """True if the result is multiplied and never summed, as a softmax that is written out does."""
    value = exp.outputs[0]
    readers = list(users(value))
    for reader in readers:
        if reader.op_type in MOVERS:
            readers += [after for moved in reader.outputs for after in users(moved)]
    arithmetic = [reader for reader in readers if reader.op_type not in MOVERS]
    return bool(arithmetic) and all(reader.op_type == "Mul" and reader in tail for reader in arithmetic)


def _spread(node: ir.Node, why: str, tail: dict[ir.Node, None], found: dict[ir.Node, str], seen: set[ir.Node]) -> None:
    """The node, what feeds it up to the last weighted layers, what follows, and what feeds that; once for all heads."""
    work = [] if node in seen else [node]
    seen.add(node)
    while work:
        current = work.pop()
        _upwards(current, why, tail, found)
        for reader in (after for value in current.outputs for after in users(value)):
            if reader not in seen and reader in tail:
                seen.add(reader)
                work.append(reader)


def _upwards(node: ir.Node | None, why: str, tail: dict[ir.Node, None], found: dict[ir.Node, str]) -> None:
    work: list[ir.Node | None] = [node]
    while work:
        current = work.pop()
        if current is None or current in found:
            continue
        if current in tail:
            found[current] = why
            work += _makers(current.inputs)
        elif current.op_type in LINEAR:
            found[current] = why


def _makers(values: Iterable[ir.Value | None]) -> list[ir.Node | None]:
    return [value.producer() for value in values if value is not None]
