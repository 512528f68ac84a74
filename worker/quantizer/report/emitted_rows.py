"""Which row of the report a node of the emitted model, or a kernel that onnxruntime made of it, belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

import onnx_ir as ir

from service.contracts.report import LayerFigures
from worker.quantizer.graph.values import is_constant, node_name
from worker.quantizer.runtime.profile import Kernel

# Named after a tensor, whose name may begin like a node's.
_BETWEEN_ROWS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
# What onnxruntime adds to the name of a node that it fuses or gives another layout; its own inserts have other names.
_ADDED = re.compile(r"(_token_\d+|_nchwc|/MatmulTransposeFusion/.*|/MatMulScaleFusion/.*)$")


class EmittedRows:
    """The emitted model by rows.

    Args:
        row_of: name of the row by name of a node of the prepared graph.
        model: emitted.
    """

    def __init__(self, row_of: Mapping[str, str], model: ir.Model) -> None:
        self._row_of, self._model = row_of, model

    @staticmethod
    def of(rows: Sequence[LayerFigures], model: ir.Model) -> EmittedRows:
        """Those of a finished table."""
        return EmittedRows({node: row.name for row in rows for node in row.nodes}, model)

    @cached_property
    def _emitted(self) -> dict[str, str]:
        """Name of the row by name of an emitted node; one made in the place of a node is called after both."""
        found = {}
        for node in self._model.graph.all_nodes():
            name = node_name(node)
            stem = re.sub(rf"_{re.escape(node.op_type)}(_\d+)?$", "", name)
            row = self._row_of.get(name)
            if row is None and node.op_type not in _BETWEEN_ROWS:
                row = self._row_of.get(stem)
            if row is not None:
                found[name] = row
        return found

    def weight_bytes(self) -> dict[str, int]:
        """Bytes of the constants of each row that has any, scales and zero points included.

        What two rows share counts in either.
        """
        held: dict[str, set[ir.Value]] = {}
        made = _made_of_constants(self._model.graph)
        for node in self._model.graph.all_nodes():
            row = self._emitted.get(node_name(node))
            constants = _constants_of(node, made)
            if row is not None and constants:
                held.setdefault(row, set()).update(constants)
        return {row: sum(stored_bytes(value) for value in values) for row, values in held.items()}

    def latency_percents(self, kernels: Sequence[Kernel]) -> dict[str, float]:
        """Share of each row that a kernel runs for; what runs between rows, such as a change of layout, has none."""
        total = sum(kernel.microseconds for kernel in kernels)
        found: dict[str, float] = {}
        for kernel in kernels:
            row = self._emitted.get(kernel.node) or self._emitted.get(_ADDED.sub("", kernel.node))
            if row is not None and total > 0:
                found[row] = found.get(row, 0.0) + 100.0 * kernel.microseconds / total
        return {row: round(min(100.0, share), 2) for row, share in found.items()}


def stored_bytes(value: ir.Value) -> int:
    """Bytes of an initializer in the file."""
    return 0 if value.const_value is None else int(value.const_value.nbytes)


def _constants_of(node: ir.Node, made: Mapping[ir.Value, frozenset[ir.Value]]) -> set[ir.Value]:
    """Initializers that a node reads, directly or behind nodes that compute with nothing else."""
    found: set[ir.Value] = set()
    for value in node.inputs:
        if value is not None:
            found |= {value} if is_constant(value) else made.get(value, frozenset())
    return found


def _made_of_constants(graph: ir.Graph) -> dict[ir.Value, frozenset[ir.Value]]:
    """By value that is computed from initializers alone: which."""
    made: dict[ir.Value, frozenset[ir.Value]] = {}
    for node in graph.all_nodes():
        read = [value for value in node.inputs if value is not None]
        if read and all(is_constant(value) or value in made for value in read):
            constants = frozenset(_constants_of(node, made))
            made.update(dict.fromkeys(node.outputs, constants))
    return made
