"""Writes a filled plan into the graph: standard ONNX QuantizeLinear / DequantizeLinear, integer weights and biases.

Tensor T becomes T -> QuantizeLinear -> T_QuantizeLinear_Output -> DequantizeLinear -> T_DequantizeLinear_Output.
Integer nodes read the dequantized tensor; float nodes do too if an integer node made it (so that the runtime can
fuse that node whole), else they read T itself. A graph output keeps its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from service.contracts.errors import EngineError, UnsupportedModelError
from service.contracts.specs import NUMBER_TYPES, has_integer_kernels, is_integer
from worker.quantizer.emit.between import (
    TYPED_OPSET,
    drop_implied_activations,
    keep_apart,
    lengthen_biases,
    limit_by_operands,
    limit_integers,
    shield_moved,
)
from worker.quantizer.emit.contrib import has_kernel, write_product
from worker.quantizer.emit.embeddings import Tables
from worker.quantizer.emit.float16 import turn_beside
from worker.quantizer.graph.rewriting import opset_of
from worker.quantizer.graph.values import (
    Names,
    add_initializer,
    name_of,
    node_name,
)
from worker.quantizer.numerics.blocks import FloatGrid
from worker.quantizer.numerics.emission import (
    IR_VERSION,
    Written,
    activation_nodes,
    add_functions,
    integer_nodes,
    weight_nodes,
)
from worker.quantizer.numerics.integer import IntegerGrid, PerAxis, PerBlock, onnx_integers, onnx_type
from worker.quantizer.ops.channels import MOVERS
from worker.quantizer.plan.candidates import common_home
from worker.quantizer.plan.parameters import Parameter, Parameters
from worker.quantizer.plan.types import ActivationPlan, QuantizationPlan

PRODUCER = "quantmill"
_FEW_BITS = 4
# DequantizeLinear knows scales per block from here on.
BLOCKS_OPSET = 21
# onnxruntime's own domain knows 4- and 16-bit types at any opset.
_MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Emitted:
    """A plan as a model."""

    model: ir.Model  # quantized
    # by quantized activation of the plan: the tensor that stands for it there, dequantized
    restored: dict[str, str] = field(default_factory=dict)


def emit(model: ir.Model, plan: QuantizationPlan) -> Emitted:
    """Write ``plan`` into ``model``, which is changed in place.

    ``model`` is the prepared float one: pass a clone to keep it. The filled plan stays as it is.

    Raises:
        EngineError: the plan was not filled.
    """
    graph = model.graph
    write_moved(graph, plan)
    writer = _Writer(model, plan)
    writer.write_parameters()
    values = {value.name: value for value in (*graph.inputs, *(made for node in graph for made in node.outputs))}
    restored = {}
    for tensor in plan.activations:
        if tensor not in values:
            raise EngineError(f"the graph has no tensor {tensor!r}", tensor=tensor)
        restored[tensor] = writer.write_activation(values[tensor])
    if plan.integer_limits:
        limit_integers(graph, plan, writer.names)
    drop_implied_activations(graph, plan)
    limit_by_operands(graph, writer.names)
    _drop_unread(graph, writer.made)
    if plan.float16_nodes is not None:
        turn_beside(model, plan, writer.made)
    keep_apart(graph, writer.names, plan.kept_apart)
    if (opset_of(model) or 0) >= TYPED_OPSET:
        lengthen_biases(graph, writer.names)
        shield_moved(graph, writer.names)
    model.producer_name, model.producer_version = PRODUCER, None
    return Emitted(model, restored)


def write_moved(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Give constants that stay in float the values that algorithms have put in their place."""
    for name, array in plan.moved.items():
        if name in graph.initializers:
            graph.initializers[name].const_value = ir.tensor(array, name=name)


def restore_weights(model: ir.Model, plan: QuantizationPlan, tables: Tables) -> None:
    """Let the nodes that compute in float read their weights restored; for modes that write all others themselves.

    The model is changed in place; ``tables`` are written already.

    Raises:
        EngineError: the plan was not filled.
    """
    _Writer(model, plan).write_weights(tables)


class _Writer:
    """Writes the quantizers of a plan into a graph: Q/DQ nodes in the domain that knows their types at its opset.

    Attributes:
        names: in use.
        made: nodes that were put in.
    """

    def __init__(self, model: ir.Model, plan: QuantizationPlan) -> None:
        self._model, self._graph, self._plan = model, model.graph, plan
        self._one: ir.Node | None = None
        dtypes = [entry.spec.dtype for entry in plan.activations.values()]
        self._byte_activations = any(has_integer_kernels(dtype) for dtype in dtypes)
        self._integer_activations = any(is_integer(dtype) for dtype in dtypes)
        self._grids: dict[str, tuple[ir.Value, ir.Value]] = {}  # scale and zero point by source
        self._opset = opset_of(model) or 0
        self.names = Names(model.graph)
        self.made: set[ir.Node] = set()

    def write_parameters(self) -> None:
        """Let nodes read weights and biases as their grids represent them."""
        tables = Tables(self._graph, self._plan, self.names, blocks=self._opset >= BLOCKS_OPSET)
        self.made.update(tables.write_embeddings())
        self.write_weights(tables)
        self._write_biases()

    def write_weights(self, tables: Tables) -> None:
        """Let nodes read weights as their grids represent them; those that are a table too, from it."""
        graph, plan = self._graph, self._plan
        parameters = Parameters(graph, plan)
        for initializer in plan.weights:
            uses = graph.initializers[initializer].uses()
            readers = [usage for usage in uses if parameters.is_stored(usage.node, usage.idx)]
            if not readers:
                continue  # a table that is looked up and nothing else
            held = tables.shared(initializer)
            if held is not None:
                restored, added = held.restored()
                self.made.update(added)
                for usage in readers:
                    usage.node.replace_input_with(usage.idx, restored)
                continue
            written = self._products(initializer, (usage.node for usage in readers if usage.idx == 1), parameters)
            readers = [usage for usage in readers if usage.node not in written]
            if not readers:
                plan.spill_initializers(graph)
                continue
            home = common_home(graph, [usage.node for usage in readers])
            few_bits = any(self._meets_few_bits(usage.node) for usage in readers)
            dequantized = self._weight(initializer, parameters.weight(initializer), home, few_bits=few_bits)
            for usage in readers:
                usage.node.replace_input_with(usage.idx, dequantized)
            plan.spill_initializers(graph)

    def _write_biases(self) -> None:
        graph, plan = self._graph, self._plan
        parameters, nodes = Parameters(graph, plan), {node_name(node): node for node in graph}
        halves: dict[tuple[str, str], ir.Value] = {}
        for name, bias in plan.biases.items():
            node, now = nodes[name], parameters.of(nodes[name], 2)
            if now is not None and bias.is_half:
                key = bias.initializer, bias.spec.dtype
                if key not in halves:
                    halves[key] = self._insert(
                        weight_nodes(self.names, bias.initializer, now.values, FloatGrid(bias.spec.dtype))
                    )
                node.replace_input_with(2, halves[key])
            elif now is not None and isinstance(now.grid, IntegerGrid) and now.integers is not None:
                shared = len(graph.initializers[bias.initializer].uses()) > 1
                stem = f"{bias.initializer}_of_{name}" if shared else bias.initializer
                node.replace_input_with(2, self._dequantized(stem, now.integers, now.grid, graph))

    def _products(self, initializer: str, readers: Iterable[ir.Node], parameters: Parameters) -> set[ir.Node]:
        """Write products by onnxruntime's own operator, where it is asked for; the nodes that are gone."""
        entry, integers = self._plan.weights[initializer], parameters.weight(initializer).integers
        if entry.spec.kernel != "matmul_nbits" or integers is None:
            return set()
        products = {node for node in readers if node.graph is self._graph and has_kernel(node, entry)}
        for node in products:
            write_product(self._graph, self.names, node, integers, entry)
            self._model.opset_imports.setdefault(_MICROSOFT, 1)
        return products

    def _meets_few_bits(self, node: ir.Node) -> bool:
        read = [value for value in node.inputs if value is not None]
        entries = [self._plan.activations.get(value.name or "") for value in (*read, self._plan.carrier(node))]
        return any(entry is not None and _has_few_bits(entry) for entry in entries)

    def _weight(self, stem: str, weight: Parameter, home: ir.Graph, *, few_bits: bool) -> ir.Value:
        """What the readers of a weight are to read; it is restored in ``home`` where DequantizeLinear can do that.

        With ``few_bits`` it meets activations of 4 bits.

        Raises:
            UnsupportedModelError: the opset does not know the type.
        """
        grid = weight.grid
        if grid is not None and not isinstance(grid, IntegerGrid):
            return self._insert_unfolded(weight_nodes(self.names, stem, weight.values, grid))
        if grid is None or weight.integers is None:
            raise EngineError(f"weight {stem!r} was planned but not filled", tensor=stem)
        known = NUMBER_TYPES[grid.dtype]
        if self._opset < known.opset and not known.any_opset:
            raise self._too_old(grid.dtype, known.opset)
        if _has_rows(weight.integers, grid) and not known.cast_only:
            return self._dequantized_rows(stem, weight.integers, grid, home, half_scale=weight.scale == "float16")
        # Between 8-bit activations onnxruntime takes 8-bit integers with scales per block for per-channel ones.
        mistaken = self._byte_activations and isinstance(grid.granularity, PerBlock) and known.integer_kernels
        # With 4-bit activations it fuses 8-bit weights to a QLinearConv, which then refuses them.
        mistaken = mistaken or (few_bits and known.integer_kernels)
        if known.cast_only or mistaken:
            return self._insert_unfolded(integer_nodes(self.names, stem, weight.integers, grid))
        return self._dequantized(stem, weight.integers, grid, home, half_scale=weight.scale == "float16")

    def _dequantized(
        self, stem: str, integers: np.ndarray, grid: IntegerGrid, home: ir.Graph, *, half_scale: bool = False
    ) -> ir.Value:
        free = self.names.free
        stored = add_initializer(home, free(f"{stem}_quantized"), onnx_integers(integers, grid.dtype))
        scale = self._half_scale(stem, grid.scale, home) if half_scale else None
        scale = scale or add_initializer(home, free(f"{stem}_scale"), grid.scale)
        zero_point = add_initializer(home, free(f"{stem}_zero_point"), onnx_integers(grid.zero_point, grid.dtype))
        node = self._node("DequantizeLinear", [stored, scale, zero_point], grid, stem)
        node.outputs[0].dtype, node.outputs[0].shape = ir.DataType.FLOAT, ir.Shape(integers.shape)
        maker = scale.producer()
        home.insert_before(home[0], [node] if maker is None else [maker, node])  # so that all readers come after it
        return node.outputs[0]

    def _dequantized_rows(
        self, stem: str, integers: np.ndarray, grid: IntegerGrid, home: ir.Graph, *, half_scale: bool
    ) -> ir.Value:
        """A weight of both directions of a recurrent layer, with one scale per row of either.

        It is a matrix behind a DequantizeLinear with one scale per channel, which every opset and runtime knows and
        onnxruntime restores in half the time that blocks take it, and gets its shape from a Reshape.
        """
        shape, scale, zero_point = integers.shape, grid.scale.reshape(-1), grid.zero_point.reshape(-1)
        flat = replace(grid, scale=scale, zero_point=zero_point, granularity=PerAxis(0))
        matrix = self._dequantized(stem, integers.reshape(-1, shape[-1]), flat, home, half_scale=half_scale)
        wanted = add_initializer(home, self.names.free(f"{stem}_shape"), np.asarray(shape, np.int64))
        node = ir.node("Reshape", [matrix, wanted], name=self.names.free(f"{stem}_Reshape"))
        _describe(node.outputs[0], self.names.free(f"{stem}_Reshape_Output"), ir.Shape(shape))
        self.made.add(node)
        home.insert_after(next(made for made in home if matrix in made.outputs), node)
        return node.outputs[0]

    def _half_scale(self, stem: str, scale: np.ndarray, home: ir.Graph) -> ir.Value:
        """Scales that are stored in 16 bits, and turned to float32 behind a Cast that is not yet in the graph."""
        stored = add_initializer(home, self.names.free(f"{stem}_scale"), scale.astype(np.float16))
        cast = ir.node(
            "Cast", [stored], attributes={"to": int(ir.DataType.FLOAT)}, name=self.names.free(f"{stem}_Cast")
        )
        _describe(cast.outputs[0], self.names.free(f"{stem}_scale_Cast"), ir.Shape(scale.shape))
        return cast.outputs[0]

    def write_activation(self, value: ir.Value) -> str:
        """Put a planned activation on its grid; the name of the tensor that stands for it then."""
        graph, tensor = self._graph, name_of(value)
        entry = self._plan.activations[tensor]
        grid = entry.quantization
        if grid is None:
            raise EngineError(f"tensor {tensor!r} was planned but not filled", tensor=tensor)
        producer = value.producer()
        if producer is not None and producer.op_type == "MaxPool" and self._is_on_grid(entry):
            # the pair behind a Reshape or the like would be moved before the pool
            self._keep_apart(value, producer, MOVERS)
            return tensor
        made_by_integer_node = producer is not None and _rounds(producer, self._plan)
        readers = [
            usage
            for usage in value.uses()
            if made_by_integer_node or (usage.node.graph is graph and _rounds(usage.node, self._plan))
        ]
        if not isinstance(grid, IntegerGrid):
            written = activation_nodes(self.names, value, grid, self._opset)
            self._register(written)
            nodes, restored = written.nodes, written.output
        else:
            nodes = self._pair(value, entry.source, grid)
            restored = nodes[-1].outputs[0]
        if producer is None:
            graph.insert_before(graph[0], nodes)
        else:
            graph.insert_after(producer, nodes)
        for usage in readers:
            usage.node.replace_input_with(usage.idx, restored)
        if _has_few_bits(entry):
            self._keep_apart(restored, nodes[-1], ("MaxPool",))
        if value.is_graph_output() and made_by_integer_node:
            value.name, restored.name = self.names.free(f"{tensor}_QuantizeLinear_Input"), tensor
            for k, output in enumerate(graph.outputs):
                if output is value:
                    graph.outputs[k] = restored
        return name_of(restored)

    def _keep_apart(self, value: ir.Value, maker: ir.Node, op_types: Collection[str]) -> None:
        """A product between a tensor and some readers: onnxruntime would run MaxPool on 4 bits, which it cannot."""
        readers = [usage for usage in value.uses() if usage.node.op_type in op_types]
        if readers:
            times = self._times_one(value)
            self._graph.insert_after(maker, times)
            for usage in readers:
                usage.node.replace_input_with(usage.idx, times.outputs[0])

    def _is_on_grid(self, entry: ActivationPlan) -> bool:
        """True for a tensor of 4 bits that was rounded before its values were moved."""
        return entry.source != entry.tensor and _has_few_bits(entry)

    def _pair(self, value: ir.Value, source: str, grid: IntegerGrid) -> list[ir.Node]:
        """QuantizeLinear and DequantizeLinear; scale and zero point are shared by all tensors of one ``source``."""
        if source not in self._grids:
            zero_point = onnx_integers(grid.zero_point, grid.dtype)
            self._grids[source] = (
                add_initializer(self._graph, self.names.free(f"{source}_scale"), grid.scale),
                add_initializer(self._graph, self.names.free(f"{source}_zero_point"), zero_point),
            )
        nodes: list[ir.Node] = []
        stem, read = name_of(value), value
        for op_type, dtype in (("QuantizeLinear", onnx_type(grid.dtype)), ("DequantizeLinear", ir.DataType.FLOAT)):
            nodes.append(self._node(op_type, [read, *self._grids[source]], grid, stem))
            read = nodes[-1].outputs[0]
            read.dtype, read.shape = dtype, value.shape
        return nodes

    def _node(self, op_type: str, inputs: list[ir.Value], grid: IntegerGrid, stem: str) -> ir.Node:
        """A QuantizeLinear or DequantizeLinear; its name and that of its output begin with ``stem``.

        Raises:
            UnsupportedModelError: blocks need opset 21.
        """
        domain = ""
        if self._opset < BLOCKS_OPSET and isinstance(grid.granularity, PerBlock):
            raise self._too_old("scales per block", BLOCKS_OPSET)
        if self._opset < NUMBER_TYPES[grid.dtype].opset:
            domain = _MICROSOFT
            self._model.opset_imports.setdefault(_MICROSOFT, 1)
        attributes, name = grid.granularity.attributes(), self.names.free(f"{stem}_{op_type}")
        node = ir.node(op_type, inputs, attributes=attributes, domain=domain, name=name)
        node.outputs[0].name = self.names.free(f"{stem}_{op_type}_Output")
        self.made.add(node)
        return node

    def _too_old(self, what: str, needed: int) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{what} need opset {needed}, the model has {self._opset}",
            hint=f"Export the model again with opset {needed} or later.",
            opset=self._opset,
        )

    def _insert(self, written: Written) -> ir.Value:
        """Put a restored parameter at the head of the graph; what readers read."""
        self._register(written)
        self._graph.insert_before(self._graph[0], written.nodes)
        return written.output

    def _insert_unfolded(self, written: Written) -> ir.Value:
        """The same for a weight.

        Between integer activations onnxruntime rounds a constant float weight to int8, one scale for the tensor. So
        there the weight is multiplied by a 1 that the runtime does not take for a constant.
        """
        if not self._integer_activations:
            return self._insert(written)
        self._register(written)
        times = self._times_one(written.output)
        assert self._one is not None  # noqa: S101 - it was made for the product
        self._graph.insert_after(self._one, [*written.nodes, times])
        return times.outputs[0]

    def _times_one(self, value: ir.Value) -> ir.Node:
        """A product with a 1 that the runtime does not take for a constant; for the caller to insert."""
        free = self.names.free
        if self._one is None:
            stored = add_initializer(self._graph, free("one_quantized"), np.asarray(1, np.int8))
            scale = add_initializer(self._graph, free("one_scale"), np.asarray(1, np.float32))
            self._one = ir.node("DequantizeLinear", [stored, scale], name=free("one_DequantizeLinear"))
            _describe(self._one.outputs[0], free("one"), ir.Shape([]))
            self._graph.insert_before(self._graph[0], self._one)
        times = ir.node("Mul", [value, self._one.outputs[0]], name=free(f"{value.name}_Mul"))
        _describe(times.outputs[0], free(f"{value.name}_kept"), value.shape)
        return times

    def _register(self, written: Written) -> None:
        """Add the initializers and functions of ``written``; its nodes are for the caller to insert."""
        for value in written.initializers:
            self._graph.register_initializer(value)
        add_functions(self._model, written.functions)
        self.made.update(written.nodes)
        self._model.ir_version = max(self._model.ir_version or 0, IR_VERSION)


def _has_rows(integers: np.ndarray, grid: IntegerGrid) -> bool:
    """True for several matrices each of whose rows is one block."""
    blocks = grid.granularity
    return isinstance(blocks, PerBlock) and integers.ndim == 3 and blocks.axis == 2 and blocks.size >= integers.shape[2]


def _has_few_bits(entry: ActivationPlan) -> bool:
    return NUMBER_TYPES[entry.spec.dtype].bits == _FEW_BITS


def _describe(value: ir.Value, name: str, shape: ir.Shape | None) -> None:
    value.name, value.dtype, value.shape = name, ir.DataType.FLOAT, shape


def _rounds(node: ir.Node, plan: QuantizationPlan) -> bool:
    entry = plan.nodes.get(node_name(node))
    return entry is not None and entry.rounds


def _drop_unread(graph: ir.Graph, made: set[ir.Node]) -> None:
    """Remove new nodes that nothing reads, and float initializers that integers have replaced."""
    outputs = set(graph.outputs)
    for node in reversed(list(graph)):
        if node in made and not any(output.uses() or output in outputs for output in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
