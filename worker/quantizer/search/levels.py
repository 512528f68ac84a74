"""The layers whose precision can be chosen, which of them move together, and drafts with another precision for each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from service.contracts.algorithms.precision import Level
from service.contracts.reason import declare
from service.contracts.selectors import NodeSelector
from service.contracts.specs import ActivationSpec, WeightSpec, needs_calibration
from worker.quantizer.graph.metadata import NodeFacts
from worker.quantizer.graph.values import constant, is_constant, name_of, node_name
from worker.quantizer.plan.grids import granularity_of, judge_biases
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.targets import TARGETS
from worker.quantizer.plan.types import QuantizationPlan, Role, RuleContext, Stage
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.refine.step import calibrate
from worker.quantizer.run.services import Services
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.ranges import find_ranges, range_observer

# The layers whose precision can be chosen, and which of them have to move together.

NO_LINEAR_NODE = declare("no-linear-node", "there is no quantized linear node")


@dataclass(frozen=True)
class QuantizedLayer:
    """A quantized linear node."""

    node: str  # its name
    op_type: str  # its operator
    weight: str | None  # initializer of its weight; None for a product of two activations
    sources: tuple[str, ...]  # tensors whose grids its inputs are on
    parameters: int  # values of its weight
    group: int  # layers of one group share a source or a weight, so they have one precision


def find_layers(graph: ir.Graph, plan: QuantizationPlan) -> list[QuantizedLayer]:
    """The quantized linear nodes of a planned graph, in topological order."""
    found = []
    for node in graph:
        entry = plan.nodes.get(node_name(node))
        if entry is None or entry.role is not Role.LINEAR:
            continue
        value = node.inputs[1]
        weight = name_of(value) if is_constant(value) and value is not None and name_of(value) in plan.weights else None
        array = constant(value) if weight is not None else None
        read = [operand for operand in node.inputs[:2] if operand is not None and not is_constant(operand)]
        sources = tuple(
            dict.fromkeys(
                plan.activations[name_of(operand)].source for operand in read if name_of(operand) in plan.activations
            )
        )
        found.append((node, weight, sources, 0 if array is None else int(array.size)))
    groups = _groups([(weight, sources) for _, weight, sources, _ in found])
    return [
        QuantizedLayer(node_name(node), node.op_type, weight, sources, size, group)
        for (node, weight, sources, size), group in zip(found, groups, strict=True)
    ]


def _groups(shared: list[tuple[str | None, tuple[str, ...]]]) -> list[int]:
    """Number of the group of each layer, by what the layers share."""
    parent = list(range(len(shared)))

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    first: dict[tuple[str, str], int] = {}
    for k, (weight, sources) in enumerate(shared):
        keys: Iterable[tuple[str, str]] = [("source", source) for source in sources]
        for key in [*keys, *([("weight", weight)] if weight is not None else [])]:
            other = root(first.setdefault(key, k))
            parent[max(root(k), other)] = min(root(k), other)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root(k), len(numbers)) for k in range(len(shared))]


Ranges = Mapping[tuple[str, ActivationSpec], Range]


def level_ranges(draft: Draft, levels: Sequence[Level], case: Case, services: Services) -> Ranges:
    """Ranges of every source tensor of the draft for the activation spec of every level, by one pass over the data."""
    specs = [level.activation for level in levels if isinstance(level.activation, ActivationSpec)]
    return _found(draft, [(source, spec) for spec in specs for source in draft.plan.sources()], case, services)


def ranges_of(draft: Draft, plan: QuantizationPlan, case: Case, services: Services) -> dict[str, Range]:
    """Ranges for another plan of the draft's float network, by one pass over the data for those that are not known."""
    wanted = list(plan.sources().items())
    found = _found(draft, wanted, case, services)
    return {source: found[source, spec] for source, spec in wanted}


def _found(draft: Draft, wanted: Sequence[tuple[str, ActivationSpec]], case: Case, services: Services) -> Ranges:
    known = draft.plan.ranges
    found = {(source, spec): known[source] for source, spec in draft.plan.sources().items() if source in known}
    observers = {
        (source, spec): range_observer(spec, samples=case.calibration_samples)
        for source, spec in wanted
        if (source, spec) not in found and needs_calibration(spec.dtype)
    }
    if observers:
        requests = [Request(source, observer) for (source, _), observer in observers.items()]
        case.collect(draft.prepared.model, requests, services)
    keys = {f"{k}": key for k, key in enumerate(observers)}
    results = find_ranges({k: observers[key] for k, key in keys.items()}, threads=services.threads)
    return {**found, **{keys[k]: result for k, result in results.items()}}


def under_facts(draft: Draft, facts: NodeFacts, case: Case, services: Services, *, anew: Collection[str] = ()) -> Draft:
    """The draft under other facts of its nodes: what is quantized as before keeps its types, grids and integers.

    Args:
        draft: filled.
        facts: of its nodes, which its plan is made by.
        case: what is quantized.
        services: of the run.
        anew: initializers of weights whose types the facts have changed.

    Raises:
        EngineError: the runtime failed where a range had to be found anew.
        CanceledError: the run was canceled.
    """
    before = draft.plan
    made = draft.replanned(case.config, replace(draft.prepared, facts=facts))
    plan = made.plan
    plan.silent, plan.kept_apart = dict(before.silent), before.kept_apart
    kept = (plan.weights.keys() & before.weights.keys()).difference(anew)
    for tensor, activation in plan.activations.items():
        if tensor in before.activations:
            activation.spec = before.activations[tensor].spec
    for name in kept:
        plan.weights[name] = replace(before.weights[name])
    for name, bias in plan.biases.items():
        if name in before.biases:
            bias.spec, bias.reason = before.biases[name].spec, before.biases[name].reason
    filled = calibrate(made, case, services, kept=ranges_of(draft, plan, case, services))
    _take_numbers(filled, before, kept)
    plan_log = draft.plan_log.followed_by(*filled.plan_log.notes)
    return replace(filled, prepared=made.prepared, plan_log=plan_log, statistics=draft.statistics)


def _take_numbers(draft: Draft, before: QuantizationPlan, weights: Collection[str]) -> None:
    """Give what both plans hold the numbers of ``before``, which algorithms may have chosen; of weights these alone."""
    plan = draft.plan
    for tensor, activation in plan.activations.items():
        known = before.activations.get(tensor)
        if known is not None and known.source == activation.source:
            activation.quantization = known.quantization
    for name in weights:
        plan.weights[name] = replace(before.weights[name])
    kept = {*plan.weights, *(bias.initializer for bias in plan.biases.values())}
    plan.moved = {name: array for name, array in before.moved.items() if name in kept}
    old, new = Parameters(draft.graph, before), Parameters(draft.graph, plan)
    nodes = {node_name(node): node for node in draft.graph}
    anew = {weight.node for name, weight in plan.weights.items() if name not in weights}
    for name, bias in plan.biases.items():
        # what algorithms have made of a bias made up for the weight that was
        found = old.of(nodes[name], 2) if name in before.biases and name not in anew else None
        if found is not None and bias.quantization is not None:
            new.put(nodes[name], 2, found.unrounded, refit=True)


@dataclass(frozen=True)
class Assigner:
    """Makes drafts that differ in the precision of their layers, on one float network and one set of ranges."""

    draft: Draft  # calibrated
    layers: Sequence[QuantizedLayer]  # of its network
    levels: tuple[Level, ...]  # lowest precision last
    ranges: Ranges  # by source tensor and spec; what is missing is calibrated anew
    case: Case  # what is quantized
    services: Services  # of the run

    def draft_of(self, chosen: Mapping[int, int]) -> Draft:
        """The draft in which every group of layers has the level of this index; the first level where none is given.

        Raises:
            EngineError: a tensor has no finite range, or the runtime failed.
        """
        config = self.case.config
        level_of = {layer.node: self.levels[chosen.get(layer.group, 0)] for layer in self.layers}
        in_float = tuple(NodeSelector(node=name) for name, level in level_of.items() if level.is_float)
        config = config.model_copy(update={"exclude": (*config.exclude, *in_float)})
        draft = self.draft.replanned(config)
        graph, plan, plan_log = draft.graph, draft.plan, draft.plan_log
        nodes = {node_name(node): node for node in graph}
        for layer in self.layers:
            spec = level_of[layer.node].weight
            weight = plan.weights.get(layer.weight) if layer.weight is not None else None
            if weight is not None and isinstance(spec, WeightSpec):
                weight.spec = spec
                weight.granularity = granularity_of(nodes[layer.node], spec, plan_log)
        for source, spec_ in self._source_specs(plan, level_of).items():
            for entry in plan.activations.values():
                if entry.source == source:
                    entry.spec = spec_
        judge_biases(graph, plan)
        TARGETS[config.target].run(Stage.SPECS, RuleContext(graph, plan, config, plan_log))
        known = {}
        for entry in plan.activations.values():
            found = self.ranges.get((entry.source, entry.spec))
            if found is not None and needs_calibration(entry.spec.dtype):
                known[entry.source] = found
        plan.silent = dict(self.draft.plan.silent)
        made = calibrate(draft, self.case, self.services, kept=known)
        return replace(made, statistics=self.draft.statistics)

    def _source_specs(self, plan: QuantizationPlan, level_of: Mapping[str, Level]) -> dict[str, ActivationSpec]:
        """By source tensor: the highest precision that a layer which reads it wants.

        A tensor that no layer reads has that of the layer or the tensors it is made of, unless another node joins it
        with others: the operands of an addition or a concatenation have one type, so that integer kernels take them.
        """
        rank = {id(level): k for k, level in enumerate(self.levels)}
        wanted: dict[str, int] = {}
        for layer in self.layers:
            for source in layer.sources:
                if source in plan.sources() and not level_of[layer.node].is_float:
                    k = rank[id(level_of[layer.node])]
                    wanted[source] = min(wanted.get(source, k), k)
        read = set(wanted)
        for node in self.draft.graph:
            own = level_of.get(node_name(node))
            if own is None:
                self._join(node, plan, wanted, read)
            for value in node.outputs:
                entry = plan.activations.get(value.name or "")
                if entry is None or entry.source in read:
                    continue
                wanted[entry.source] = self._inherited(node, own, plan, wanted, rank)
        specs = {}
        for source, k in wanted.items():
            spec = self.levels[k].activation
            if isinstance(spec, ActivationSpec):
                specs[source] = spec
        return specs

    @staticmethod
    def _join(node: ir.Node, plan: QuantizationPlan, wanted: dict[str, int], read: Collection[str]) -> None:
        """Give the inputs of ``node`` the precision of those that layers read too, or else the highest of all."""
        entries = [plan.activations.get(name_of(value)) for value in node.inputs if value is not None]
        sources = [entry.source for entry in entries if entry is not None and entry.source in wanted]
        bound = [wanted[source] for source in sources if source in read]
        joined = min(bound or [wanted[source] for source in sources], default=0)
        wanted.update({source: joined for source in sources if source not in read})

    def _inherited(
        self,
        node: ir.Node,
        own: Level | None,
        plan: QuantizationPlan,
        wanted: Mapping[str, int],
        rank: Mapping[int, int],
    ) -> int:
        lowest = len(self.levels) - 1
        if own is not None:
            return rank[id(own)]
        inputs = [plan.activations.get(name_of(value)) for value in node.inputs if value is not None]
        known = [wanted[entry.source] for entry in inputs if entry is not None and entry.source in wanted]
        return min(known, default=lowest)
