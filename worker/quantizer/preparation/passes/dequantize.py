"""Undoes quantization, so that a model that is quantized already can be quantized anew.

The graph is walked in topological order. Of each value of integers it is known which floats it stands for, as soon as
its maker is a form that is known: a QuantizeLinear and the DequantizeLinear nodes behind it (``pairs``), operators on
integers (``qlinear``, ``moved``), integer products that are rescaled (``dynamic``), weights and tables that are stored
as integers (``pairs``, ``tables``, ``nbits``). Where a form reads such integers, its float operator reads the floats.

What integers rounded and saturated is left alone from then on, with one exception: quantizers drop a Relu (or a Clip
at 0 and 6) where integers begin at 0, since those do the same. There it is put back.
"""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common

from service.contracts.compatibility import is_quantized_op
from service.contracts.errors import AlreadyQuantizedError
from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import PassOutcome, opset_of
from worker.quantizer.graph.values import node_name
from worker.quantizer.preparation.passes.dequantizing import dynamic, moved, pairs, weights
from worker.quantizer.preparation.passes.dequantizing.dynamic import NO_PAIR
from worker.quantizer.preparation.passes.dequantizing.stored import MALFORMED, dequantized, well_formed
from worker.quantizer.preparation.passes.dequantizing.undoing import DOMAINS, Form, Undoing
from worker.quantizer.preparation.passes.opset import LOWEST_OPSET

__all__ = ["NOT_QUANTIZED", "dequantize", "dequantized"]

NOT_QUANTIZED = declare("no-quantized-operators", "the model contains no quantized operators")

_FORMS: dict[str, Form] = {
    **moved.FORMS,
    **dynamic.FORMS,
    **weights.FORMS,
    **pairs.FORMS,
}
_HINT = "Use the float model that it was created from: this node's quantization cannot be undone."


def dequantize(model: ir.Model) -> PassOutcome:
    """Make floats of everything that is computed on integers; the model has been named, and is changed in place.

    Raises:
        AlreadyQuantizedError: a quantized operator is left; names the node, and why.
    """
    was_quantized = any(is_quantized_op(node.op_type) for node in model.graph.all_nodes())
    undoing = Undoing(model)
    if was_quantized and opset_of(model) is None:
        model.graph.opset_imports[""] = LOWEST_OPSET  # the float operators are standard ones
    for graph in (model.graph, *model.graph.subgraphs()):
        _walk(graph, undoing)
    if not was_quantized and not undoing.counts and not undoing.operators:
        return PassOutcome(model, NOT_QUANTIZED())
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    _refuse_left(model, undoing.reasons)
    undoing.name_weights()
    return PassOutcome(model, _summary(undoing))


def _walk(graph: ir.Graph, undoing: Undoing) -> None:
    """One graph in topological order, so that what is put back tells the signs of what follows."""
    for node in list(graph):
        if node.graph is None:  # it went with what it was read by
            continue
        form = _FORMS.get(node.op_type) if node.domain in DOMAINS else None
        if form is not None and well_formed(node):
            found = form(node, undoing)
        else:
            known = form is None or not is_quantized_op(node.op_type)
            found = undoing.computed_on(node) if known else MALFORMED()
        if isinstance(found, Reason):
            undoing.reasons.setdefault(node_name(node), found)
        undoing.signs.learn(node)


def _summary(undoing: Undoing) -> str:
    """What was done, for the report."""
    counts = undoing.counts
    detail = (
        f"{counts['pairs']} pairs of QuantizeLinear and DequantizeLinear removed, {counts['constants']} "
        "constants converted to float"
    )
    if undoing.operators:
        listed = ", ".join(f"{count} {op_type}" for op_type, count in sorted(undoing.operators.items()))
        detail = f"{detail}; on floats now: {listed}"
    put_back = " and ".join(f"{counts[op]} {op}" for op in ("Relu", "Clip") if counts[op])
    return f"{detail}; {put_back} put back where integers began at 0" if put_back else detail


def _refuse_left(model: ir.Model, reasons: dict[str, Reason]) -> None:
    """Refuse a model that still computes on integers; names the node where the pass got stuck first."""
    nodes = {node_name(node): node for node in model.graph.all_nodes()}
    stuck = [nodes[name] for name in reasons if name in nodes]
    left = stuck or [node for node in nodes.values() if is_quantized_op(node.op_type)]
    if not left:
        return
    node = left[0]
    reason = reasons.get(node_name(node)) or NO_PAIR()
    raise AlreadyQuantizedError(
        f"node {node_name(node)!r} ({node.op_type}) cannot be converted to float: {reason}",
        hint=_HINT,
        node=node_name(node),
        op_type=node.op_type,
        reason_code=reason.code,
    )
