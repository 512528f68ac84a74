"""Cuts the quantized part of a network into regions whose Q/DQ pairs can be taken off together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from worker.quantizer.graph.values import is_constant, node_name, plain_attributes, users
from worker.quantizer.ops.record import Family
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.types import QuantizationPlan, Role

WHOLE = "region"
_Joins = Callable[[str, str], bool]
# What goes with the node that makes its input, whose grid it shares or which computes it as well.
_FOLLOWERS = (Role.FUSED, Role.TRANSPARENT)
# What has no Q/DQ pair on activations.
_WITHOUT_PAIRS = (None, Role.HALF, Role.LOOKUP, Role.STORED)


@dataclass(frozen=True)
class Region:
    """Quantized nodes that hang together, or do the same.

    Attributes:
        kind: what they do; ``WHOLE`` for all between two borders to float nodes.
        nodes: names.
    """

    kind: str
    nodes: frozenset[str]


def regions(graph: ir.Graph, plan: QuantizationPlan) -> tuple[Region, ...]:
    """All nodes of a kind, all that hang together, and what hangs together and is of a kind; larger ones first.

    None holds all that is quantized: without that the network is the float one.

    Args:
        graph: prepared main graph.
        plan: made for it.
    """
    quantized = [node for node in graph if plan.role_of(node) not in _WITHOUT_PAIRS]
    kinds = _kinds(quantized, plan)
    by_kind: dict[str, set[str]] = defaultdict(set)
    for name, kind in kinds.items():
        by_kind[kind].add(name)
    found = [Region(kind, frozenset(names)) for kind, names in by_kind.items()]
    joined = [Region(WHOLE, names) for names in _components(quantized, lambda one, other: True)]
    alike = [
        Region(kinds[min(names)], names)
        for names in _components(quantized, lambda one, other: kinds[one] == kinds[other])
    ]
    every = frozenset(kinds)
    ordered = [region for part in (found, joined, alike) for region in sorted(part, key=_largest_first)]
    unique = {region.nodes: region for region in reversed(ordered)}
    return tuple(region for region in ordered if unique[region.nodes] is region and region.nodes != every)


def _largest_first(region: Region) -> tuple[int, str]:
    return -len(region.nodes), min(region.nodes)


def _kinds(nodes: Iterable[ir.Node], plan: QuantizationPlan) -> dict[str, str]:
    """What each node does, by name, in the order of the graph; a follower is of the kind of what it follows."""
    kinds: dict[str, str] = {}
    for node in nodes:
        value = node.inputs[0] if node.inputs else None
        before = value.producer() if value is not None else None
        follows = kinds.get(node_name(before)) if before is not None else None
        follower = plan.role_of(node) in _FOLLOWERS
        kinds[node_name(node)] = follows if follower and follows is not None else _kind(node)
    return kinds


def _kind(node: ir.Node) -> str:
    family = operator(node.op_type).family
    if family is Family.CONVOLUTION:
        return "convolution" if plain_attributes(node).get("group", 1) == 1 else "grouped convolution"
    if node.op_type == "Softmax" or (node.op_type == "MatMul" and not any(map(is_constant, node.inputs))):
        return "attention"
    if family is Family.PRODUCT:
        return "matrix product"
    return "normalization" if family is Family.NORMALIZATION else "elementwise"


def _components(nodes: Collection[ir.Node], joins: _Joins) -> list[frozenset[str]]:
    """Names of nodes that edges between them connect, directly or by others, as far as ``joins`` lets them."""
    root = {node_name(node): node_name(node) for node in nodes}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for node in nodes:
        one = node_name(node)
        for reader in (reader for value in node.outputs for reader in users(value)):
            other = node_name(reader)
            if other in root and joins(one, other):
                root[find(other)] = find(one)
    parts: dict[str, set[str]] = defaultdict(set)
    for name in root:
        parts[find(name)].add(name)
    return [frozenset(part) for part in parts.values()]
