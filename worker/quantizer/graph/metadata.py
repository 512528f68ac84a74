"""What is known of nodes beside the graph: modules and regions, facts by name, what became of uploaded ones.

A pass that replaces nodes hands their metadata on, so that what a config says of modules holds for the new ones too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.values import name_of, node_name, users

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


# What plans depend on and the graph itself does not say, by the names of nodes.
#
# A graph's serialized form keeps nothing that hangs on its nodes in memory, names alone outlive it: so what one step
# has to tell the next about a node stands here, beside the graph.


@dataclass(frozen=True)
class StandIn:
    """What the float model computes where the prepared network has another function.

    With x the input of that function: made * f(x / read).
    """

    op_type: str  # f, an operator without attributes
    read: float = 1.0  # by what the float model's input is multiplied in the prepared network
    made: float = 1.0  # by what the prepared network expects the float model's result to be multiplied


@dataclass(frozen=True)
class NodeFacts:
    """Facts of the nodes of one graph. Never changed: every addition makes new facts."""

    # operator of every node as the user knows it, before the passes that change nodes
    op_types: Mapping[str, str] = field(default_factory=dict)
    # nodes that compute something inside the node before them: no Q/DQ pair stands between the two
    simulated: frozenset[str] = frozenset()
    # nodes that compute another function than the float model, and which one it has
    stand_ins: Mapping[str, StandIn] = field(default_factory=dict)
    # nodes that an algorithm has put in, or chosen, and that are to compute in float, and why
    kept_float: Mapping[str, Reason] = field(default_factory=dict)
    smoothed: frozenset[str] = frozenset()  # consumers whose input SmoothQuant has dealt with
    # products whose weights are stored small and whose activations stay in float, and why
    float_inputs: Mapping[str, Reason] = field(default_factory=dict)
    # what an algorithm has given more bits: tensors whose range counts, 16; weights below 8 bits, 8
    widened: frozenset[str] = frozenset()

    def with_op_types(self, op_types: Mapping[str, str]) -> NodeFacts:
        """These facts and the operators of more nodes."""
        return replace(self, op_types={**self.op_types, **op_types})

    def with_simulated(self, names: Collection[str]) -> NodeFacts:
        """These facts and more nodes that belong to those before them."""
        return replace(self, simulated=self.simulated | set(names))

    def with_stand_ins(self, stand_ins: Mapping[str, StandIn]) -> NodeFacts:
        """These facts and more nodes that stand for another function."""
        return replace(self, stand_ins={**self.stand_ins, **stand_ins})

    def with_kept_float(self, reasons: Mapping[str, Reason]) -> NodeFacts:
        """These facts and more nodes that stay in float."""
        return replace(self, kept_float={**self.kept_float, **reasons})

    def with_smoothed(self, names: Collection[str]) -> NodeFacts:
        """These facts and more smoothed consumers."""
        return replace(self, smoothed=self.smoothed | set(names))

    def with_float_inputs(self, reasons: Mapping[str, Reason]) -> NodeFacts:
        """These facts and more products that read floats."""
        return replace(self, float_inputs={**self.float_inputs, **reasons})

    def with_widened(self, tensors: Collection[str]) -> NodeFacts:
        """These facts and more tensors, or weights, of more bits."""
        return replace(self, widened=self.widened | set(tensors))


# What became of the uploaded nodes that the prepared graph no longer has.


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


# Quantized regions: parts of a network that alone are to be quantized, written on the nodes of the model itself.
#
# A node of a region bears the region's name as metadata under ``quantmill.region``. A model with one such node is
# quantized there and nowhere else; a model without any is quantized everywhere. A tensor that nodes of different
# regions make and read, or that leaves the network, lies on a border: there the user has asked for Q/DQ pairs, whatever
# lies beyond, and nothing is rewritten across it.

REGION = "quantmill.region"
_STUBS = "Quantized regions are bounded by QuantStub and DeQuantStub: move the stubs so that they enclose it."
OUTSIDE_REGIONS = declare("outside-regions", "it is outside the quantized regions", hint=_STUBS)
ACROSS_BORDER = declare("across-border", "the border of a quantized region cuts it", hint=_STUBS)


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
