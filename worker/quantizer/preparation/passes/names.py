"""Functions inlined, every node and value named, weights made initializers that no caller can override."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common

from service.contracts.reason import declare
from worker.quantizer.graph.rewriting import PassOutcome
from worker.quantizer.graph.values import Names, node_name

NO_FUNCTIONS = declare("no-functions", "the model has no functions")


def inline_functions(model: ir.Model) -> PassOutcome:
    """Put the nodes of model-local functions in the place of their calls."""
    count = len(model.functions)
    if not count:
        return PassOutcome(model, NO_FUNCTIONS())
    common.InlinePass()(model)
    return PassOutcome(model, f"{count} functions inlined")


def name_everything(model: ir.Model) -> PassOutcome:
    """Name what has no name, tell apart what shares one, and turn Constant nodes into initializers."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for k, node in enumerate(graph):
            if not node.name:
                node.name = f"{node.op_type}_{k}"
    omitted = [value for node in model.graph.all_nodes() for value in node.outputs if not value.name]
    modified = common.NameFixPass()(model).modified
    _distinguish_nodes(model.graph)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.RemoveInitializersFromInputsPass()(model)
    for value in omitted:
        if not value.uses():  # an optional output that is not wanted has no name; the pass gave it one
            value.name = ""
    return PassOutcome(model, "names made unique" if modified else "constants became initializers")


def _distinguish_nodes(graph: ir.Graph) -> None:
    """Let no two nodes share a name, across sub-graphs either; the main graph's keep theirs."""
    inner = [node for node in graph.all_nodes() if node.graph is not graph]
    if not inner:
        return
    names = Names(graph)
    seen = {node_name(node) for node in graph}
    for node in inner:
        if node_name(node) in seen:
            node.name = names.free(node_name(node))
        seen.add(node_name(node))


def first_output(node: ir.Node) -> str:
    """Name of the first output that is not omitted."""
    return next((value.name for value in node.outputs if value.name), "")
