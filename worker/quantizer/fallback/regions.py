"""Regions of a quantized network, and the search for those whose Q/DQ pairs cost more time than they save.

The quantized part is cut into regions whose pairs can be taken off together; what each costs is measured, and what
costs more than it saves goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import onnx_ir as ir

from service.contracts.errors import CanceledError, QuantmillError
from service.contracts.reason import Reason, declare
from service.contracts.report import LatencyFigures, RegionFigures
from worker.quantizer.graph.values import is_constant, node_name, plain_attributes, users
from worker.quantizer.ops.table import Family, operator
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.refine.draft import Case, Draft, QuantizedDraft
from worker.quantizer.run.services import Services
from worker.quantizer.search.levels import under_facts
from worker.quantizer.search.trials import OutOfTimeError

WHOLE = "region"
_Joins = Callable[[str, str], bool]
# What goes with the node that makes its input, whose grid it shares or which computes it as well.
_FOLLOWERS = (Role.FUSED, Role.TRANSPARENT)
# What has no Q/DQ pair on activations.
_WITHOUT_PAIRS = (None, Role.HALF, Role.LOOKUP, Role.STORED)
_OUT_OF_TIME = "the seconds of evaluation.fallback_seconds were used up"


@dataclass(frozen=True)
class QdqRegion:
    """Quantized nodes that hang together, or do the same."""

    kind: str  # what they do; ``WHOLE`` for all between two borders to float nodes
    nodes: frozenset[str]  # names


def regions(graph: ir.Graph, plan: QuantizationPlan) -> tuple[QdqRegion, ...]:
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
    found = [QdqRegion(kind, frozenset(names)) for kind, names in by_kind.items()]
    joined = [QdqRegion(WHOLE, names) for names in _components(quantized, lambda one, other: True)]
    alike = [
        QdqRegion(kinds[min(names)], names)
        for names in _components(quantized, lambda one, other: kinds[one] == kinds[other])
    ]
    every = frozenset(kinds)
    for part in (found, joined, alike):
        part.sort(key=lambda region: (-len(region.nodes), min(region.nodes)))
    ordered = [*found, *joined, *alike]
    unique = {region.nodes: region for region in reversed(ordered)}
    return tuple(region for region in ordered if unique[region.nodes] is region and region.nodes != every)


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


@dataclass(frozen=True)
class PairPlacement:
    """Where Q/DQ pairs stand."""

    draft: Draft  # with its plan
    done: QuantizedDraft  # the same, written
    off: frozenset[str] = frozenset()  # names of the nodes that were taken off


class Stopwatch(Protocol):
    """Times two models in turn."""

    def __call__(self, reference: PairPlacement, other: PairPlacement) -> LatencyFigures:
        """Figures whose ratio is that of the second over the first."""


@dataclass(frozen=True)
class _Tried:
    region: QdqRegion
    figures: LatencyFigures


def take_off(
    planned: PairPlacement,
    found: Sequence[QdqRegion],
    make: Callable[[frozenset[str]], PairPlacement],
    stopwatch: Stopwatch,
    *,
    enough: Callable[[], bool] = lambda: False,
) -> tuple[list[PairPlacement], list[RegionFigures]]:
    """Placements with ever fewer pairs, each faster than the one before by the whole interval.

    Every region is tried by itself, beside the planned placement. Those that cost time are then taken off one after
    another, those that cost most first, and each stays off only if the model is faster for it once more: beside the
    others it may cost nothing, and what was the best of many by chance is not so twice.

    Args:
        planned: to begin with.
        found: regions to try, in their order.
        make: the placement without these nodes.
        stopwatch: times two of them.
        enough: True once no more regions are to be tried by themselves, so that there is time to join them.

    Raises:
        CanceledError: the run was canceled.
    """
    tried: list[_Tried] = []
    told: dict[QdqRegion, RegionFigures] = {}
    placements: list[PairPlacement] = []
    for region in found:
        told[region] = _untried(region, _OUT_OF_TIME)
    try:
        for region in found:
            if enough():
                break
            try:
                figures = stopwatch(planned, make(region.nodes))
            except CanceledError:
                raise
            except QuantmillError as error:
                told[region] = _untried(region, error.detail)
                continue
            tried.append(_Tried(region, figures))
            told[region] = _measured(region, figures)
        _join(planned, tried, make, stopwatch, placements, told)
    except OutOfTimeError:
        pass  # what was not tried says so
    return placements, [told[region] for region in found]


def _join(
    planned: PairPlacement,
    tried: Sequence[_Tried],
    make: Callable[[frozenset[str]], PairPlacement],
    stopwatch: Stopwatch,
    placements: list[PairPlacement],
    told: dict[QdqRegion, RegionFigures],
) -> None:
    """Take off what costs time, one region after another."""
    current = planned
    for one in _slow(tried):
        if one.region.nodes <= current.off:
            told[one.region] = told[one.region].model_copy(update={"outcome": "taken_off"})
            continue
        other = make(current.off | one.region.nodes)
        if stopwatch(current, other).ratio_interval.high < 1.0:
            current = other
            placements.append(other)
            told[one.region] = told[one.region].model_copy(update={"outcome": "taken_off"})


def _slow(tried: Sequence[_Tried]) -> list[_Tried]:
    """Regions without which the model is surely faster, the one that costs most first."""
    slow = [one for one in tried if one.figures.ratio_interval.high < 1.0]
    return sorted(slow, key=lambda one: one.figures.ratio)


def _measured(region: QdqRegion, figures: LatencyFigures) -> RegionFigures:
    return RegionFigures(
        kind=region.kind,
        nodes=tuple(sorted(region.nodes)),
        ratio=figures.ratio,
        ratio_interval=figures.ratio_interval,
        outcome="kept",
    )


def _untried(region: QdqRegion, why: str) -> RegionFigures:
    return RegionFigures(kind=region.kind, nodes=tuple(sorted(region.nodes)), outcome="untried", why=why)


# Drafts with fewer Q/DQ pairs: what stays quantized keeps its grids and integers.

SLOWER_QUANTIZED = declare(
    "slower-quantized",
    "on this machine, its Q/DQ pairs cost more time than its integers save",
    hint="Set on_fail of the gate to report to quantize it anyway.",
)


def without(draft: Draft, nodes: Collection[str], reason: Reason, case: Case, services: Services) -> Draft:
    """The draft with these nodes in float; what then stands alone between float nodes goes with them.

    Args:
        draft: filled by mode static.
        nodes: names of quantized nodes.
        reason: why they stay in float.
        case: what is quantized.
        services: of the run.

    Raises:
        EngineError: the runtime failed where a range had to be found anew.
        CanceledError: the run was canceled.
    """
    facts = draft.prepared.facts.with_kept_float(dict.fromkeys(nodes, reason))
    return replace(under_facts(draft, facts, case, services), changed=tuple(nodes))


def in_float(draft: Draft) -> Draft:
    """The draft with nothing quantized: emitted, it is the uploaded file."""
    nodes = {
        name: replace(entry, role=None, reason=SLOWER_QUANTIZED() if entry.quantized else entry.reason)
        for name, entry in draft.plan.nodes.items()
    }
    for entry in nodes.values():
        entry.activation_reason = None
    return replace(draft, plan=QuantizationPlan(nodes=nodes, ranges=dict(draft.plan.ranges)))
