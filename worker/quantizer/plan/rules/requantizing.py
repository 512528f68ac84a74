"""Moves grids of a filled plan, and quantizes anew what lies on them.

A weight or bias whose integers are not the plain rounding of the graph's array (they were corrected) keeps its present
value, not the array's.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx_ir as ir

from service.contracts.errors import EngineError
from worker.quantizer.graph.values import constant, name_of, node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.parameters import fill_bias
from worker.quantizer.plan.types import ActivationPlan, Grid, QuantizationPlan


class GridEditor:
    """Changes grids one by one; ``finish`` brings the int32 biases that hang on them up to date.

    Args:
        graph: prepared main graph.
        plan: filled; changed in place.
    """

    def __init__(self, graph: ir.Graph, plan: QuantizationPlan) -> None:
        self._graph = graph
        self._plan = plan
        self._members: dict[str, list[ActivationPlan]] = defaultdict(list)
        for entry in plan.activations.values():
            self._members[entry.source].append(entry)
        self._nodes = {node_name(node): node for node in graph}
        self._hang_on_source: dict[str, list[str]] = defaultdict(list)
        self._hang_on_weight: dict[str, list[str]] = defaultdict(list)
        for name, bias in plan.biases.items():
            node = self._nodes[name]
            source, weight = node.inputs[0], node.inputs[1]
            if bias.spec.dtype == "int32" and bias.integers is not None and source is not None and weight is not None:
                self._hang_on_source[plan.activations[name_of(source)].source].append(name)
                self._hang_on_weight[name_of(weight)].append(name)
        self._stale: dict[str, np.ndarray] = {}

    def set_activation(self, source: str, grid: IntegerGrid) -> None:
        """Put every tensor that shares the range of ``source`` on ``grid``."""
        self._mark(self._hang_on_source[source])
        for entry in self._members[source]:
            entry.quantization = grid

    def set_weight(self, initializer: str, grid: IntegerGrid) -> None:
        """Quantize a weight, or a constant operand, on ``grid``."""
        entry = self._plan.weights[initializer]
        self._mark(self._hang_on_weight[initializer])
        entry.integers = grid.quantize(self._present(initializer, entry.quantization, entry.integers))
        entry.quantization = grid

    def set_bias(self, node: str, grid: IntegerGrid) -> None:
        """Quantize a bias on ``grid``, a grid of its own."""
        entry = self._plan.biases[node]
        entry.integers = grid.quantize(self._present(entry.initializer, entry.quantization, entry.integers).reshape(-1))
        entry.quantization = grid

    def finish(self) -> None:
        """Quantize the int32 biases anew whose input or weight has moved."""
        for name, values in self._stale.items():
            fill_bias(self._graph, self._nodes[name], self._plan)
            entry = self._plan.biases[name]
            if entry.quantization is not None:
                entry.integers = entry.quantization.quantize(values)
        self._stale.clear()

    def _mark(self, nodes: list[str]) -> None:
        for name in nodes:
            if name not in self._stale:
                entry = self._plan.biases[name]
                self._stale[name] = self._present(entry.initializer, entry.quantization, entry.integers).reshape(-1)

    def _present(self, initializer: str, grid: Grid | None, integers: np.ndarray | None) -> np.ndarray:
        array = constant(self._graph.initializers[initializer])
        if array is None or not isinstance(grid, IntegerGrid) or integers is None:
            raise EngineError(f"initializer {initializer!r} was planned but not filled", tensor=initializer)
        rounded = grid.quantize(array.reshape(integers.shape))
        return array if np.array_equal(rounded, integers) else grid.dequantize(integers).reshape(array.shape)
