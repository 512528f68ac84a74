"""What each treatment makes of a draft."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import OutlierChannels
from service.contracts.reason import Reason, declare
from worker.quantizer.equalization.outliers.region import find_region
from worker.quantizer.equalization.outliers.scaling import Scaler
from worker.quantizer.equalization.outliers.splitting import Split, apply_split, most_added, wanted_pieces
from worker.quantizer.equalization.outliers.widening import widened
from worker.quantizer.graph.regions import has_regions
from worker.quantizer.graph.values import Names, name_of, node_name
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.outliers import Outliers
from worker.quantizer.refine.step import Toolkit

ALREADY_NARROW = declare("outliers-split-already", "the channels of {tensor!r} are split with those of another tensor")


@dataclass(frozen=True)
class Treated:
    """What became of the tensors with outliers.

    Attributes:
        draft: calibrated anew; None if no tensor could be treated.
        told: of the treatment, in words, by tensor that was treated.
        nodes: names of the nodes that were changed.
        left: by tensor that was not treated, why.
    """

    draft: Draft | None
    told: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    left: dict[str, Reason] = field(default_factory=dict)


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
    names, in_regions, done = Names(graph), has_regions(graph), set[ir.Value]()
    for one in found:
        value = values[one.tensor] if one.kind == "activation" else made[one.node].outputs[0]
        if value in done:
            left[one.tensor] = ALREADY_NARROW(tensor=one.tensor)
            continue
        region = find_region(graph, value, one.axis, in_regions=in_regions)
        if isinstance(region, Reason):
            left[one.tensor] = region
            continue
        layers = (linear.node for linear in (*region.makers, *region.diagonal))
        places: list[ir.Value | ir.Node] = [*region.axes, *layers]
        joined = [other for place in places for other in at.get(place, ())]
        pieces = _pieces(spec, one, joined)
        change = Split.of(region.channels, pieces)
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
    return wanted_pieces(excess, outliers, 1.0, most_added(excess.size, spec.growth))
