"""Small questions about onnx-ir values and nodes that many parts ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

DEFAULT_DOMAINS = ("", "ai.onnx")
_OF_SHAPE = ("Shape", "Size")

AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...]


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """An input; None where it is left out, or there are no more."""
    return node.inputs[index] if len(node.inputs) > index else None


def name_of(value: ir.Value) -> str:
    """The value's name; preparation has named every value."""
    if value.name is None:
        raise ValueError("a value without a name: preparation must run first")
    return value.name


def node_name(node: ir.Node) -> str:
    """The node's name; preparation has named every node."""
    if node.name is None:
        raise ValueError("a node without a name: preparation must run first")
    return node.name


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of an initializer that no caller can override, else None."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def is_constant(value: ir.Value | None) -> bool:
    """True for an initializer that no caller can override; reads no data."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def is_float32(value: ir.Value | None) -> bool:
    """True if the value is known to hold float32."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def users(value: ir.Value) -> list[ir.Node]:
    """Nodes that read the value, sub-graph nodes included, each once and in order of use."""
    return list(dict.fromkeys(usage.node for usage in value.uses()))


def reads(value: ir.Value) -> list[ir.Node]:
    """A node for every use of what the value holds, in order: whoever asks for its shape alone is not among them."""
    nodes = (usage.node for usage in value.uses())
    return [node for node in nodes if node.op_type not in _OF_SHAPE or node.domain not in DEFAULT_DOMAINS]


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """An int attribute or its default."""
    found = node.attributes.get(name)
    return default if found is None else found.as_int()


def float_attribute(node: ir.Node, name: str, default: float) -> float:
    """A float attribute or its default."""
    found = node.attributes.get(name)
    return default if found is None else found.as_float()


def string_attribute(node: ir.Node, name: str, default: str) -> str:
    """A string attribute or its default."""
    found = node.attributes.get(name)
    return default if found is None else found.as_string()


def plain_attributes(node: ir.Node) -> dict[str, AttributeValue]:
    """The attributes of a node that are numbers, words or lists of numbers, by name."""
    found: dict[str, AttributeValue] = {}
    for name, attribute in node.attributes.items():
        kind = attribute.type
        if kind is ir.AttributeType.INT:
            found[name] = attribute.as_int()
        elif kind is ir.AttributeType.FLOAT:
            found[name] = attribute.as_float()
        elif kind is ir.AttributeType.STRING:
            found[name] = attribute.as_string()
        elif kind is ir.AttributeType.INTS:
            found[name] = tuple(attribute.as_ints())
        elif kind is ir.AttributeType.FLOATS:
            found[name] = tuple(attribute.as_floats())
    return found


def subgraph_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Nodes of all sub-graphs at any depth, without the main graph's own."""
    for node in graph.all_nodes():
        if node.graph is not graph:
            yield node


def owners(graph: ir.Graph) -> dict[ir.Graph, ir.Node]:
    """The node that holds each sub-graph, at any depth."""
    return {
        attribute.as_graph(): node
        for node in graph.all_nodes()
        for attribute in node.attributes.values()
        if attribute.type == ir.AttributeType.GRAPH
    }


def activation_limits(node: ir.Node) -> tuple[float, float] | None:
    """Smallest and largest value that a Relu or Clip lets through; None if a limit is known at run time alone."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    limits = [float("-inf"), float("inf")]
    for k, value in enumerate(node.inputs[1:3]):
        if value is None:
            continue
        array = constant(value)
        if array is None or array.size != 1:
            return None
        limits[k] = float(array.reshape(-1)[0])
    return limits[0], limits[1]


def add_initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Register ``array`` as an initializer under ``name``, which must be free."""
    if name in graph.initializers:
        raise ValueError(f"initializer {name!r} is there already")
    array = np.asarray(array)
    value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
    value.dtype = ir.DataType.from_numpy(array.dtype)
    value.shape = ir.Shape(array.shape)
    graph.register_initializer(value)
    return value


def add_twin(graph: ir.Graph, name: str, value: ir.Value) -> ir.Value:
    """Register a copy of an initializer under ``name``, which must be free; both share their memory."""
    tensor = value.const_value
    if tensor is None:
        raise ValueError(f"initializer {value.name!r} has no data")
    shape = ir.Shape(tensor.shape.numpy())
    made = ir.Value(name=name, const_value=ir.Tensor(tensor.numpy(), tensor.dtype, shape=shape, name=name))
    made.dtype, made.shape = tensor.dtype, shape
    graph.register_initializer(made)
    return made


def take_place(node: ir.Node, made: Sequence[ir.Node], result: ir.Value) -> None:
    """Put nodes in the place of one with a single result; what they make instead gets its name, type and shape.

    Args:
        node: of a graph, which goes.
        made: in order, in no graph yet.
        result: of one of them.
    """
    graph, old = node.graph, node.outputs[0]
    if graph is None:
        raise ValueError(f"node {node.name!r} is in no graph")
    result.type, result.shape = old.type, old.shape
    graph.insert_before(node, made)
    name = old.name
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=old.is_graph_output())
    graph.remove(node, safe=True)
    result.name = name


class Names:
    """The names that a graph and its sub-graphs use for values and nodes."""

    def __init__(self, graph: ir.Graph) -> None:
        self._taken: set[str | None] = set()
        self._last: dict[str, int] = {}  # where to go on for a name that is wanted again and again
        for part in (graph, *graph.subgraphs()):
            self._taken.update(value.name for value in part.inputs)
            self._taken.update(part.initializers)
        for node in graph.all_nodes():
            self._taken.add(node.name)
            self._taken.update(value.name for value in node.outputs)

    def free(self, wanted: str) -> str:
        """``wanted``, or the first of ``wanted_1``, ``wanted_2`` ... that nothing bears; taken from now on."""
        name, k = wanted, self._last.get(wanted, 0)
        while name in self._taken:
            k += 1
            name = f"{wanted}_{k}"
        self._taken.add(name)
        self._last[wanted] = k
        return name
