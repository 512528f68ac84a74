"""What can be computed beforehand is, and what nothing reads goes."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common
from onnxscript.optimizer import fold_constants_ir

from worker.quantizer.graph.metadata import Metadata
from worker.quantizer.graph.outcome import Outcome
from worker.quantizer.graph.skeleton import weight_bytes
from worker.quantizer.graph.values import DEFAULT_DOMAINS, name_of, node_name
from worker.quantizer.preparation.passes.folding import FoldingBudget

_FOLD_INPUT_BYTES = 64 * 2**20
_FOLD_OUTPUT_BYTES = 64 * 2**20


def fold_constants(model: ir.Model) -> Outcome:
    """Replace what depends on constants alone by its value, and remove nodes without effect.

    What costs more than the budget of folding is left as it is, and told.
    """
    before = model.graph.num_nodes()
    metadata = Metadata(model.graph)
    budget = FoldingBudget(model.opset_imports, weight_bytes=weight_bytes(model))
    fold_constants_ir(
        model,
        onnx_shape_inference=True,
        input_size_limit=_FOLD_INPUT_BYTES,
        output_size_limit=_FOLD_OUTPUT_BYTES,
        should_fold=budget.should_fold,
    )
    _forget_dropped_branches(model.graph)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    if not any(True for _ in model.graph.subgraphs()):  # the pass cannot see reads across graphs
        _remove_identities(model.graph)
    common.RemoveUnusedNodesPass()(model)
    metadata.restore(model.graph)
    removed = before - model.graph.num_nodes()
    there = _names(model) if budget.left_alone else set()
    left = {name: reason for name, reason in budget.left_alone.items() if name in there}
    return Outcome.counted(model, removed, "nodes folded away", left=left)


def _names(model: ir.Model) -> set[str]:
    return {node_name(node) for node in model.graph.all_nodes()}


def remove_dead_code(model: ir.Model) -> Outcome:
    """Remove nodes and initializers that no output depends on."""
    before = model.graph.num_nodes()
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    removed = before - model.graph.num_nodes()
    return Outcome.counted(model, removed, "nodes removed")


def _forget_dropped_branches(graph: ir.Graph) -> None:
    """An If of a constant condition is gone, but the nodes of its other branch still count as readers."""
    there = set(graph.all_nodes())
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in there for value in node.outputs)]
    for value in values:
        for usage in list(value.uses()):
            if usage.node not in there:
                usage.node.replace_input_with(usage.idx, None)


def _remove_identities(graph: ir.Graph) -> None:
    """onnx-ir's own pass merges two graph outputs into one where an Identity stands between them."""
    for node in list(graph):
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "Identity" or node.domain not in DEFAULT_DOMAINS or source is None:
            continue
        is_output = result.is_graph_output()
        if is_output and (source.is_graph_output() or source.producer() is None):
            continue
        name = name_of(result)
        source.type, source.shape = source.type or result.type, source.shape or result.shape
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        if is_output:
            source.name = name
