"""Gives every reader of a shared weight or bias a copy of its own, so that each may be changed and quantized alone."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.graph.outcome import Outcome
from worker.quantizer.graph.values import Names, add_twin, name_of, node_name
from worker.quantizer.ops.linear import is_linear

NOTHING_SHARED = declare("nothing-shared", "no weight or bias has several readers")


def unshare_initializers(model: ir.Model) -> Outcome:
    """Copy the constants that a Conv, ConvTranspose, Gemm or MatMul shares with other nodes or with itself.

    The first reader keeps the constant. Copies share its memory until one of them is changed; in a file each one
    takes its bytes. Readers within sub-graphs read a copy in the main graph.
    """
    graph = model.graph
    shared = [value for value in graph.initializers.values() if len(value.uses()) > 1 and _is_weight(value)]
    if not shared:
        return Outcome(model, NOTHING_SHARED())
    names = Names(graph)
    copies = 0
    for value in shared:
        for usage in list(value.uses())[0 if value.is_graph_output() else 1 :]:
            reader = usage.node
            copy = add_twin(graph, names.free(f"{name_of(value)}_of_{node_name(reader)}"), value)
            reader.replace_input_with(usage.idx, copy)
            copies += 1
    return Outcome(model, f"{copies} copies made of {len(shared)} shared weights and biases")


def _is_weight(value: ir.Value) -> bool:
    return not value.is_graph_input() and any(is_linear(usage.node) for usage in value.uses())
