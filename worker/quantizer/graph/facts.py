"""What plans depend on and the graph itself does not say, by the names of nodes.

A graph's serialized form keeps nothing that hangs on its nodes in memory, names alone outlive it: so what one step has
to tell the next about a node stands here, beside the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from service.contracts.reason import Reason


@dataclass(frozen=True)
class NodeFacts:
    """Facts of the nodes of one graph. Never changed: every addition makes new facts.

    Attributes:
        op_types: operator of every node as the user knows it, before the passes that change nodes.
        simulated: nodes that compute something inside the node before them: no Q/DQ pair stands between the two.
        kept_float: nodes that an algorithm has put in and that are to compute in float, and why.
        smoothed: consumers whose input SmoothQuant has dealt with.
        widened: tensors whose range counts that an algorithm has given 16 bits.
    """

    op_types: Mapping[str, str] = field(default_factory=dict)
    simulated: frozenset[str] = frozenset()
    kept_float: Mapping[str, Reason] = field(default_factory=dict)
    smoothed: frozenset[str] = frozenset()
    widened: frozenset[str] = frozenset()

    def with_op_types(self, op_types: Mapping[str, str]) -> NodeFacts:
        """These facts and the operators of more nodes."""
        return replace(self, op_types={**self.op_types, **op_types})

    def with_simulated(self, names: Collection[str]) -> NodeFacts:
        """These facts and more nodes that belong to those before them."""
        return replace(self, simulated=self.simulated | set(names))

    def with_kept_float(self, reasons: Mapping[str, Reason]) -> NodeFacts:
        """These facts and more nodes that stay in float."""
        return replace(self, kept_float={**self.kept_float, **reasons})

    def with_smoothed(self, names: Collection[str]) -> NodeFacts:
        """These facts and more smoothed consumers."""
        return replace(self, smoothed=self.smoothed | set(names))

    def with_widened(self, tensors: Collection[str]) -> NodeFacts:
        """These facts and more tensors of 16 bits."""
        return replace(self, widened=self.widened | set(tensors))
