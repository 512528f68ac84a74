"""Average pools that onnxruntime must not compute on integers, though they stand between Q/DQ pairs.

It turns every DequantizeLinear, AveragePool, QuantizeLinear into its QLinearAveragePool (1.31, qdq_selectors.cc), which
knows no dilations, and divides by other counts where windows that count pads reach beyond them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import DEFAULT_DOMAINS, Names, add_initializer, node_name, users
from worker.quantizer.operators.windows import counts_beyond, has_gaps


def keep_pools_in_float(graph: ir.Graph, names: Names) -> None:
    """Put a Max, which changes nothing, between such a pool and the QuantizeLinear that alone reads it.

    Any operator would do that no optimization takes away. Dilations of 1 say nothing, and go.
    """
    for node in list(graph):
        if node.op_type != "AveragePool" or node.domain not in DEFAULT_DOMAINS:
            continue
        if not has_gaps(node):
            node.attributes.pop("dilations", None)
        readers, value = users(node.outputs[0]), node.outputs[0]
        quantized = all(reader.op_type == "QuantizeLinear" for reader in readers) and not value.is_graph_output()
        if quantized and (has_gaps(node) or counts_beyond(node)):
            _part(graph, node, readers, names)


def _part(graph: ir.Graph, node: ir.Node, readers: list[ir.Node], names: Names) -> None:
    value, name = node.outputs[0], node_name(node)
    lowest = add_initializer(graph, names.free(f"{name}_lowest"), np.asarray(np.finfo(np.float32).min))
    barrier = ir.node("Max", [value, lowest], name=names.free(f"{name}_in_float"))
    made = barrier.outputs[0]
    made.name, made.type, made.shape = names.free(f"{name}_in_float_output"), value.type, value.shape
    for reader in readers:
        reader.replace_input_with(0, made)
    graph.insert_after(node, barrier)
