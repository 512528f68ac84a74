"""The file that tells the prepared graph: what the page of a job draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
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
    TensorGrid,
    cut_name,
)
from worker.quantizer.graph.metadata import module_paths
from worker.quantizer.graph.values import is_constant, node_name
from worker.quantizer.numerics.blocks import BlockGrid, Grid
from worker.quantizer.numerics.integer import IntegerGrid, PerTensor
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import ExtraFile

# ONNX has other words for these than the reports.
_WORDS = {"float": "float32", "double": "float64"}


Grids = Mapping[str, TensorGrid]


def grids_of(plan: QuantizationPlan) -> dict[str, TensorGrid]:
    """The grids of a filled plan, by tensor and by initializer."""
    planned: dict[str, Grid | None] = {bias.initializer: bias.quantization for bias in plan.biases.values()}
    planned |= {name: weight.quantization for name, weight in plan.weights.items()}
    planned |= {name: activation.quantization for name, activation in plan.activations.items()}
    return {name: _told(grid) for name, grid in planned.items() if grid is not None}


def _told(grid: Grid) -> TensorGrid:
    scale = None if isinstance(grid, BlockGrid) else grid.scale
    if isinstance(grid, BlockGrid) or scale is None:
        return TensorGrid(dtype=grid.dtype, axis=grid.axis if isinstance(grid, BlockGrid) else None)
    scales = np.asarray(scale)
    zeros = np.unique(grid.zero_point) if isinstance(grid, IntegerGrid) else np.array([])
    return TensorGrid(
        dtype=grid.dtype,
        scales=scales.size,
        scale_low=float(scales.min()),
        scale_high=float(scales.max()),
        zero_point=int(zeros[0]) if zeros.size == 1 else None,
        axis=None if isinstance(grid.granularity, PerTensor) else grid.granularity.axis,
    )


def graph_file(graph: ir.Graph, run: Run, grids: Grids = MappingProxyType({})) -> ExtraFile | None:
    """``graph.json``; None for a graph that is too large to be looked at, which the log tells.

    Args:
        graph: the prepared float graph.
        run: whose log is told.
        grids: of ``grids_of``.
    """
    count = sum(1 for _ in graph.all_nodes())
    if count > MOST_NODES:
        run.log(f"{GRAPH_FILE} is left out: the graph has {count} nodes, and at most {MOST_NODES} are drawn", "warning")
        return None
    data = graph_view(graph, grids).to_bytes()
    if len(data) > MOST_BYTES:
        run.log(f"{GRAPH_FILE} is left out: it has {len(data)} bytes, more than {MOST_BYTES}", "warning")
        return None
    return ExtraFile(GRAPH_KIND, GRAPH_FILE, "application/json", data)


def graph_view(graph: ir.Graph, grids: Grids = MappingProxyType({})) -> GraphView:
    """Nodes and tensors of ``graph`` and its sub-graphs with their grids, without the weights."""
    tensors = _Tensors(grids)
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

    def __init__(self, grids: Grids) -> None:
        self._grids = grids
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
                    name=cut_name(value.name or ""),
                    dtype=dtype,
                    shape=_shape(value),
                    constant=is_constant(value),
                    grid=self._grids.get(value.name or ""),
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
