"""Selectors resolved on a graph: which nodes a config's words mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from service.contracts.selectors import (
    ModuleSelector,
    NodeSelector,
    OpTypeSelector,
    RegexSelector,
    Selector,
    SubgraphSelector,
    TensorSelector,
    compiled,
)
from worker.quantizer.graph.metadata import module_paths
from worker.quantizer.graph.regions import has_regions, region_of
from worker.quantizer.graph.values import node_name


class Matcher:
    """Answers which nodes of a graph a selector means; each selector is resolved once.

    Args:
        graph: the prepared main graph; nodes of its sub-graphs count too.
        op_types: operators by node name as uploaded; MatMul and Add may have become Gemm since.
    """

    def __init__(self, graph: ir.Graph, op_types: Mapping[str, str] | None = None) -> None:
        self._graph = graph
        self._op_types = op_types or {}
        self._found: dict[Selector, frozenset[str]] = {}
        self._has_regions = has_regions(graph)

    def is_outside(self, node: ir.Node) -> bool:
        """True if the graph is quantized in regions alone, and ``node`` stands in none."""
        return self._has_regions and region_of(node) is None

    def matches(self, selector: Selector, node: ir.Node) -> bool:
        """True if ``selector`` means ``node``."""
        return node_name(node) in self.nodes(selector)

    def nodes(self, selector: Selector) -> frozenset[str]:
        """Names of the nodes that ``selector`` means."""
        if selector not in self._found:
            self._found[selector] = frozenset(self._resolve(selector))
        return self._found[selector]

    @staticmethod
    def fits(selector: RegexSelector, name: str) -> bool:
        """True if ``selector`` matches a node of this name, whether the graph has one or not."""
        return compiled(selector.regex).fullmatch(name) is not None

    def _resolve(self, selector: Selector) -> Iterable[str]:
        if isinstance(selector, TensorSelector):
            return self._by_tensor(selector.tensor)
        if isinstance(selector, SubgraphSelector):
            return self._between(set(selector.from_nodes), set(selector.to_nodes))
        return self._where(self._predicate(selector))

    def _where(self, holds: Callable[[ir.Node], bool]) -> Iterable[str]:
        return (node_name(node) for node in self._graph.all_nodes() if holds(node))

    def _predicate(
        self, selector: NodeSelector | RegexSelector | OpTypeSelector | ModuleSelector
    ) -> Callable[[ir.Node], bool]:
        if isinstance(selector, NodeSelector):
            return lambda node: node_name(node) == selector.node
        if isinstance(selector, RegexSelector):
            return lambda node: self.fits(selector, node_name(node))
        if isinstance(selector, OpTypeSelector):
            return lambda node: selector.op_type in (node.op_type, self._op_types.get(node_name(node)))
        return lambda node: any(_within(selector.module, path) for path in module_paths(node))

    def _by_tensor(self, tensor: str) -> Iterable[str]:
        """The tensor's producer; of a graph input or an initializer, its readers."""
        for node in self._graph.all_nodes():
            if any(value.name == tensor for value in node.outputs):
                return [node_name(node)]
        return self._where(lambda node: any(value is not None and value.name == tensor for value in node.inputs))

    def _between(self, first: set[str], last: set[str]) -> Iterable[str]:
        nodes = list(self._graph)
        after, before = set(first), set(last)
        for node in nodes:
            if any(parent in after for parent in _parents(node)):
                after.add(node_name(node))
        parents: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            parents[node_name(node)].update(_parents(node))
        for node in reversed(nodes):
            if node_name(node) in before:
                before |= parents[node_name(node)]
        return after & before & {node_name(node) for node in nodes}


def _within(module: str, path: str) -> bool:
    return path == module or path.startswith(module + ".")


def _parents(node: ir.Node) -> set[str]:
    """Names of the nodes whose results ``node``, or a sub-graph of it, reads."""
    found = set()
    for reader in (node, *_inner(node)):
        for value in reader.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.graph is node.graph:
                found.add(node_name(producer))
    return found


def _inner(node: ir.Node) -> Iterable[ir.Node]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from attribute.as_graph().all_nodes()
