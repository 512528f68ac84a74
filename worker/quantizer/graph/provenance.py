"""What became of the uploaded nodes that the prepared graph no longer has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from worker.quantizer.graph.values import name_of, node_name, users


@dataclass(frozen=True)
class UploadedNode:
    """A node before preparation; ``readers`` are names of the nodes that read its outputs."""

    op_type: str
    outputs: tuple[str, ...]
    readers: tuple[str, ...]


def outline(graph: ir.Graph) -> dict[str, UploadedNode]:
    """The named nodes of an uploaded main graph. Preparation changes the graph, so this has to be taken before."""
    return {
        node.name: UploadedNode(
            node.op_type,
            tuple(value.name for value in node.outputs if value.name),
            tuple(reader.name for value in node.outputs for reader in users(value) if reader.name),
        )
        for node in graph
        if node.name
    }


def fates(uploaded: Mapping[str, UploadedNode], prepared: ir.Graph) -> dict[str, str]:
    """By name of every node that is gone: what became of it, in words that follow "node 'x' was".

    A linear node that takes in its follower takes over the follower's output tensor, by which it is found here; a
    value computed in advance has become an initializer of the same name.
    """
    makers = {name_of(value): node for node in prepared for value in node.outputs if value.name}
    there = {node_name(node) for node in prepared.all_nodes()}
    gone = {name: node for name, node in uploaded.items() if name not in there}
    return {name: _fate(name, gone, makers, set(prepared.initializers)) for name in gone}


def _fate(name: str, gone: Mapping[str, UploadedNode], makers: Mapping[str, ir.Node], constants: set[str]) -> str:
    """Follow the outputs through nodes that are gone too, to the first tensor that the prepared graph makes."""
    work, seen = [name], {name}
    while work:
        node = gone[work.pop(0)]
        maker = next((makers[output] for output in node.outputs if output in makers), None)
        if maker is not None:
            return f"folded into node {node_name(maker)!r} ({maker.op_type})"
        if any(output in constants for output in node.outputs):
            return "computed in advance: its result is a constant"
        following = [reader for reader in node.readers if reader in gone and reader not in seen]
        seen.update(following)
        work += following
    return "removed: it changes nothing, or nothing needs its result"
