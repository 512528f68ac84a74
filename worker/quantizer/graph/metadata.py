"""What nodes carry for people and tools: the modules of PyTorch that they stand in, regions, notes of an exporter.

A pass that replaces nodes hands their metadata on, so that what a config says of modules holds for the new ones too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import onnx_ir as ir

from worker.quantizer.graph.values import users

# What torch.onnx.export(dynamo=True) writes: a Python list of the modules' paths, outermost first, '' for the model,
# and last the node's own name in the traced graph, which is no module's.
SCOPES = "pkg.torch.onnx.name_scopes"
# A module's second call is told from its first by '@1' behind its name.
CALL_NUMBER = re.compile(r"@\d+")


class Metadata:
    """The metadata of a graph's nodes as they are now, by the values that they make.

    Args:
        graph: with its sub-graphs; may be changed or replaced by another from now on.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._of = {
            value.name: dict(node.metadata_props) for node in graph.all_nodes() for value in node.outputs if value.name
        }

    def restore(self, graph: ir.Graph) -> None:
        """Give nodes without metadata what the makers of their values had; what is new, what its first reader has."""
        if not any(self._of.values()):
            return
        bare = [node for node in graph.all_nodes() if not node.metadata_props]
        for node in bare:
            found = next((self._of[value.name] for value in node.outputs if value.name in self._of), {})
            node.metadata_props.update(found)
        for node in reversed(bare):
            if not node.metadata_props and not any(value.name in self._of for value in node.outputs):
                readers = [reader for value in node.outputs for reader in users(value)]
                node.metadata_props.update(next((dict(reader.metadata_props) for reader in readers), {}))


def hand_on(old: Iterable[ir.Node], new: Iterable[ir.Node]) -> None:
    """Give the nodes in the place of ``old`` their metadata: of the one that bore the name, else of the first."""
    nodes = list(old)
    if not nodes:
        return
    named = {node.name: node for node in nodes}
    for node in new:
        if not node.metadata_props:
            node.metadata_props.update(named.get(node.name, nodes[0]).metadata_props)


def module_paths(node: ir.Node) -> list[str]:
    """Dotted PyTorch module paths that a node stands in, outermost first; empty if the export tells none."""
    scopes = node.metadata_props.get(SCOPES)
    if scopes:
        return [CALL_NUMBER.sub("", part) for part in re.findall(r"'([^']*)'", scopes)[:-1] if part]
    parts = (node.name or "").split("/")
    if parts[0] == "" and len(parts) > 2:  # torch.onnx.export(dynamo=False): /encoder/layers.0/fc/MatMul
        return [".".join(parts[1:end]) for end in range(2, len(parts))]
    return []
