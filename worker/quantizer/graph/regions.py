"""Quantized regions: parts of a network that alone are to be quantized, written on the nodes of the model itself.

A node of a region bears the region's name as metadata under ``quantmill.region``. A model with one such node is
quantized there and nowhere else; a model without any is quantized everywhere. A tensor that nodes of different regions
make and read, or that leaves the network, lies on a border: there the user has asked for Q/DQ pairs, whatever lies
beyond, and nothing is rewritten across it.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.graph.values import users

REGION = "quantmill.region"

_STUBS = "Quantized regions are bounded by QuantStub and DeQuantStub: move the stubs so that they enclose it."
OUTSIDE_REGIONS = declare("outside-regions", "it stands outside the quantized regions", hint=_STUBS)
ACROSS_BORDER = declare("across-border", "the border of a quantized region runs through what would be one", hint=_STUBS)


def region_of(node: ir.Node | None) -> str | None:
    """Name of the quantized region that the node stands in; None: in none."""
    return node.metadata_props.get(REGION) if node is not None else None


def has_regions(graph: ir.Graph) -> bool:
    """True if the graph, sub-graphs included, is quantized in regions alone."""
    return any(REGION in node.metadata_props for node in graph.all_nodes())


def apart(nodes: Iterable[ir.Node]) -> bool:
    """True if the nodes do not all stand in the same region, or all in none."""
    return len({region_of(node) for node in nodes}) > 1


class Borders:
    """The borders of a graph's quantized regions.

    Args:
        graph: prepared main graph; without regions it has no borders.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._active = has_regions(graph)

    def enters(self, value: ir.Value, node: ir.Node) -> bool:
        """True if ``value`` comes into the region of ``node`` from elsewhere."""
        region = region_of(node) if self._active else None
        return region is not None and region_of(value.producer()) != region

    def leaves(self, value: ir.Value) -> bool:
        """True if ``value`` is made in a region and read elsewhere, or is an output of the network."""
        region = region_of(value.producer()) if self._active else None
        if region is None:
            return False
        return value.is_graph_output() or any(region_of(reader) != region for reader in users(value))
