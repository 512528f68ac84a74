"""Writes a filled plan into the graph: standard ONNX QuantizeLinear / DequantizeLinear, integer weights and biases.

Tensor T becomes T -> QuantizeLinear -> T_QuantizeLinear_Output -> DequantizeLinear -> T_DequantizeLinear_Output.
Integer nodes read the dequantized tensor; float nodes do too if an integer node made it (so that the runtime can
fuse that node whole), else they read T itself. A graph output keeps its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from service.contracts.dtypes import NUMBER_TYPES, has_integer_kernels, is_integer
from service.contracts.errors import EngineError, UnsupportedModelError
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    activation_limits,
    add_initializer,
    constant,
    name_of,
    node_name,
)
from worker.quantizer.numerics.emission import (
    IR_VERSION,
    Written,
    activation_nodes,
    add_functions,
    integer_nodes,
    weight_nodes,
)
from worker.quantizer.numerics.granularity import PerBlock
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.numerics.minifloat import FloatGrid
from worker.quantizer.numerics.storage import onnx_integers, onnx_type
from worker.quantizer.plan.limits import limited_operand
from worker.quantizer.plan.parameters import Parameter, Parameters
from worker.quantizer.plan.subgraphs import common_home
from worker.quantizer.plan.types import QuantizationPlan, Role

PRODUCER = "quantmill"
# DequantizeLinear knows scales per block from here on.
BLOCKS_OPSET = 21
# onnxruntime's own domain knows 4- and 16-bit types at any opset.
_MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Emitted:
    """A plan as a model.

    Attributes:
        model: quantized.
        restored: by quantized activation of the plan: the tensor that stands for it there, dequantized.
    """

    model: ir.Model
    restored: dict[str, str] = field(default_factory=dict)


def emit(model: ir.Model, plan: QuantizationPlan) -> Emitted:
    """Write ``plan`` into ``model``, which is changed in place.

    Args:
        model: prepared float model; pass a clone to keep the original.
        plan: filled plan (grids, integers); stays as it is.

    Raises:
        EngineError: the plan was not filled.
    """
    graph = model.graph
    _move_parameters(graph, plan)
    names = Names(graph)
    writer = Writer(model, plan)
    _emit_parameters(graph, plan, names, writer)
    values = {value.name: value for value in (*graph.inputs, *(made for node in graph for made in node.outputs))}
    grids: dict[str, tuple[ir.Value, ir.Value]] = {}
    restored = {}
    for tensor in plan.activations:
        if tensor not in values:
            raise EngineError(f"the graph has no tensor {tensor!r}", tensor=tensor)
        restored[tensor] = _emit_activation(graph, plan, values[tensor], grids, names, writer)
    if plan.integer_limits:
        _limit_integers(graph, plan, names)
    _drop_implied_activations(graph, plan)
    _drop_unread(graph, writer.made)
    model.producer_name, model.producer_version = PRODUCER, None
    return Emitted(model, restored)


class Writer:
    """Makes Q/DQ nodes in the domain that knows their types at the model's opset."""

    def __init__(self, model: ir.Model, plan: QuantizationPlan) -> None:
        self._model = model
        self._one: ir.Node | None = None
        dtypes = [entry.spec.dtype for entry in plan.activations.values()]
        self.byte_activations = any(has_integer_kernels(dtype) for dtype in dtypes)
        self.integer_activations = any(is_integer(dtype) for dtype in dtypes)
        self.made: set[ir.Node] = set()
        self.opset = max((model.opset_imports[d] for d in DEFAULT_DOMAINS if d in model.opset_imports), default=0)

    def node(
        self, op_type: str, inputs: list[ir.Value], grid: IntegerGrid, *, name: str, attributes: dict[str, int]
    ) -> ir.Node:
        """A QuantizeLinear or DequantizeLinear.

        Raises:
            UnsupportedModelError: blocks need opset 21.
        """
        domain = ""
        if self.opset < BLOCKS_OPSET and isinstance(grid.granularity, PerBlock):
            raise self.too_old("scales per block", BLOCKS_OPSET)
        if self.opset < NUMBER_TYPES[grid.dtype].opset:
            domain = _MICROSOFT
            self._model.opset_imports.setdefault(_MICROSOFT, 1)
        node = ir.node(op_type, inputs, attributes=attributes, domain=domain, name=name)
        self.made.add(node)
        return node

    def too_old(self, what: str, needed: int) -> UnsupportedModelError:
        """The error to raise where the model's opset does not have what is to be written."""
        return UnsupportedModelError(
            f"{what} need opset {needed}, the model has {self.opset}",
            hint=f"Export the model anew with opset {needed} or later.",
            opset=self.opset,
        )

    def insert(self, written: Written, names: Names) -> ir.Value:
        """Put a restored weight at the head of the graph; what readers read.

        Between integer activations onnxruntime rounds a constant float weight to int8, one scale for the tensor. So
        there the weight is multiplied by a 1 that the runtime does not take for a constant.
        """
        graph, value = self._model.graph, written.output
        self.register(written)
        if not self.integer_activations:
            graph.insert_before(graph[0], written.nodes)
            return value
        if self._one is None:
            self._one = self._unfolded_one(graph, names)
        times = ir.node("Mul", [value, self._one.outputs[0]], name=names.free(f"{value.name}_Mul"))
        times.outputs[0].name = names.free(f"{value.name}_kept")
        times.outputs[0].dtype, times.outputs[0].shape = ir.DataType.FLOAT, value.shape
        graph.insert_after(self._one, [*written.nodes, times])
        return times.outputs[0]

    @staticmethod
    def _unfolded_one(graph: ir.Graph, names: Names) -> ir.Node:
        stored = add_initializer(graph, names.free("one_quantized"), np.asarray(1, np.int8))
        scale = add_initializer(graph, names.free("one_scale"), np.asarray(1, np.float32))
        node = ir.node("DequantizeLinear", [stored, scale], name=names.free("one_DequantizeLinear"))
        node.outputs[0].name = names.free("one")
        node.outputs[0].dtype, node.outputs[0].shape = ir.DataType.FLOAT, ir.Shape([])
        graph.insert_before(graph[0], node)
        return node

    def register(self, written: Written) -> None:
        """Add the initializers and functions of ``written``; its nodes are for the caller to insert."""
        for value in written.initializers:
            self._model.graph.register_initializer(value)
        add_functions(self._model, written.functions)
        self.made.update(written.nodes)
        self._model.ir_version = max(self._model.ir_version or 0, IR_VERSION)


def _move_parameters(graph: ir.Graph, plan: QuantizationPlan) -> None:
    for name, array in plan.moved.items():
        value = graph.initializers.get(name)
        if value is not None:
            value.const_value = ir.tensor(array, name=name)


def _emit_parameters(graph: ir.Graph, plan: QuantizationPlan, names: Names, writer: Writer) -> None:
    parameters, nodes = Parameters(graph, plan), {node_name(node): node for node in graph}
    for initializer in plan.weights:
        uses = graph.initializers[initializer].uses()
        readers = [usage for usage in uses if parameters.is_stored(usage.node, usage.idx)]
        home = common_home(graph, [usage.node for usage in readers])
        dequantized = _restored_weight(graph, initializer, parameters.weight(initializer), names, writer, home)
        for usage in readers:
            usage.node.replace_input_with(usage.idx, dequantized)
    halves: dict[tuple[str, str], ir.Value] = {}
    for name, bias in plan.biases.items():
        node, now = nodes[name], parameters.of(nodes[name], 2)
        if now is not None and bias.is_half:
            key = bias.initializer, bias.spec.dtype
            if key not in halves:
                halves[key] = _restored_half(graph, *key, now.values, names, writer)
            node.replace_input_with(2, halves[key])
        elif now is not None and isinstance(now.grid, IntegerGrid) and now.integers is not None:
            shared = len(graph.initializers[bias.initializer].uses()) > 1
            stem = f"{bias.initializer}_of_{name}" if shared else bias.initializer
            node.replace_input_with(2, _dequantize_constant(graph, stem, now.integers, now.grid, names, writer))


def _restored_weight(
    graph: ir.Graph, stem: str, weight: Parameter, names: Names, writer: Writer, home: ir.Graph
) -> ir.Value:
    grid = weight.grid
    if grid is not None and not isinstance(grid, IntegerGrid):
        return writer.insert(weight_nodes(names, stem, weight.values, grid), names)
    if grid is None or weight.integers is None:
        raise EngineError(f"weight {stem!r} was planned but not filled", tensor=stem)
    known = NUMBER_TYPES[grid.dtype]
    if writer.opset < known.opset and not known.any_opset:
        raise writer.too_old(grid.dtype, known.opset)
    # Between 8-bit activations onnxruntime takes 8-bit integers with scales per block for such with one per channel.
    mistaken = writer.byte_activations and isinstance(grid.granularity, PerBlock) and known.integer_kernels
    if known.cast_only or mistaken:
        return writer.insert(integer_nodes(names, stem, weight.integers, grid), names)
    return _dequantize_constant(graph, stem, weight.integers, grid, names, writer, home)


def _restored_half(graph: ir.Graph, stem: str, dtype: str, array: np.ndarray, names: Names, writer: Writer) -> ir.Value:
    written = weight_nodes(names, stem, array, FloatGrid(dtype))
    writer.register(written)
    graph.insert_before(graph[0], written.nodes)
    return written.output


def _role(node: ir.Node, plan: QuantizationPlan) -> Role | None:
    entry = plan.nodes.get(node_name(node))
    return entry.role if entry is not None else None


def _dequantize_constant(
    graph: ir.Graph,
    stem: str,
    integers: np.ndarray,
    grid: IntegerGrid,
    names: Names,
    writer: Writer,
    home: ir.Graph | None = None,
) -> ir.Value:
    home = home or graph
    stored = add_initializer(home, names.free(f"{stem}_quantized"), onnx_integers(integers, grid.dtype))
    scale = add_initializer(home, names.free(f"{stem}_scale"), grid.scale)
    zero_point = add_initializer(home, names.free(f"{stem}_zero_point"), onnx_integers(grid.zero_point, grid.dtype))
    node = writer.node(
        "DequantizeLinear",
        [stored, scale, zero_point],
        grid,
        name=names.free(f"{stem}_DequantizeLinear"),
        attributes=grid.granularity.attributes(),
    )
    node.outputs[0].name = names.free(f"{stem}_DequantizeLinear_Output")
    node.outputs[0].dtype = ir.DataType.FLOAT
    node.outputs[0].shape = ir.Shape(integers.shape)
    home.insert_before(home[0], node)  # at the head, so that every reader comes after it
    return node.outputs[0]


def _emit_activation(
    graph: ir.Graph,
    plan: QuantizationPlan,
    value: ir.Value,
    grids: dict[str, tuple[ir.Value, ir.Value]],
    names: Names,
    writer: Writer,
) -> str:
    tensor = name_of(value)
    entry = plan.activations[tensor]
    grid = entry.quantization
    if grid is None:
        raise EngineError(f"tensor {tensor!r} was planned but not filled", tensor=tensor)
    producer = value.producer()
    made_by_integer_node = producer is not None and _role(producer, plan) is not None
    readers = [
        usage
        for usage in value.uses()
        if made_by_integer_node or (usage.node.graph is graph and _role(usage.node, plan) is not None)
    ]
    if not isinstance(grid, IntegerGrid):
        written = activation_nodes(names, value, grid, writer.opset, saturate=True)
        writer.register(written)
        nodes, restored = written.nodes, written.output
    else:
        nodes = _quantize_dequantize(graph, value, entry.source, grid, grids, names, writer)
        restored = nodes[-1].outputs[0]
    if producer is None:
        graph.insert_before(graph[0], nodes)
    else:
        graph.insert_after(producer, nodes)
    for usage in readers:
        usage.node.replace_input_with(usage.idx, restored)
    if value.is_graph_output() and made_by_integer_node:
        value.name, restored.name = names.free(f"{tensor}_QuantizeLinear_Input"), tensor
        for k, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[k] = restored
    return name_of(restored)


def _quantize_dequantize(
    graph: ir.Graph,
    value: ir.Value,
    source: str,
    grid: IntegerGrid,
    grids: dict[str, tuple[ir.Value, ir.Value]],
    names: Names,
    writer: Writer,
) -> list[ir.Node]:
    """QuantizeLinear and DequantizeLinear; scale and zero point are shared by all tensors of one ``source``."""
    tensor = name_of(value)
    if source not in grids:
        zero_point = onnx_integers(grid.zero_point, grid.dtype)
        grids[source] = (
            add_initializer(graph, names.free(f"{source}_scale"), grid.scale),
            add_initializer(graph, names.free(f"{source}_zero_point"), zero_point),
        )
    scale, zero = grids[source]
    nodes: list[ir.Node] = []
    for op_type, dtype in (("QuantizeLinear", onnx_type(grid.dtype)), ("DequantizeLinear", ir.DataType.FLOAT)):
        read = nodes[-1].outputs[0] if nodes else value
        node = writer.node(op_type, [read, scale, zero], grid, name=names.free(f"{tensor}_{op_type}"), attributes={})
        node.outputs[0].name = names.free(f"{tensor}_{op_type}_Output")
        node.outputs[0].dtype, node.outputs[0].shape = dtype, value.shape
        nodes.append(node)
    return nodes


def _limit_integers(graph: ir.Graph, plan: QuantizationPlan, names: Names) -> None:
    """Move fused limits per channel between QuantizeLinear and DequantizeLinear, where nothing else changes.

    The runtime then fuses the node before with its pairs as if there were no limit.
    """
    for node in list(graph):
        index = limited_operand(node) if _role(node, plan) is Role.FUSED else None
        value = node.outputs[0]
        entry = plan.activations.get(name_of(value)) if index is not None else None
        if index is None or entry is None or not isinstance(entry.quantization, IntegerGrid):
            continue
        readers = [usage.node for usage in value.uses()]
        alone = len(readers) == 1 and readers[0].op_type == "QuantizeLinear" and not value.is_graph_output()
        if alone and has_integer_kernels(entry.quantization.dtype):
            _limit_behind(graph, node, index, readers[0], entry.quantization.at_run_time(), names)


def _limit_behind(
    graph: ir.Graph, node: ir.Node, index: int, quantize: ir.Node, grid: IntegerGrid, names: Names
) -> None:
    before, limit, name = node.inputs[index], constant(node.inputs[1 - index]), name_of(node.outputs[0])
    if before is None or limit is None:
        return
    stored = add_initializer(graph, names.free(f"{name}_limit"), onnx_integers(grid.quantize(limit), grid.dtype))
    rounded = quantize.outputs[0]
    limited = ir.node(node.op_type, [rounded, stored], name=node_name(node))
    made = limited.outputs[0]
    made.name, made.type, made.shape = names.free(f"{name}_limited"), rounded.type, rounded.shape
    for usage in [usage for usage in rounded.uses() if usage.node is not limited]:
        usage.node.replace_input_with(usage.idx, made)
    graph.insert_after(quantize, limited)
    quantize.replace_input_with(0, before)
    graph.remove(node, safe=True)
    before.name = name


def _drop_implied_activations(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Remove a fused Relu or Clip whose effect the saturation of the QuantizeLinear behind it gives exactly.

    q(clip(x, lo, hi)) = q(x) for every x if q(lo) is the smallest and q(hi) the largest integer.
    """
    for node in list(graph):
        if _role(node, plan) is not Role.FUSED or node.op_type not in ("Relu", "Clip"):
            continue
        value = node.outputs[0]
        readers = [usage.node for usage in value.uses()]
        if len(readers) != 1 or readers[0].op_type != "QuantizeLinear" or value.is_graph_output():
            continue
        entry = plan.activations.get(name_of(value))
        if entry is None or not isinstance(entry.quantization, IntegerGrid) or not _implied(node, entry.quantization):
            continue
        before = node.inputs[0]
        if before is None:
            continue
        name = name_of(value)
        readers[0].replace_input_with(0, before)
        graph.remove(node, safe=True)
        before.name = name


def _implied(node: ir.Node, grid: IntegerGrid) -> bool:
    low, high = activation_limits(node)
    saturating = grid.at_run_time()
    reached = saturating.quantize(np.array([low, high], np.float32))
    return tuple(reached.tolist()) == saturating.limits


def _drop_unread(graph: ir.Graph, made: set[ir.Node]) -> None:
    """Remove new nodes that nothing reads, and float initializers that integers have replaced."""
    outputs = set(graph.outputs)
    for node in reversed(list(graph)):
        if node in made and not any(output.uses() or output in outputs for output in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
