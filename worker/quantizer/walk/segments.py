"""Cuts a graph into segments, each from one visited node to the next, and tells which tensors cross the cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from worker.quantizer.graph.values import name_of, node_name, users
from worker.quantizer.plan.types import QuantizationPlan, Role


@dataclass(frozen=True)
class Segment:
    """Nodes that run together.

    Attributes:
        nodes: in topological order; all but the first segment begin with a visited node.
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
    producers = {value.producer() for value in node.inputs if value is not None} - {None}
    return plan.nodes[node_name(node)].role is Role.FUSED and producers == {before}


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Values that the node reads, those that its sub-graphs take from around them included."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        graphs = attribute.value if attribute.type == ir.AttributeType.GRAPHS else [attribute.value]
        for part in graphs if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) else ():
            for inner in part.all_nodes():
                yield from (value for value in inner.inputs if value is not None)
            yield from part.outputs


def cut(graph: ir.Graph, plan: QuantizationPlan, visited: Collection[str]) -> list[Segment]:
    """Segments of the main graph, in order: what comes before the first visited node, then one per visited node.

    Args:
        graph: prepared main graph.
        plan: roles of its nodes.
        visited: names of the nodes to cut before.
    """
    groups: list[list[ir.Node]] = [[]]
    for node in ordered(graph, plan):
        if node_name(node) in visited:
            groups.append([])
        groups[-1].append(node)
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
    segments = []
    for k, group in enumerate(groups):
        kept = [v for v in made_in if made_in[v] == k and (last[v] > k or v in outputs)]
        spent = [v for v in reads[k] if last[v] == k and v not in outputs]
        segments.append(
            Segment(tuple(group), *(tuple(name_of(value) for value in part) for part in (reads[k], kept, spent)))
        )
    return segments
