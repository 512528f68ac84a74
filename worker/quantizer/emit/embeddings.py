"""Lookups in the emitted model: rows of integers are gathered, then restored.

    table[int] -> Gather(indices) -> DequantizeLinear            one scale, or one per column
    table[int], scales[rows, blocks] -> Gather each -> DequantizeLinear by blocks of a row

A row with one scale is one block. Before opset 21, which knows blocks, it is restored by Cast, Sub and Mul, and so are
rows that a product reads at once. ONNX's Gather knows no type of 4 bits: such rows are stored two columns to a byte,
columns of the first half in the low bits.

A layer whose weight is a table reads the same integers, transposed where its operator wants them so; what that takes is
computed of constants alone, which runtimes do once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.errors import EngineError
from service.contracts.specs import NUMBER_TYPES
from worker.quantizer.graph.values import Names, add_initializer, name_of, node_name, take_place, users
from worker.quantizer.numerics.integer import PER_TENSOR, IntegerGrid, PerAxis, PerBlock, onnx_integers
from worker.quantizer.ops.linear import MATRIX_PRODUCTS
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import QuantizationPlan, Role

_BYTE, _NIBBLE = 8, 4


@dataclass(frozen=True)
class StoredTable:
    """A table as initializers of the graph."""

    integers: ir.Value  # [rows, columns], or [rows, bytes] for 4 bits
    scale: ir.Value  # [] for one, [columns], [rows], or [rows, blocks]
    zero_point: ir.Value | None  # same shape; None where all are 0
    grid: IntegerGrid  # of the table
    columns: int  # how many

    @property
    def by_rows(self) -> bool:
        """True if scales belong to rows."""
        granularity = self.grid.granularity
        return isinstance(granularity, PerBlock) or granularity == PerAxis(0)

    @property
    def is_packed(self) -> bool:
        """True if a byte holds two columns."""
        return NUMBER_TYPES[self.grid.dtype].bits < _BYTE


def store_table(
    graph: ir.Graph, names: Names, stem: str, integers: np.ndarray, grid: IntegerGrid, *, half_scale: bool = False
) -> StoredTable:
    """Put a table into the graph.

    ``integers`` are [rows, columns]. With ``half_scale`` scales are numbers of 16 bits, and stored so.
    """
    scale, zero_point = grid.scale, grid.zero_point
    if NUMBER_TYPES[grid.dtype].bits < _BYTE:
        shift = -NUMBER_TYPES[grid.dtype].limits[0]  # type: ignore[index]
        stored = _packed((integers.astype(np.int16) + shift).astype(np.uint8))
        zero_point = (zero_point.astype(np.int16) + shift).astype(np.uint8)
    else:
        stored, zero_point = onnx_integers(integers, grid.dtype), onnx_integers(zero_point, grid.dtype)
    return StoredTable(
        add_initializer(graph, names.free(f"{stem}_quantized"), stored),
        add_initializer(graph, names.free(f"{stem}_scale"), scale.astype(np.float16) if half_scale else scale),
        add_initializer(graph, names.free(f"{stem}_zero_point"), zero_point) if zero_point.any() else None,
        grid,
        integers.shape[1],
    )


def _packed(nibbles: np.ndarray) -> np.ndarray:
    """uint8 [rows, ceil(columns / 2)] of uint8 [rows, columns] below 16."""
    half = -(-nibbles.shape[1] // 2)
    low, high = nibbles[:, :half], nibbles[:, half:]
    packed = low.copy()
    packed[:, : high.shape[1]] |= high << _NIBBLE
    return packed


class Tables:
    """The tables of a plan in a graph.

    With ``blocks`` the opset knows DequantizeLinear by blocks. The graph is changed in place.
    """

    def __init__(self, graph: ir.Graph, plan: QuantizationPlan, names: Names, *, blocks: bool) -> None:
        self._graph, self._plan, self._names, self._blocks = graph, plan, names, blocks
        self._parameters = Parameters(graph, plan)
        self._held: dict[str, tuple[StoredTable, np.ndarray]] = {}
        self._constants: dict[str, ir.Value] = {}
        self._fused_tables: dict[str, list[ir.Value]] = {}

    def write_embeddings(self) -> list[ir.Node]:
        """Let all lookups of the plan read their tables as integers; the new nodes.

        Raises:
            EngineError: the plan was not filled.
        """
        made = []
        for node in list(self._graph):
            entry = self._plan.nodes.get(node_name(node))
            if entry is not None and entry.role is Role.LOOKUP and node.inputs[0] is not None:
                name = name_of(node.inputs[0])
                made += self._fused(node, name) if self._has_kernel(name) else self._write(node, self._table(name))
        return made

    def _has_kernel(self, initializer: str) -> bool:
        """True if onnxruntime's operator is asked for, and nothing else reads the table."""
        entry = self._plan.weights[initializer]
        tied = any(other.tied == initializer for other in self._plan.weights.values())
        readers = [usage.node for usage in self._graph.initializers[initializer].uses()]
        alone = all(self._plan.role_of(node) is Role.LOOKUP for node in readers)
        return entry.spec.kernel == "matmul_nbits" and alone and not tied

    def _fused(self, lookup: ir.Node, initializer: str) -> list[ir.Node]:
        """com.microsoft.GatherBlockQuantized, which takes rows and restores them, in the place of a lookup."""
        made, now = self.batch(node_name(lookup)), self._parameters.weight(initializer)
        grid = now.grid
        if not isinstance(grid, IntegerGrid) or now.integers is None:
            raise EngineError(f"table {initializer!r} was planned but not filled", tensor=initializer)
        if initializer not in self._fused_tables:
            limits = NUMBER_TYPES[grid.dtype].limits or (0, 0)
            kind = "uint4" if NUMBER_TYPES[grid.dtype].bits < _BYTE else "uint8"
            parts = (("quantized", now.integers), ("scale", grid.scale), ("zero_point", grid.zero_point))
            self._fused_tables[initializer] = [
                add_initializer(
                    self._graph,
                    self._names.free(f"{initializer}_{word}"),
                    array if word == "scale" else onnx_integers((array.astype(np.int16) - limits[0]), kind),
                )
                for word, array in parts
            ]
        table, scale, zero_point = self._fused_tables[initializer]
        size = self._plan.weights[initializer].spec.block_size
        attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": size}
        bits = {} if NUMBER_TYPES[grid.dtype].bits < _BYTE else {"bits": _BYTE}
        node = ir.node(
            "GatherBlockQuantized",
            [table, lookup.inputs[1], scale, zero_point],
            attributes={**attributes, **bits},
            domain="com.microsoft",
            name=node_name(lookup),
        )
        made.nodes.append(node)
        take_place(lookup, [node], node.outputs[0])
        self._graph.opset_imports.setdefault("com.microsoft", 1)
        return made.nodes

    def _table(self, initializer: str) -> StoredTable:
        if initializer not in self._held:
            now = self._parameters.weight(initializer)
            if not isinstance(now.grid, IntegerGrid) or now.integers is None:
                raise EngineError(f"table {initializer!r} was planned but not filled", tensor=initializer)
            table = store_table(
                self._graph, self._names, initializer, now.integers, now.grid, half_scale=now.scale == "float16"
            )
            self._held[initializer] = table, now.integers
        return self._held[initializer][0]

    def shared(self, initializer: str) -> SharedTable | None:
        """The table that a weight's integers are read from; None if it is tied to none, or holds others by now."""
        found = self._held.get(self._plan.weights[initializer].tied or initializer)
        now = self._parameters.weight(initializer)
        if found is None or now.integers is None or not isinstance(now.grid, IntegerGrid):
            return None
        table, held = found
        for transposed in (False, True):
            parts = (held, table.grid.scale, table.grid.zero_point)
            others = (now.integers, now.grid.scale, now.grid.zero_point)
            turned = (part.T if transposed else part for part in parts)
            if all(np.array_equal(one, other) for one, other in zip(turned, others, strict=True)):
                return SharedTable(self, table, initializer, transposed)
        return None

    def _write(self, lookup: ir.Node, table: StoredTable) -> list[ir.Node]:
        """Let a lookup read a stored table; what it made is restored from its rows, under the same name.

        Returns the new nodes.
        """
        made = self.batch(node_name(lookup))
        indices, old = lookup.inputs[1], lookup.outputs[0]
        rows = made.add("Gather", [table.integers, indices], "rows", axis=0)
        if table.is_packed:
            rows = self.unpacked(made, rows, table.columns)
        scale, zero_point = table.scale, table.zero_point
        if table.by_rows:
            scale = self._of_rows(made, scale, indices, "scale", table)
        scale = self.whole_scale(made, scale, table)
        if table.by_rows and zero_point is not None:
            zero_point = self._of_rows(made, zero_point, indices, "zero_point", table)
        plainly = any(reader.op_type in MATRIX_PRODUCTS for reader in users(old))
        restored = self._restored(made, rows, scale, zero_point, table, plainly=plainly)
        take_place(lookup, made.nodes, restored)
        made.nodes[0].name = node_name(lookup)
        return made.nodes

    def unpacked(self, made: _Made, rows: ir.Value, columns: int) -> ir.Value:
        """uint8 [..., columns] of bytes that hold two columns each."""
        low = made.add("BitwiseAnd", [rows, self._constant("low_bits", np.asarray(15, np.uint8))], "low")
        four = self._constant("high_bits", np.asarray(_NIBBLE, np.uint8))
        high = made.add("BitShift", [rows, four], "high", direction="RIGHT")
        both = made.add("Concat", [low, high], "columns", axis=-1)
        if columns % 2 == 0:
            return both
        ends = [self._constant(f"slice_{k}", np.asarray([k], np.int64)) for k in (0, columns, -1)]
        return made.add("Slice", [both, *ends], "even")

    def whole_scale(self, made: _Made, scale: ir.Value, table: StoredTable) -> ir.Value:
        """Scales as float32."""
        if table.scale.dtype is not ir.DataType.FLOAT16:
            return scale
        return made.add("Cast", [scale], "scale_Cast", to=int(ir.DataType.FLOAT))

    def _of_rows(
        self, made: _Made, values: ir.Value, indices: ir.Value | None, word: str, table: StoredTable
    ) -> ir.Value:
        """Scales or zero points of the rows that are looked up, such that they go with the rows."""
        found = made.add("Gather", [values, indices], word, axis=0)
        if table.grid.granularity == PerAxis(0):
            found = made.add("Unsqueeze", [found, self._constant("last", np.asarray([-1], np.int64))], f"{word}_row")
        return found

    def _restored(
        self,
        made: _Made,
        rows: ir.Value,
        scale: ir.Value,
        zero_point: ir.Value | None,
        table: StoredTable,
        *,
        plainly: bool,
    ) -> ir.Value:
        """Floats of rows; ``plainly``: by arithmetic, unless there is one scale.

        onnxruntime makes one integer product of DequantizeLinear, MatMul and the weight's DequantizeLinear, and then
        refuses to run it, as its data have more than one scale.
        """
        granularity = table.grid.granularity
        known = granularity == PER_TENSOR or not plainly
        if known and (not table.by_rows or self._blocks):
            attributes = {"axis": -1} if granularity == PerAxis(1) else {}
            if table.by_rows:
                size = granularity.size if isinstance(granularity, PerBlock) else table.columns
                attributes = {"axis": -1, "block_size": size}
            inputs = [rows, scale] if zero_point is None else [rows, scale, zero_point]
            return made.add("DequantizeLinear", inputs, "DequantizeLinear", **attributes)
        if isinstance(granularity, PerBlock):
            blocks = np.arange(table.columns) // granularity.size
            places = self._constant(f"blocks_of_{granularity.size}_in_{table.columns}", blocks)
            scale = made.add("Gather", [scale, places], "scale_of_columns", axis=-1)
            zero_point = zero_point and made.add("Gather", [zero_point, places], "zero_of_columns", axis=-1)
        to = {"to": int(ir.DataType.FLOAT)}
        values = made.add("Cast", [rows], "Cast", **to)
        if zero_point is not None:
            values = made.add("Sub", [values, made.add("Cast", [zero_point], "zero", **to)], "Sub")
        return made.add("Mul", [values, scale], "Mul")

    def _constant(self, word: str, array: np.ndarray) -> ir.Value:
        if word not in self._constants:
            self._constants[word] = add_initializer(self._graph, self._names.free(f"lookup_{word}"), array)
        return self._constants[word]

    def batch(self, stem: str) -> _Made:
        """New nodes whose names begin with ``stem``."""
        return _Made(self._names, stem)

    def put_first(self, nodes: Sequence[ir.Node]) -> None:
        """Put nodes at the head of the graph."""
        self._graph.insert_before(self._graph[0], nodes)


@dataclass(frozen=True)
class SharedTable:
    """A table as the weight of a layer."""

    tables: Tables  # it is one of them
    table: StoredTable  # that is shared
    stem: str  # name of the weight, that new names begin with
    transposed: bool  # the weight is [columns, rows]

    def restored(self) -> tuple[ir.Value, list[ir.Node]]:
        """The whole weight as floats, and the nodes that make it, at the head of the graph."""
        made, granularity = self.tables.batch(self.stem), self.table.grid.granularity
        scale = self.tables.whole_scale(made, self.table.scale, self.table)
        parts: list[ir.Value | None] = [self._integers(made), scale, self.table.zero_point]
        attributes = granularity.attributes()
        if self.transposed and isinstance(granularity, PerBlock):
            parts[1:] = [part and made.add("Transpose", [part], "turned", perm=(1, 0)) for part in parts[1:]]
        if self.transposed and "axis" in attributes:
            attributes["axis"] = 1 - attributes["axis"] % 2
        restored = made.add("DequantizeLinear", [part for part in parts if part], "DequantizeLinear", **attributes)
        restored.dtype = ir.DataType.FLOAT
        self.tables.put_first(made.nodes)
        return restored, made.nodes

    def inputs_first(self, *, outputs_first: bool) -> ir.Value:
        """The integers as [inputs, outputs], which is what an integer product wants.

        Args:
            outputs_first: the weight is [outputs, inputs].
        """
        if self.transposed == outputs_first:
            return self.table.integers
        made = self.tables.batch(self.stem)
        turned = made.add("Transpose", [self.table.integers], "turned", perm=(1, 0))
        self.tables.put_first(made.nodes)
        return turned

    def _integers(self, made: _Made) -> ir.Value:
        table = self.table
        whole = self.tables.unpacked(made, table.integers, table.columns) if table.is_packed else table.integers
        return made.add("Transpose", [whole], "turned", perm=(1, 0)) if self.transposed else whole


class _Made:
    """New nodes whose names begin with that of the lookup."""

    def __init__(self, names: Names, stem: str) -> None:
        self._names, self._stem = names, stem
        self.nodes: list[ir.Node] = []

    def add(
        self, op_type: str, inputs: Sequence[ir.Value | None], word: str, **attributes: int | str | tuple[int, ...]
    ) -> ir.Value:
        name = self._names.free(f"{self._stem}_{word}")
        node = ir.node(op_type, inputs, attributes=attributes, name=name)
        node.outputs[0].name = self._names.free(f"{name}_Output")
        self.nodes.append(node)
        return node.outputs[0]
