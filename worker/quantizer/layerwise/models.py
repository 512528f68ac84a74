"""The network cut into segments that run together, and small models of a few nodes, float or quantized."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from service.contracts.specs import bits_of
from worker.quantizer.emit import emit
from worker.quantizer.graph.metadata import StandIn
from worker.quantizer.graph.serialized import serialized, to_bytes
from worker.quantizer.graph.values import name_of, node_name, users
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.windows import counts_windows_oddly
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.runtime.session import Session, SessionSettings

# Cuts a graph into segments of nodes that run together, and tells which tensors cross the cuts.


@dataclass(frozen=True)
class Segment:
    """Nodes that run together."""

    nodes: tuple[ir.Node, ...]  # in topological order
    reads: tuple[str, ...]  # tensors from before the segment that its nodes read, sub-graphs included
    makes: tuple[str, ...]  # tensors that it makes and a later segment reads, or that are outputs of the network
    spent: tuple[str, ...]  # tensors that no later segment reads


def ordered(graph: ir.Graph, plan: QuantizationPlan) -> list[ir.Node]:
    """The nodes in topological order, each fused one right behind the node that it belongs to."""
    placed: dict[ir.Node, None] = {}

    def place(node: ir.Node) -> None:
        placed[node] = None
        for reader in (reader for value in node.outputs for reader in users(value)):
            if reader.graph is graph and reader not in placed and _belongs_to(reader, node, plan):
                place(reader)

    for node in graph:
        if node not in placed:
            place(node)
    return list(placed)


def _belongs_to(node: ir.Node, before: ir.Node, plan: QuantizationPlan) -> bool:
    """True if ``node`` is fused with ``before`` and reads nothing else that a node makes."""
    if plan.nodes[node_name(node)].role is not Role.FUSED:
        return False
    return {value.producer() for value in node.inputs if value is not None} - {None} == {before}


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Values of the node's graph that it reads, those that its sub-graphs take from around them included."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        graphs = attribute.value if attribute.type == ir.AttributeType.GRAPHS else [attribute.value]
        for part in graphs if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) else ():
            read = (value for inner in part.all_nodes() for value in inner.inputs if value is not None)
            yield from (value for value in (*read, *part.outputs) if value.graph is node.graph)


def outside(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """What ``nodes`` read of what other nodes make, or the network is fed with; each once, in the order of reading."""
    made = {value for node in nodes for value in node.outputs}
    read = (value for node in nodes for value in values_read(node))
    return list(dict.fromkeys(v for v in read if v not in made and not v.is_initializer()))


def cut(
    graph: ir.Graph, nodes: Iterable[ir.Node], *, before: Collection[str] = (), behind: Collection[str] = ()
) -> list[Segment]:
    """Segments of the main graph, in order.

    ``nodes`` are all of them, in topological order. Those named by ``before`` begin a segment, so that the first,
    perhaps an empty one, is what comes before all of them; tensors named by ``behind`` end one.
    """
    groups: list[list[ir.Node]] = [[]]
    for node in nodes:
        if node_name(node) in before:
            groups.append([])
        groups[-1].append(node)
        if any(value.name in behind for value in node.outputs):
            groups.append([])
    made_in: dict[ir.Value, int] = {value: -1 for value in graph.inputs if not value.is_initializer()}
    made_in |= {value: k for k, group in enumerate(groups) for node in group for value in node.outputs if value.name}
    reads: list[dict[ir.Value, None]] = [{} for _ in groups]
    last: dict[ir.Value, int] = dict(made_in)
    for k, group in enumerate(groups):
        for value in (value for node in group for value in values_read(node)):
            if value in made_in:
                last[value] = k
                if made_in[value] < k:
                    reads[k][value] = None
    outputs = {value for value in graph.outputs if value in made_in}
    kept_of: list[list[ir.Value]] = [[] for _ in groups]
    for value, k in made_in.items():
        if k >= 0 and (last[value] > k or value in outputs):
            kept_of[k].append(value)
    segments = []
    for k, (group, kept) in enumerate(zip(groups, kept_of, strict=True)):
        spent = [v for v in reads[k] if last[v] == k and v not in outputs]
        segments.append(
            Segment(tuple(group), *(tuple(name_of(value) for value in part) for part in (reads[k], kept, spent)))
        )
    return segments


@dataclass(frozen=True)
class Piece:
    """A few nodes of the network, ready to run."""

    session: Session  # of the nodes
    fed: dict[str, str]  # tensor name by input of the session
    made: dict[str, str]  # name of the session's output by tensor
    as_integers: frozenset[str]  # tensors that go in, or come out, as integers of the grid that the plan gives them


class PieceMaker:
    """Makes pieces of one prepared network; ``values`` are its tensors by name.

    With ``arena`` sessions keep their memory between runs; see ``Session``. ``originals`` are functions that float
    pieces compute in the place of those of the network, by node (``NodeFacts.stand_ins``).
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        threads: int,
        device: str = "cpu",
        arena: bool = True,
        originals: Mapping[str, StandIn] | None = None,
    ) -> None:
        self._model = model
        self._originals = originals or {}
        self._threads = threads
        self._settings = SessionSettings(device=device, arena=arena)
        graph = model.graph
        self.values = {v.name: v for v in (*graph.inputs, *(made for node in graph for made in node.outputs))}
        self._uncertain = _behind_odd_windows(graph)

    def float_piece(
        self,
        nodes: Sequence[ir.Node],
        reads: Sequence[str],
        makes: Sequence[str],
        replaced: Mapping[str, np.ndarray] | None = None,
    ) -> Piece:
        """The nodes of the float network; ``replaced`` are other values for some of its constants."""
        proto = self._proto(nodes, reads, makes, replaced or {})
        restore_functions(proto.graph, self._originals)
        session = self._session(serialized(proto), "float layers")
        return Piece(session, dict(zip(reads, reads, strict=True)), dict(zip(makes, makes, strict=True)), frozenset())

    def quantized_piece(
        self,
        nodes: Sequence[ir.Node],
        reads: Sequence[str],
        makes: Sequence[str],
        plan: QuantizationPlan,
        *,
        unrounded: Collection[str] = (),
    ) -> Piece:
        """The nodes of the network as ``plan`` quantizes them now.

        ``unrounded`` are tensors that are to come out as computed, before they are rounded to their grid. The filled
        plan is not changed.
        """
        model = ir.from_proto(self._proto(nodes, reads, makes, {}))
        part = _restricted(plan, nodes, reads, unrounded)
        emit(model, part)
        graph = model.graph
        inputs = {value.name: value for value in graph.inputs}
        fed, integers = {}, set()
        for tensor in reads:
            fed[tensor] = tensor
            if rests_as_integers(self.values[tensor], plan) and (name := _take_integers(graph, inputs[tensor])):
                fed[tensor] = name
                integers.add(tensor)
        made = {tensor: tensor for tensor in makes}
        for k, value in enumerate(graph.outputs):
            tensor = name_of(value)
            if tensor not in unrounded and rests_as_integers(self.values[tensor], plan):
                source = value.producer()
                stored = source.inputs[0] if source is not None else None
                if stored is not None:
                    graph.outputs[k] = stored
                    made[tensor] = name_of(stored)
                    integers.add(tensor)
        for node in reversed(list(graph)):
            if not any(value.uses() or value.is_graph_output() for value in node.outputs):
                graph.remove(node, safe=True)
        session = self._session(to_bytes(model), "quantized layers")
        return Piece(session, {name: tensor for tensor, name in fed.items()}, made, frozenset(integers))

    def _session(self, model: bytes, what: str) -> Session:
        return Session(model, threads=self._threads, what=what, settings=self._settings)

    def _proto(
        self, nodes: Sequence[ir.Node], reads: Sequence[str], makes: Sequence[str], replaced: Mapping[str, np.ndarray]
    ) -> onnx.ModelProto:
        proto = onnx.ModelProto()
        proto.ir_version = self._model.ir_version or onnx.IR_VERSION
        for domain, version in self._model.opset_imports.items():
            proto.opset_import.add(domain=domain, version=version)
        proto.functions.extend(ir.to_proto(function) for function in self._model.functions.values())
        graph = proto.graph
        graph.name = self._model.graph.name or "layers"
        graph.node.extend(ir.to_proto(node) for node in nodes)
        constants = {name_of(value): value.const_value for node in nodes for value in values_read(node)}
        for name, stored in constants.items():
            if name in replaced:
                graph.initializer.append(onnx.numpy_helper.from_array(replaced[name], name))
            elif stored is not None:
                tensor = ir.to_proto(stored)
                tensor.name = name
                graph.initializer.append(tensor)
        for value in (self.values[name] for name in reads):
            graph.input.append(ir.to_proto(value))
            if value in self._uncertain:
                for dim in graph.input[-1].type.tensor_type.shape.dim:
                    dim.Clear()
        graph.output.extend(ir.to_proto(self.values[name]) for name in makes)
        outside = {*reads, *makes}
        inner = [value for node in nodes for value in node.outputs if value.name and value.name not in outside]
        graph.value_info.extend(ir.to_proto(value) for value in inner if value.dtype is not None)
        return proto


def restore_functions(graph: onnx.GraphProto, originals: Mapping[str, StandIn]) -> None:
    """Put the float model's functions in the place of those that stand for them; the graph is changed in place."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        original = originals.get(node.name)
        if original is None:
            nodes.append(node)
            continue
        read, made = f"{node.name}/read", f"{node.name}/made"
        for name, factor in ((read, 1.0 / original.read), (made, original.made)):
            graph.initializer.append(onnx.numpy_helper.from_array(np.array(factor, np.float32), f"{name}_factor"))
        nodes.append(onnx.helper.make_node("Mul", [node.input[0], f"{read}_factor"], [read]))
        nodes.append(onnx.helper.make_node(original.op_type, [read], [made], name=node.name))
        nodes.append(onnx.helper.make_node("Mul", [made, f"{made}_factor"], list(node.output)))
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _behind_odd_windows(graph: ir.Graph) -> set[ir.Value]:
    """Values behind pools for which shape inference and the runtime (1.31) count windows in different ways."""
    found: set[ir.Value] = set()
    for node in graph:
        if (node.op_type.endswith("Pool") and counts_windows_oddly(node)) or not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def rests_as_integers(value: ir.Value, plan: QuantizationPlan) -> bool:
    """True if everything that reads ``value`` in the quantized network reads it rounded to an integer grid.

    A tensor that a float node makes is rounded by those of its readers alone that run on integers.
    """
    entry = plan.activations.get(name_of(value))
    producer = value.producer()
    return (
        entry is not None
        and isinstance(entry.quantization, IntegerGrid)
        and bits_of(entry.quantization.dtype) >= 8  # the runtime's Python interface hands out whole bytes
        and producer is not None
        and plan.nodes[node_name(producer)].rounds
    )


def _restricted(
    plan: QuantizationPlan, nodes: Sequence[ir.Node], reads: Collection[str], unrounded: Collection[str]
) -> QuantizationPlan:
    # few of many: what is looked up is the piece, not the plan, for there is a piece for every few nodes of it
    left_out = set(unrounded)
    made = (value.name or "" for node in nodes for value in node.outputs)
    tensors = [name for name in dict.fromkeys([*reads, *made]) if name not in left_out]
    constants = dict.fromkeys(value.name or "" for node in nodes for value in node.inputs if value is not None)
    return QuantizationPlan(
        nodes=plan.nodes,
        activations={name: plan.activations[name] for name in tensors if name in plan.activations},
        weights={name: plan.weights[name] for name in constants if name in plan.weights},
        biases={name: plan.biases[name] for name in map(node_name, nodes) if name in plan.biases},
        moved={name: plan.moved[name] for name in constants if name in plan.moved},
    )


def _take_integers(graph: ir.Graph, value: ir.Value) -> str | None:
    """Let the graph take the integers of its input ``value`` instead of the floats; returns the input's new name.

    None if no node of the graph rounds it.
    """
    quantize = next(
        (u.node for u in value.uses() if u.node.op_type == "QuantizeLinear" and u.node.graph is graph), None
    )
    if quantize is None:
        return None
    stored = quantize.outputs[0]
    restored = next(node.outputs[0] for node in users(stored) if node.op_type == "DequantizeLinear")
    entrance = ir.Value(name=f"{value.name}_integers", type=stored.type, shape=stored.shape)
    for usage in list(stored.uses()):
        usage.node.replace_input_with(usage.idx, entrance)
    for usage in list(value.uses()):
        if usage.node is not quantize:
            usage.node.replace_input_with(usage.idx, restored)
    graph.remove(quantize, safe=True)
    graph.inputs[list(graph.inputs).index(value)] = entrance
    return name_of(entrance)
