"""Part of a model in float16: the nodes that are named compute in 16 bits, Casts stand where they meet the rest.

Which inputs and outputs of an operator follow is read off its ONNX schema: those whose type variable may be float16.
What an operator wants in float32 anyhow (scales of a Resize, statistics that a LayerNormalization gives out) stays so.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import numpy as np
import onnx
import onnx_ir as ir

from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    add_initializer,
    constant,
    is_constant,
    is_float32,
    node_name,
    users,
)
from worker.quantizer.numerics.integer import LARGEST_HALF, fades_in_half
from worker.quantizer.ops.table import Float16, operator
from worker.quantizer.plan.types import QuantizationPlan

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
_HALF_WORD, _FLOAT_WORD = "tensor(float16)", "tensor(float)"


@lru_cache(maxsize=1024)
def _turning(op_type: str, opset: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """By input and by output of an operator: whether float32 there may become float16. The last one goes on."""
    schema = onnx.defs.get_schema(op_type, opset, "")
    free = {
        constraint.type_param_str
        for constraint in schema.type_constraints
        if {_HALF_WORD, _FLOAT_WORD} <= set(constraint.allowed_type_strs)
    }
    inputs = tuple(part.type_str in free for part in schema.inputs)
    return inputs, tuple(part.type_str in free for part in schema.outputs)


def can_turn(node: ir.Node, opset: int) -> bool:
    """True if the node makes float32 that could be float16, or rounds such floats to a grid.

    That is told by its schema; a type that an attribute names stays.
    """
    if node.domain not in DEFAULT_DOMAINS or not onnx.defs.has(node.op_type, opset, ""):
        return False
    if operator(node.op_type).float16 is Float16.NEVER:
        return False
    if any(
        attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attribute in node.attributes.values()
    ):
        return False
    if node.op_type == "Cast":
        return is_float32(node.outputs[0])
    _, outputs = _turning(node.op_type, opset)
    makes = any(is_float32(value) and _at(outputs, k) for k, value in enumerate(node.outputs))
    if not makes and node.op_type != "QuantizeLinear":
        return False
    # What makes a type of its own (ConstantOfShape, EyeLike, random numbers) has no input that tells it.
    inputs, _ = _turning(node.op_type, opset)
    return any(is_float32(value) and _at(inputs, k) for k, value in enumerate(node.inputs))


def _at(flags: tuple[bool, ...], index: int) -> bool:
    return flags[min(index, len(flags) - 1)] if flags else False


def float_constants(node: ir.Node) -> list[np.ndarray]:
    """The float32 constants that the node reads."""
    arrays = (constant(value) for value in node.inputs if is_float32(value))
    return [array for array in arrays if array is not None]


def to_float16(model: ir.Model, nodes: Collection[str], opset: int, *, interface: bool = False) -> None:
    """Let some nodes of a model compute in float16; changes it in place.

    Types of the model's values are known, and each of ``nodes`` (names) ``can_turn``. With ``interface`` float32 inputs
    and outputs of the model become float16 as well.
    """
    _Turner(model.graph, nodes, opset, interface).run()


class _Turner:
    def __init__(self, graph: ir.Graph, nodes: Collection[str], opset: int, interface: bool) -> None:
        self._graph, self._names, self._opset, self._interface = graph, Names(graph), opset, interface
        self._nodes = [node for node in graph if node_name(node) in nodes]
        self._chosen = set(self._nodes)
        self._float16_nodes: dict[ir.Value, ir.Value] = {}  # float32 value -> the same as float16
        self._results: set[ir.Value] = set()

    def run(self) -> None:
        if self._interface:
            self._turn_inputs()
        for node in self._nodes:
            self._turn(node)
        for value in list(self._results):
            self._widen(value)
        if self._interface:
            self._narrow_outputs()
        for name, value in list(self._graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del self._graph.initializers[name]

    def _narrow_outputs(self) -> None:
        """Outputs that are float32 still, as nodes in float32 make them, become float16 under their names."""
        for k, value in enumerate(self._graph.outputs):
            if is_float32(value) and not is_constant(value):
                name = value.name
                value.name = self._names.free(f"{name}_float32")
                self._graph.outputs[k] = self._cast(value, _HALF, f"{name}_float16", None)
                self._graph.outputs[k].name = name

    def _turn_inputs(self) -> None:
        for value in self._graph.inputs:
            if is_float32(value):
                value.dtype = _HALF
                self._results.add(value)

    def _turn(self, node: ir.Node) -> None:
        inputs, outputs = _turning(node.op_type, self._opset)
        if node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", _HALF.value)
        else:
            for k, value in enumerate(node.inputs):
                if value is not None and is_float32(value) and _at(inputs, k):
                    node.replace_input_with(k, self._half(value, node))
        for k, value in enumerate(node.outputs):
            if is_float32(value) and value.name and (node.op_type == "Cast" or _at(outputs, k)):
                value.dtype = _HALF
                self._results.add(value)

    def _half(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """A float32 value as float16: a constant of its own, or behind a Cast."""
        if value not in self._float16_nodes:
            array = constant(value)
            stem = f"{value.name}_float16"
            if array is not None:
                narrow = np.clip(array, -LARGEST_HALF, LARGEST_HALF, where=np.isfinite(array), out=array.copy())
                self._float16_nodes[value] = add_initializer(
                    self._graph, self._names.free(stem), narrow.astype(np.float16)
                )
            else:
                self._float16_nodes[value] = self._cast(value, _HALF, stem, reader)
        return self._float16_nodes[value]

    def _cast(self, value: ir.Value, to: ir.DataType, stem: str, reader: ir.Node | None) -> ir.Value:
        node = ir.node("Cast", [value], attributes={"to": to.value}, name=self._names.free(f"{stem}_Cast"))
        made = node.outputs[0]
        made.name, made.dtype, made.shape = self._names.free(stem), to, value.shape
        producer = value.producer()
        if producer is not None:
            self._graph.insert_after(producer, node)
        elif len(self._graph):
            self._graph.insert_before(self._graph[0], node)
        return made

    def _widen(self, value: ir.Value) -> None:
        """Give those who want float32 of a value that is float16 now a Cast of it; outputs keep their names."""
        others = [usage for usage in value.uses() if not self._takes_half(usage.node, usage.idx)]
        leaves = value.is_graph_output() and not self._interface
        if not others and not leaves:
            return
        name = value.name
        if leaves:
            value.name = self._names.free(f"{name}_float16")
        wide = self._cast(value, _FLOAT, f"{name}_float32", None)
        for usage in others:
            usage.node.replace_input_with(usage.idx, wide)
        if leaves:
            wide.name = name
            for k, output in enumerate(self._graph.outputs):
                if output is value:
                    self._graph.outputs[k] = wide

    def _takes_half(self, node: ir.Node, index: int) -> bool:
        """True if a node reads whatever float comes: one that was turned, or whose result does not tell its type."""
        if node in self._chosen:
            return node.op_type == "Cast" or _at(_turning(node.op_type, self._opset)[0], index)
        return node.op_type in ("Shape", "Size", "Cast") and node.domain in DEFAULT_DOMAINS


def handed_on(graph: ir.Graph) -> set[ir.Value]:
    """Values of the main graph that a sub-graph gives out as they are, in the type that it declares."""
    return {value for part in graph.subgraphs() for value in part.outputs if value.graph is graph}


def turn_beside(model: ir.Model, plan: QuantizationPlan, made: Collection[ir.Node]) -> None:
    """Let the nodes that the plan names compute in float16, and the quantizers before and behind them.

    ``made`` are nodes that were put in as quantizers; the model is changed in place.
    """
    opset, chosen = model.graph.opset_imports.get("", 0), plan.float16_nodes or frozenset()
    float16_nodes: set[str] = set()
    for node in model.graph:
        if not can_turn(node, opset):
            continue
        named = node_name(node) in chosen
        if node in made and any(map(fades_in_half, float_constants(node))):
            continue  # its scale
        if node in made:
            read = [value.producer() for value in node.inputs[:1] if value is not None]
            makers = [maker for maker in read if maker is not None]
            beside = makers if node.op_type == "QuantizeLinear" else users(node.outputs[0])
            named = any(node_name(other) in chosen for other in beside)
        if named:
            float16_nodes.add(node_name(node))
    to_float16(model, float16_nodes, opset, interface=plan.half_interface)
