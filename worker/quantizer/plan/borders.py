"""Where quantized regions begin and end: there the user has asked for a Q/DQ pair, whatever lies beyond."""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.regions import has_regions, region_of
from worker.quantizer.graph.values import users


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
