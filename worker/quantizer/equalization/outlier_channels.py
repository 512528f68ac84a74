"""Channels that alone set the range of a tensor: split, scaled down, or given more bits, as a step."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import OutlierChannels
from service.contracts.config import QuantizationConfig
from service.contracts.reason import Reason, declare
from worker.quantizer.equalization.channel_graph import ChannelConstant, ChannelGraph, ChannelRegion
from worker.quantizer.equalization.outlier_scaling import Scaler
from worker.quantizer.graph.metadata import NodeFacts
from worker.quantizer.graph.values import Names, constant, name_of, node_name
from worker.quantizer.plan.build import WIDER, build_plan
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.affine import replace_constant
from worker.quantizer.refine.channels import Outliers, find_outliers
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.judge import SQNR_WORSE, Judge
from worker.quantizer.refine.step import Step, StepResult, Toolkit

# Several channels of a part of the value each in the place of one.
#
# A channel y = w x + b becomes n channels y / n, and whatever reads y reads all of them with the weight that y had: the
# sum is the same (Zhao et al. 2019, Outlier Channel Splitting, section 3.2). What lies between, a Relu or a pooling,
# gives n-th parts for n-th parts.


@dataclass(frozen=True)
class ChannelSplit:
    """How the channels of a region are split."""

    pieces: Mapping[int, int]  # by channel, what it becomes; others stay
    taken: np.ndarray  # for every channel afterwards, the channel that it is of, int64 [new channels]
    parts: np.ndarray  # the part of its value that it has, float64 [new channels]

    @classmethod
    def of(cls, channels: int, pieces: Mapping[int, int]) -> ChannelSplit:
        """New channels stand behind the others, in the order of those that they are of."""
        more = [np.full(count - 1, channel) for channel, count in sorted(pieces.items())]
        taken = np.concatenate([np.arange(channels), *more]).astype(np.int64)
        part = np.ones(channels)
        for channel, count in pieces.items():
            part[channel] = 1.0 / count
        return cls(pieces, taken, part[taken])

    @property
    def added(self) -> int:
        """Channels that are new."""
        return int(sum(self.pieces.values())) - len(self.pieces)


def wanted_pieces(spans: np.ndarray, outliers: Sequence[int], goal: float, most_added: int) -> dict[int, int]:
    """By channel, how many pieces bring it down to ``goal``; with fewer pieces than that the widest go first.

    ``spans`` are the ranges of every channel, float64 [channels]; ``goal`` is the range to come down to.
    """
    pieces = dict.fromkeys(outliers, 1)
    for _ in range(most_added):
        widest = max(pieces, key=lambda channel: (spans[channel] / pieces[channel], -channel))
        if spans[widest] / pieces[widest] <= goal * (1.0 + 1e-6):
            break
        pieces[widest] += 1
    return {channel: count for channel, count in pieces.items() if count > 1}


def apply_split(graph: ir.Graph, region: ChannelRegion, split: ChannelSplit, names: Names) -> None:
    """Split the channels of a region; the graph, which uses ``names``, is changed in place."""
    for held in region.constants:
        value, node = held.node.inputs[held.index], held.node
        array = constant(value)
        if array is None or value is None:
            raise ValueError(f"input {held.index} of {node.name!r} is not constant")
        replace_constant(graph, node, held.index, name_of(value), _taken(array, held, region.channels, split), names)
    for linear in region.depthwise:
        linear.node.attributes["group"] = ir.AttrInt64("group", split.taken.size)
    for node, place in region.reshapes:
        shape, value = constant(node.inputs[1]), node.inputs[1]
        if shape is not None and value is not None:
            shape = shape.copy()
            shape[place] = split.taken.size
            replace_constant(graph, node, 1, name_of(value), shape, names)
    for value, axis in region.axes.items():
        if value.shape is not None:
            lengths = [split.taken.size if k == axis else dim for k, dim in enumerate(value.shape)]
            value.shape = ir.Shape(lengths)


def _taken(array: np.ndarray, held: ChannelConstant, channels: int, split: ChannelSplit) -> np.ndarray:
    """float32: the constant with the channels that there are afterwards."""
    whole = array.reshape([1] * (-held.axis - array.ndim) + list(array.shape))
    shape = list(whole.shape)
    shape[held.axis] = channels
    made = np.take(np.broadcast_to(whole, shape), split.taken, held.axis).astype(np.float64)
    if held.adds_up:
        made *= split.parts.reshape(-1, *[1] * (-held.axis - 1))
    return np.asarray(made, np.float32)


# What a treatment that costs more when the model runs has to be better by.
_WORTH_DB = 1.0
_NAMED_AT_MOST = 5
_EQUALIZATION = "cross_layer_equalization"
NO_OUTLIERS = declare(
    "no-outlier-channels", "no tensor has a channel as much wider than the others as outlier_ratio asks", by_design=True
)
LEFT_TO_EQUALIZATION = declare(
    "outliers-left-to-equalization",
    "only weights with one scale have outlier channels, and cross_layer_equalization, which follows, balances them all",
    by_design=True,
)
NO_TREATMENT = declare("outliers-left-alone", "no outlier channel could be treated")
NONE_HELPED = declare("no-treatment-helped", "no treatment brings the outputs closer to the float model")
ALREADY_NARROW = declare("outliers-split-already", "the channels of {tensor!r} are split with those of another tensor")
NO_WIDER_TYPE = declare("no-wider-type", "{tensor!r} is {dtype}, which has no type of twice the bits")
WIDER_REFUSED = declare("wider-type-refused", "{tensor!r} has to be {dtype} on target {target}")
WIDER_NOT_IN_QOPERATOR = declare("wider-type-in-qoperator", "format qoperator has 8-bit types alone")
ONLY_ACTIVATIONS = declare("only-activations-wider", "weight {tensor!r} keeps its type: only activations get more bits")


class OutlierChannelsStep(Step[OutlierChannels]):
    """Treats the channels that alone set the range of a tensor; see ``TREATMENTS``.

    What there is to treat stands in the plan: calibration looks at the channels of every tensor anyway.
    """

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """The draft with its outliers treated, calibrated anew."""
        found = find_outliers(draft.graph, draft.plan, toolkit.case.config.outlier_ratio)
        if not found:
            return StepResult.nothing(NO_OUTLIERS())
        if self.spec.treatment == "auto" and any(step.method == _EQUALIZATION for step in toolkit.to_come):
            found = [one for one in found if one.kind == "activation"]
            if not found:
                return StepResult.nothing(LEFT_TO_EQUALIZATION())
        if self.spec.treatment != "auto":
            return _result(found, TREATMENTS[self.spec.treatment](self.spec, draft, found, toolkit))
        return _TreatmentSearch(self.spec, draft, found, toolkit).run()


class _TreatmentSearch:
    """Tries all treatments, and what the best of them leaves with the others."""

    def __init__(self, spec: OutlierChannels, draft: Draft, found: Sequence[Outliers], toolkit: Toolkit) -> None:
        self._spec, self._draft, self._found, self._toolkit = spec, draft, found, toolkit
        case = toolkit.case
        self._judge = Judge(case, toolkit.services, toolkit.judging)
        self._tried: list[str] = []
        self._left: dict[str, Reason] = {}

    def run(self) -> StepResult:
        best: Treated | None = None
        chosen = ""
        for name in TREATMENTS:
            treated = self._treated(name, self._draft, self._found)
            if treated is not None and self._is_better(treated, best):
                best, chosen = treated, name
        if best is None or best.draft is None:
            reason = NONE_HELPED if self._tried else NO_TREATMENT
            why = list(dict.fromkeys(map(str, self._left.values())))
            more = [f"{len(why) - _NAMED_AT_MOST} more reasons"] if len(why) > _NAMED_AT_MOST else []
            told = "; ".join([*self._tried, *why[:_NAMED_AT_MOST], *more])
            return StepResult.nothing(reason.saying(f"{reason()}: {told}"))
        for name in TREATMENTS:
            rest = [one for one in self._found if one.tensor not in best.told]
            treated = self._treated(name, best.draft, rest) if rest and name != chosen else None
            if treated is not None and self._is_better(treated, best):
                nodes = tuple(dict.fromkeys([*best.nodes, *treated.nodes]))
                best = replace(treated, told={**best.told, **treated.told}, nodes=nodes)
        return _result(self._found, replace(best, left=self._left), tried=self._tried)

    def _treated(self, name: str, draft: Draft, found: Sequence[Outliers]) -> Treated | None:
        treated = TREATMENTS[name](self._spec, draft, found, self._toolkit)
        self._left |= {tensor: reason for tensor, reason in treated.left.items() if tensor not in self._left}
        if treated.draft is None:
            return None
        sqnr_db = self._judge.score(treated.draft).sqnr_db
        figure = "outputs not finite" if sqnr_db is None else f"{sqnr_db:.1f} dB"
        self._tried.append(f"{name} of {len(treated.told)}: {figure}")
        return treated

    def _is_better(self, treated: Treated, best: Treated | None) -> bool:
        """Better than the draft as it was; and if there is a cheaper treatment, enough to pay for it."""
        before = self._draft if best is None or best.draft is None else best.draft
        if treated.draft is None:
            return False
        worse = self._judge.worse(before, treated.draft)
        if worse is None or worse.code != SQNR_WORSE.code:
            return worse is not None
        old, new = self._judge.score(before).sqnr_db, self._judge.score(treated.draft).sqnr_db
        return old is not None and new is not None and (best is None or new - old >= _WORTH_DB)


def _result(found: Sequence[Outliers], treated: Treated, *, tried: Sequence[str] = ()) -> StepResult:
    """What the report says of a treatment."""
    told = summary(found, treated) + (f"; tried: {', '.join(tried)}" if tried else "")
    if treated.draft is None:
        return StepResult.nothing(NO_TREATMENT.saying(f"{NO_TREATMENT()}: {told}"))
    return StepResult(treated.draft, treated.nodes, told)


def summary(found: Sequence[Outliers], treated: Treated) -> str:
    """One sentence for the report."""
    parts = [f"{len(treated.told)} of {len(found)} tensors with outlier channels treated"]
    named = list(treated.told.items())
    parts += [f"{tensor!r} {done}" for tensor, done in named[:_NAMED_AT_MOST]]
    if len(named) > _NAMED_AT_MOST:
        parts.append(f"{len(named) - _NAMED_AT_MOST} more")
    left = Counter(str(reason) for tensor, reason in treated.left.items() if tensor not in treated.told)
    parts += [f"left alone: {why}" for why, _ in left.most_common(_NAMED_AT_MOST)]
    return "; ".join(parts)


@dataclass(frozen=True)
class Treated:
    """What became of the tensors with outliers."""

    draft: Draft | None  # calibrated anew; None if no tensor could be treated
    told: dict[str, str] = field(default_factory=dict)  # of the treatment, in words, by tensor that was treated
    nodes: tuple[str, ...] = ()  # names of the nodes that were changed
    left: dict[str, Reason] = field(default_factory=dict)  # by tensor that was not treated, why


Treatment = Callable[[OutlierChannels, Draft, Sequence[Outliers], Toolkit], Treated]


def scale(spec: OutlierChannels, draft: Draft, found: Sequence[Outliers], toolkit: Toolkit) -> Treated:
    """Scale moved into the weights behind."""
    copied = replace(draft.prepared, model=draft.prepared.model.clone())
    scaler = Scaler(copied, draft.plan, toolkit.case.config, spec)
    made = scaler.run(found)
    if not scaler.treated:
        return Treated(None, left=scaler.left)
    words = dict.fromkeys(scaler.treated, "scaled")
    return Treated(toolkit.recalibrate(draft, made), words, tuple(dict.fromkeys(scaler.nodes)), scaler.left)


def split(spec: OutlierChannels, draft: Draft, found: Sequence[Outliers], toolkit: Toolkit) -> Treated:
    """Channels split into parts."""
    model = draft.prepared.model.clone()
    graph = model.graph
    words: dict[str, str] = {}
    nodes: dict[str, None] = {}
    left: dict[str, Reason] = {}
    values = {name_of(v): v for v in (*graph.inputs, *(v for node in graph for v in node.outputs if v.name))}
    made = {node_name(node): node for node in graph}
    at: dict[ir.Value | ir.Node, list[Outliers]] = defaultdict(list)
    for one in found:
        at[values[one.tensor] if one.kind == "activation" else made[one.node]].append(one)
    names, channels, done = Names(graph), ChannelGraph(graph), set[ir.Value]()
    for one in found:
        value = values[one.tensor] if one.kind == "activation" else made[one.node].outputs[0]
        if value in done:
            left[one.tensor] = ALREADY_NARROW(tensor=one.tensor)
            continue
        region = channels.region(value, one.axis)
        if isinstance(region, Reason):
            left[one.tensor] = region
            continue
        layers = (linear.node for linear in (*region.makers, *region.depthwise))
        places: list[ir.Value | ir.Node] = [*region.axes, *layers]
        joined = [other for place in places for other in at.get(place, ())]
        pieces = _pieces(spec, one, joined)
        change = ChannelSplit.of(region.channels, pieces)
        apply_split(graph, region, change, names)
        done.update(region.axes)
        words[one.tensor] = f"{len(pieces)} channels split into {sum(pieces.values())}"
        nodes |= dict.fromkeys(region.nodes)
    if not words:
        return Treated(None, left=left)
    return Treated(toolkit.recalibrate(draft, replace(draft.prepared, model=model)), words, tuple(nodes), left)


def widen(spec: OutlierChannels, draft: Draft, found: Sequence[Outliers], toolkit: Toolkit) -> Treated:
    """Tensors given 16 bits."""
    prepared = draft.prepared
    facts, kept, left = widened(draft.graph, draft.plan, prepared.facts, toolkit.case.config, found)
    if not kept:
        return Treated(None, left=left)
    readers = [
        node_name(node)
        for node in draft.graph
        if any(value is not None and value.name in kept for value in (*node.inputs, *node.outputs))
        and draft.plan.nodes[node_name(node)].quantized
    ]
    changed = toolkit.recalibrate(draft, replace(prepared, facts=facts), touched=kept)
    return Treated(changed, dict.fromkeys(kept, "given 16 bits"), tuple(readers), left)


# In the order of what they cost when the model runs.
TREATMENTS: dict[str, Treatment] = {"input_scale": scale, "split": split, "higher_bits": widen}


def _pieces(spec: OutlierChannels, one: Outliers, joined: Sequence[Outliers]) -> dict[int, int]:
    """By channel: as many pieces as the neediest of the tensors that share the channels asks for."""
    excess: np.ndarray = np.zeros(one.spans.size)
    for other in (one, *joined):
        chosen = list(other.channels)
        excess[chosen] = np.maximum(excess[chosen], other.spans[chosen] / other.widest_tame)
    outliers = np.flatnonzero(excess > 1.0).tolist()
    return wanted_pieces(excess, outliers, 1.0, max(1, math.floor(excess.size * spec.growth)))


def widened(
    graph: ir.Graph, plan: QuantizationPlan, facts: NodeFacts, config: QuantizationConfig, found: Sequence[Outliers]
) -> tuple[NodeFacts, list[str], dict[str, Reason]]:
    """Facts that give the tensors 16 bits; the tensors that get them, and why others do not."""
    wanted, left = [], {}
    for one in found:
        entry = plan.activations.get(one.tensor)
        if one.kind == "weight" or entry is None:
            left[one.tensor] = ONLY_ACTIVATIONS(tensor=one.tensor)
        elif config.format == "qoperator":
            left[one.tensor] = WIDER_NOT_IN_QOPERATOR()
        elif entry.spec.dtype not in WIDER:
            left[one.tensor] = NO_WIDER_TYPE(tensor=one.tensor, dtype=entry.spec.dtype)
        else:
            wanted.append(one.tensor)
    made = build_plan(graph, config, facts.with_widened(wanted))
    kept = []
    for tensor in wanted:
        dtype = made.activations[tensor].spec.dtype
        if dtype == WIDER[plan.activations[tensor].spec.dtype]:
            kept.append(tensor)
        else:
            left[tensor] = WIDER_REFUSED(tensor=tensor, dtype=dtype, target=config.target)
    return facts.with_widened(kept), kept, left
