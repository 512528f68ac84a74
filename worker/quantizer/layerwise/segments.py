"""Cuts a graph into segments of nodes that run together, and tells which tensors cross the cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from worker.quantizer.graph.values import name_of, node_name, users
from worker.quantizer.plan.types import QuantizationPlan, Role


@dataclass(frozen=True)
class Segment:
    """Nodes that run together.

    Attributes:
        nodes: in topological order.
        reads: tensors from before the segment that its nodes read, sub-graphs included.
        makes: tensors that it makes and a later segment reads, or that are outputs of the network.
        spent: tensors that no later segment reads.
    """

    nodes: tuple[ir.Node, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    spent: tuple[str, ...]


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

    Args:
        graph: prepared main graph.
        nodes: all of its nodes, in topological order.
        before: names of the nodes that begin a segment; the first segment, perhaps an empty one, is what comes before
            all of them.
        behind: names of the tensors that end a segment.
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
