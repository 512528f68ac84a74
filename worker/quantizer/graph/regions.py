"""Quantized regions: parts of a network that alone are to be quantized, written on the nodes of the model itself.

A node of a region bears the region's name as metadata under ``quantmill.region``. A model with one such node is
quantized there and nowhere else; a model without any is quantized everywhere. A tensor that nodes of different regions
make and read, or that leaves the network, lies on a border: Q/DQ pairs stand there, and nothing is rewritten across it.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from service.contracts.reason import declare

REGION = "quantmill.region"
# What torch.onnx.export(dynamo=True) writes: a Python list of the modules' paths, outermost first, '' for the model.
SCOPES = "pkg.torch.onnx.name_scopes"

_STUBS = "Quantized regions are bounded by QuantStub and DeQuantStub: move the stubs so that they enclose it."
OUTSIDE_REGIONS = declare("outside-regions", "it stands outside the quantized regions", hint=_STUBS)
ACROSS_BORDER = declare("across-border", "the border of a quantized region runs through what would be one", hint=_STUBS)

_INHERITED = (REGION, SCOPES)


def region_of(node: ir.Node | None) -> str | None:
    """Name of the quantized region that the node stands in; None: in none."""
    return node.metadata_props.get(REGION) if node is not None else None


def has_regions(graph: ir.Graph) -> bool:
    """True if the graph, sub-graphs included, is quantized in regions alone."""
    return any(REGION in node.metadata_props for node in graph.all_nodes())


def apart(nodes: Iterable[ir.Node]) -> bool:
    """True if the nodes do not all stand in the same region, or all in none."""
    return len({region_of(node) for node in nodes}) > 1


def inherit(node: ir.Node, origin: ir.Node | None) -> None:
    """Let ``node``, which is put in for the sake of ``origin``, stand in its region and its modules."""
    if origin is None or origin is node:
        return
    for key in _INHERITED:
        if key in origin.metadata_props:
            node.metadata_props.setdefault(key, origin.metadata_props[key])


class Whereabouts:
    """The regions and modules of a graph's nodes, for tools that make nodes anew and forget them.

    Args:
        graph: as it is before; its nodes are told by the values that they make.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._of = {
            value.name: kept
            for node in graph.all_nodes()
            if (kept := _kept(node))
            for value in node.outputs
            if value.name
        }

    def restore(self, graph: ir.Graph) -> None:
        """Write them on the nodes that have lost them."""
        if not self._of:
            return
        for node in graph.all_nodes():
            for value in node.outputs:
                for key, told in self._of.get(value.name, {}).items():
                    node.metadata_props.setdefault(key, told)


def _kept(node: ir.Node) -> dict[str, str]:
    return {key: node.metadata_props[key] for key in _INHERITED if key in node.metadata_props}
