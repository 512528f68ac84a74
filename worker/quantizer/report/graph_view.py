"""The file that tells the prepared graph: what the page of a job draws."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from service.contracts.graph_view import (
    GRAPH_FILE,
    GRAPH_KIND,
    MOST_BYTES,
    MOST_DIMENSIONS,
    MOST_MODULES,
    MOST_NODES,
    GraphNode,
    GraphTensor,
    GraphView,
    cut_name,
)
from worker.quantizer.graph.metadata import module_paths
from worker.quantizer.graph.values import is_constant, node_name
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import ExtraFile

# ONNX has other words for these than the reports.
_WORDS = {"float": "float32", "double": "float64"}


def graph_file(graph: ir.Graph, run: Run) -> ExtraFile | None:
    """``graph.json``; None for a graph that is too large to be looked at, which the log tells.

    Args:
        graph: the prepared float graph.
        run: whose log is told.
    """
    count = sum(1 for _ in graph.all_nodes())
    if count > MOST_NODES:
        run.log(f"{GRAPH_FILE} is left out: the graph has {count} nodes, and at most {MOST_NODES} are drawn", "warning")
        return None
    data = graph_view(graph).to_bytes()
    if len(data) > MOST_BYTES:
        run.log(f"{GRAPH_FILE} is left out: it has {len(data)} bytes, more than {MOST_BYTES}", "warning")
        return None
    return ExtraFile(GRAPH_KIND, GRAPH_FILE, "application/json", data)


def graph_view(graph: ir.Graph) -> GraphView:
    """Nodes and tensors of ``graph`` and its sub-graphs, without the weights."""
    tensors = _Tensors()
    inputs = tuple(tensors.place(value) for value in graph.inputs)
    nodes = [
        GraphNode(
            name=cut_name(node_name(node)),
            op=cut_name(node.op_type),
            modules=tuple(cut_name(path) for path in module_paths(node)[:MOST_MODULES]),
            inputs=tuple(None if value is None else tensors.place(value) for value in node.inputs),
            outputs=tuple(tensors.place(value) for value in node.outputs if value.name),
            inside=None if holder is None else cut_name(node_name(holder)),
        )
        for node, holder in _in_order(graph, None)
    ]
    outputs = tuple(tensors.place(value) for value in graph.outputs)
    return GraphView(inputs=inputs, outputs=outputs, tensors=tuple(tensors.all), nodes=tuple(nodes))


def _in_order(graph: ir.Graph, holder: ir.Node | None) -> Iterator[tuple[ir.Node, ir.Node | None]]:
    """Every node with the one whose sub-graph it is in, holders first."""
    for node in graph:
        yield node, holder
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _in_order(attribute.as_graph(), node)
            elif attribute.type == ir.AttributeType.GRAPHS:
                for part in attribute.as_graphs():
                    yield from _in_order(part, node)


class _Tensors:
    """The tensors of a graph in the order in which they are met, each once."""

    def __init__(self) -> None:
        self.all: list[GraphTensor] = []
        self._places: dict[ir.Value, int] = {}

    def place(self, value: ir.Value) -> int:
        """Where ``value`` stands in the list."""
        found = self._places.get(value)
        if found is None:
            found = self._places[value] = len(self.all)
            word = None if value.dtype is None else value.dtype.name.lower()
            dtype = None if word is None else _WORDS.get(word, word)
            self.all.append(
                GraphTensor(
                    name=cut_name(value.name or ""), dtype=dtype, shape=_shape(value), constant=is_constant(value)
                )
            )
        return found


def _shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    shape = value.shape
    if shape is None or len(shape) > MOST_DIMENSIONS:
        return None
    return tuple(_dimension(each) for each in shape)


def _dimension(each: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(each, int):
        return each
    return None if each.value is None else cut_name(str(each.value))
