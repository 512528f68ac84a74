"""What the user said of single nodes: include, exclude and overrides, and the model's own quantized regions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from service.contracts.base import nearest_name
from service.contracts.config import QuantizationConfig
from service.contracts.errors import FieldProblem, InvalidConfigError
from service.contracts.reason import Reason, declare
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
from service.contracts.specs import ActivationSpec, BiasSpec, WeightSpec, is_integer
from worker.quantizer.graph.metadata import OUTSIDE_REGIONS, has_regions, module_paths, region_of
from worker.quantizer.graph.values import node_name

# Selectors resolved on a graph: which nodes a config's words mean.


class Matcher:
    """Answers which nodes of a graph a selector means; each selector is resolved once.

    Nodes of sub-graphs count too. ``op_types`` are operators by node name as uploaded: MatMul and Add may have become
    Gemm.
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
        return lambda node: any(
            path == selector.module or path.startswith(f"{selector.module}.") for path in module_paths(node)
        )

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


def _parents(node: ir.Node) -> set[str]:
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


_BY_SELECTORS = "Change include or exclude."
EXCLUDED = declare("excluded", "excluded by {selector}", hint=_BY_SELECTORS)
NOT_INCLUDED = declare("not-included", "not named by include", hint=_BY_SELECTORS)


class Selection:
    """Answers, node by node, why the user wants it left in float, and how it is to be represented otherwise."""

    def __init__(self, config: QuantizationConfig, matcher: Matcher) -> None:
        self._config = config
        self._matcher = matcher

    def excluded(self, node: ir.Node) -> Reason | None:
        """None unless the node is named by exclude, or stands outside the model's quantized regions; else why."""
        if self._matcher.is_outside(node):
            return OUTSIDE_REGIONS()
        found = next((selector for selector in self._config.exclude if self._matcher.matches(selector, node)), None)
        return None if found is None else EXCLUDED(selector=words(found))

    def reason(self, node: ir.Node) -> Reason | None:
        """None if the node may be quantized, else why not."""
        excluded = self.excluded(node)
        if excluded is not None:
            return excluded
        if self._config.include and not any(self._matcher.matches(s, node) for s in self._config.include):
            return NOT_INCLUDED()
        return None

    def activation(self, node: ir.Node) -> ActivationSpec:
        """How the tensors that ``node`` makes are represented."""
        found = (o.activation for o in self._config.overrides if o.activation and self._matcher.matches(o.match, node))
        return next(found, self._config.activation)

    def input_activation(self, node: ir.Node) -> ActivationSpec | None:
        """How the tensors that ``node`` reads are represented; None: as what makes them says."""
        found = (o for o in self._config.overrides if o.input_activation and self._matcher.matches(o.match, node))
        return next((override.input_activation for override in found), None)

    def weight(self, node: ir.Node) -> WeightSpec:
        """How the weight of ``node`` is represented."""
        found = (o.weight for o in self._config.overrides if o.weight and self._matcher.matches(o.match, node))
        return next(found, self._config.weight)

    def table(self, node: ir.Node) -> WeightSpec:
        """How the table is represented that ``node`` looks rows up of."""
        found = (o.weight for o in self._config.overrides if o.weight and self._matcher.matches(o.match, node))
        return next(found, self._config.embedding or self._config.weight)

    def bias(self, node: ir.Node) -> BiasSpec:
        """How the bias of ``node`` is represented."""
        found = (o.bias for o in self._config.overrides if o.bias and self._matcher.matches(o.match, node))
        spec = next(found, self._config.bias)
        # Scales of integer biases are products of two, which float16 does not hold.
        return BiasSpec(dtype="float32") if self._config.has_float16 and is_integer(spec.dtype) else spec


_Nodes = Iterable[tuple[str | None, str]]
_TOLD_NODES = 5


def check_selectors(
    config: QuantizationConfig,
    uploaded: _Nodes,
    prepared: _Nodes,
    matcher: Matcher,
    fates: Mapping[str, str] | None = None,
) -> list[str]:
    """Raise if a selector matches no node.

    ``uploaded`` and ``prepared`` are (name, op_type) of the nodes of both models, in the latter the old op_type as
    well; a match in either will do. ``fates`` says what became of uploaded nodes that are gone, in words that follow
    "node 'x' was". Returns a note for every selector that matches only nodes which preparation folded away.

    Raises:
        InvalidConfigError: one problem per selector, naming the nearest node or operator.
    """
    uploaded = list(uploaded)
    left = _names_and_op_types(prepared)
    known = {kind: left[kind] | before for kind, before in _names_and_op_types(uploaded).items()}
    problems, notes = [], []
    for pointer, selector in _selectors(config):
        missing = _missing(selector, known, matcher)
        if missing:
            problems += [FieldProblem(pointer=pointer + at, code="selector-unmatched", message=m) for at, m in missing]
        elif not matcher.nodes(selector):
            place = pointer.split("/")[2]
            notes.append(f"{place} {words(selector)} has no effect: {_gone(selector, uploaded, fates or {})}")
    if problems:
        raise InvalidConfigError(
            "; ".join(p.message for p in problems[:5]),
            errors=tuple(problems),
            hint="Names and operators are those of the uploaded model; its summary and the report list them.",
        )
    return notes


def _gone(selector: Selector, uploaded: _Nodes, fates: Mapping[str, str]) -> str:
    if isinstance(selector, NodeSelector) and selector.node in fates:
        return f"the node was {fates[selector.node]}"
    if isinstance(selector, OpTypeSelector):
        of_type = dict.fromkeys(name for name, op_type in uploaded if name in fates and op_type == selector.op_type)
        told = [f"node {name!r} was {fates[name]}" for name in of_type if name is not None]
        more = f"; and {len(told) - _TOLD_NODES} more" if len(told) > _TOLD_NODES else ""
        if told:
            return "; ".join(told[:_TOLD_NODES]) + more
    return "preparation folds it into other nodes"


def _selectors(config: QuantizationConfig) -> Iterable[tuple[str, Selector]]:
    for word, selectors in (("include", config.include), ("exclude", config.exclude)):
        for k, selector in enumerate(selectors):
            yield f"/config/{word}/{k}", selector
    for k, override in enumerate(config.overrides):
        yield f"/config/overrides/{k}/match", override.match


def _missing(selector: Selector, known: dict[str, set[str]], matcher: Matcher) -> list[tuple[str, str]]:
    """(place within the selector, sentence) of everything it names that the model does not have."""
    if isinstance(selector, NodeSelector):
        return _unknown("node", [("/node", selector.node)], known["node"])
    if isinstance(selector, OpTypeSelector):
        return _unknown("operator", [("/op_type", selector.op_type)], known["op_type"])
    if isinstance(selector, SubgraphSelector):
        ends = {"from_nodes": selector.from_nodes, "to_nodes": selector.to_nodes}
        named = [(f"/{field}/{k}", name) for field, names in ends.items() for k, name in enumerate(names)]
        missing = _unknown("node", named, known["node"])
        if not missing and not matcher.nodes(selector):
            return [("", f"no path leads from {list(selector.from_nodes)} to {list(selector.to_nodes)}")]
        return missing
    if matcher.nodes(selector):
        return []
    if isinstance(selector, RegexSelector) and any(matcher.fits(selector, name) for name in known["node"]):
        return []
    kind = next(iter(type(selector).model_fields))
    return [(f"/{kind}", f"no node of the model is selected by {words(selector)}")]


def _unknown(kind: str, named: Iterable[tuple[str, str]], known: set[str]) -> list[tuple[str, str]]:
    missing = []
    for at, wanted in named:
        if wanted not in known:
            near = nearest_name(wanted, known)
            message = f"the model has no {kind} {wanted!r}" + (f"; did you mean {near!r}?" if near else "")
            missing.append((at, message))
    return missing


def _names_and_op_types(nodes: _Nodes) -> dict[str, set[str]]:
    pairs = list(nodes)
    return {"node": {name for name, _ in pairs if name}, "op_type": {op_type for _, op_type in pairs}}


def words(selector: Selector) -> str:
    """The selector as a reader of the report knows it."""
    if isinstance(selector, SubgraphSelector):
        return f"sub-graph {list(selector.from_nodes)} to {list(selector.to_nodes)}"
    kind, value = next(iter(selector.model_dump().items()))
    return f"{kind} {value!r}"
