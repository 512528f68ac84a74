"""Brings the weights of sub-graphs (bodies of If, Loop and Scan) where the quantizer looks for them."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.graph.outcome import Outcome
from worker.quantizer.graph.values import Names, add_twin, is_constant, name_of, subgraph_nodes
from worker.quantizer.ops.linear import LINEAR, is_linear
from worker.quantizer.ops.weights import RECURRENT, RECURRENT_WEIGHTS, is_recurrent

SUBGRAPHS_IN_FLOAT = declare("subgraphs-in-float", "sub-graphs stay in float")
NO_SUBGRAPH_WEIGHT = declare("no-subgraph-weight", "no {op_types} of a sub-graph holds a weight of its own")


def lift_subgraph_weights(model: ir.Model, *, wanted: bool) -> Outcome:
    """Make the weights that nodes of sub-graphs hold initializers of the main graph, if that is ``wanted``.

    Bodies see what the graphs around them hold, so nothing else changes. A constant that is also read otherwise within
    its body, or is a result of it, stays there as well; both share their memory.
    """
    if not wanted:
        return Outcome(model, SUBGRAPHS_IN_FLOAT())
    graph = model.graph
    held: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for node in subgraph_nodes(graph):
        for index in _weights(node):
            weight = node.inputs[index]
            if weight is not None and is_constant(weight) and weight.graph is not graph:
                held.setdefault(weight, []).append((node, index))
    if not held:
        return Outcome(model, NO_SUBGRAPH_WEIGHT(op_types=", ".join((*LINEAR, *RECURRENT))))
    names, times = Names(graph), _times_used(graph)
    for weight, readers in held.items():
        alone = len(weight.uses()) == len(readers) and not weight.is_graph_output()
        name = name_of(weight)
        free = name if alone and times[name] == 1 else names.free(name)
        if alone and weight.graph is not None:
            del weight.graph.initializers[name]
        lifted = add_twin(graph, free, weight)
        for node, index in readers:
            node.replace_input_with(index, lifted)
    return Outcome(model, f"{len(held)} weights moved from sub-graphs into the main graph")


def _weights(node: ir.Node) -> tuple[int, ...]:
    """Which inputs of a node are weights."""
    if is_recurrent(node):
        return RECURRENT_WEIGHTS
    return (1,) if is_linear(node) else ()


def _times_used(graph: ir.Graph) -> Counter[str | None]:
    """How many values bear each name: sub-graphs that stand beside each other may use the same ones."""
    times: Counter[str | None] = Counter()
    for part in (graph, *graph.subgraphs()):
        times.update({value.name for value in (*part.inputs, *part.initializers.values())})
        times.update(value.name for node in part for value in node.outputs)
    return times
