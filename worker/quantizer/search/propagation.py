"""Carries the errors of many layers to the output in one walk through the float network.

Every layer's error starts where it arises and travels on from there: behind a layer the network runs on the clean
samples and, stacked onto them, on one disturbed copy per error that has started so far. No prefix is run twice, and
errors are real ones, not models of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.serialized import copy_of
from worker.quantizer.graph.values import Names, name_of, node_name
from worker.quantizer.layerwise.models import Piece, PieceMaker, Segment, cut, values_read
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.run.interface import Run

_CLEAN = -1
# Elements of all inputs of one run, so that they stay in the processor's cache; what more there is runs in parts.
_MOST_ELEMENTS = 1_000_000
_Disturb = Callable[[np.ndarray], np.ndarray]
_Copies = dict[int, np.ndarray]


@dataclass(frozen=True)
class WeightError:
    """The weight of a layer in another value."""

    initializer: str
    values: np.ndarray


@dataclass(frozen=True)
class ActivationError:
    """A tensor as ``disturb`` leaves it, for all that read it; see ``entrances`` for those that some round alone."""

    tensor: str
    disturb: _Disturb


@dataclass(frozen=True)
class _Stage:
    """A segment, as it is, and with each of the errors that start in its weights."""

    segment: Segment
    clean: Piece
    disturbed: Mapping[int, Piece]


class Propagation:
    """The float network with errors that start in it, cut wherever one does.

    Args:
        model: prepared float model.
        errors: what starts where.
        threads: of the sessions.
        run: asked whether to stop.
    """

    def __init__(self, model: ir.Model, errors: list[WeightError | ActivationError], *, threads: int, run: Run) -> None:
        self._run = run
        self._weights = {k: error for k, error in enumerate(errors) if isinstance(error, WeightError)}
        self._tensors: dict[str, list[tuple[int, _Disturb]]] = {}
        for k, error in enumerate(errors):
            if isinstance(error, ActivationError):
                self._tensors.setdefault(error.tensor, []).append((k, error.disturb))
        graph, weights = model.graph, {error.initializer for error in self._weights.values()}
        self._outputs = [name_of(value) for value in graph.outputs]
        before = {node_name(node) for node in graph if any(value.name in weights for value in values_read(node))}
        segments = [each for each in cut(graph, graph, before=before, behind=self._tensors) if each.nodes]
        pieces = PieceMaker(model, threads=threads, arena=False)
        self._stackable = _stackable(graph, pieces.values, segments)
        self._stages = [self._stage(segment, pieces) for segment in segments]

    def _stage(self, segment: Segment, pieces: PieceMaker) -> _Stage:
        self._run.check()
        nodes, reads, makes = segment.nodes, segment.reads, segment.makes
        constants = {value.name for node in nodes for value in values_read(node)}
        own = {k: {error.initializer: error.values} for k, error in self._weights.items()}
        disturbed = {k: found for k, found in own.items() if constants.intersection(found)}
        return _Stage(
            segment,
            pieces.float_piece(nodes, reads, makes),
            {k: pieces.float_piece(nodes, reads, makes, replaced) for k, replaced in disturbed.items()},
        )

    def outputs(self, feeds: Mapping[str, np.ndarray]) -> dict[str, _Copies]:
        """Outputs of the network for one batch: by name, then by number of the error, -1 being the clean one.

        An error that does not reach an output has no copy of it.
        """
        live: dict[str, _Copies] = {name: {_CLEAN: values} for name, values in feeds.items()}
        for name, copies in live.items():
            self._start(copies, name)
        for stage in self._stages:
            self._run.check()
            made = self._pass(stage, live)
            for name, copies in made.items():
                self._start(copies, name)
            live.update(made)
            for name in stage.segment.spent:
                del live[name]
        return {name: live[name] for name in self._outputs}

    def _start(self, copies: _Copies, tensor: str) -> None:
        """Let the errors of ``tensor`` start."""
        for k, disturb in self._tensors.get(tensor, ()):
            copies[k] = disturb(copies[_CLEAN])

    def _pass(self, stage: _Stage, live: Mapping[str, _Copies]) -> dict[str, _Copies]:
        """What the segment makes of every copy that reaches it."""
        segment = stage.segment
        reaching = sorted({k for name in segment.reads for k in live[name]} - set(stage.disturbed))
        made: dict[str, _Copies] = {name: {} for name in segment.makes}
        runs = [(stage.clean, ids) for ids in self._parts(segment, live, reaching or [_CLEAN])]
        runs += [(piece, [k]) for k, piece in stage.disturbed.items()]
        for piece, ids in runs:
            for name, copies in _run_stacked(piece, live, ids).items():
                made[name].update(copies)
        return made

    def _parts(self, segment: Segment, live: Mapping[str, _Copies], ids: list[int]) -> Iterator[list[int]]:
        elements = sum(live[name][_CLEAN].size for name in segment.reads)
        most = max(1, _MOST_ELEMENTS // max(elements, 1)) if self._stackable else 1
        for first in range(0, len(ids), most):
            yield ids[first : first + most]


def _run_stacked(piece: Piece, live: Mapping[str, _Copies], ids: list[int]) -> dict[str, _Copies]:
    feeds = {}
    for name in piece.fed:
        copies = live[name]
        arrays = [copies.get(k, copies[_CLEAN]) for k in ids]
        feeds[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    results = piece.session.run(feeds, list(piece.made))
    return {
        name: dict(zip(ids, np.split(values, len(ids)) if len(ids) > 1 else [values], strict=True))
        for name, values in zip(piece.made, results, strict=True)
    }


def entrances(model: ir.Model, plan: QuantizationPlan) -> tuple[ir.Model, dict[str, str]]:
    """The model with an Identity in front of all that round a tensor which others read as it is.

    What a float node makes is rounded by those of its readers alone that run on integers. Returns a copy, or the very
    model where there is no such tensor, and by tensor what those readers read in its place.
    """
    if not _rounded_by_some(model.graph, plan):
        return model, {}
    model = copy_of(model)
    graph, names, made = model.graph, Names(model.graph), dict[str, str]()
    for value, readers in _rounded_by_some(graph, plan):
        identity = ir.node("Identity", [value], name=names.free(f"{value.name}_entrance"))
        entrance = identity.outputs[0]
        made[name_of(value)] = entrance.name = names.free(f"{value.name}_rounded")
        entrance.type, entrance.shape = value.type, value.shape
        for reader, index in readers:
            reader.replace_input_with(index, entrance)
        producer = value.producer()
        if producer is None:
            graph.insert_before(graph[0], identity)
        else:
            graph.insert_after(producer, identity)
    return model, made


def _rounded_by_some(graph: ir.Graph, plan: QuantizationPlan) -> list[tuple[ir.Value, list[tuple[ir.Node, int]]]]:
    """Tensors that some of their readers alone round, and these: node and number of its input."""
    found = []
    for value in (*graph.inputs, *(made for node in graph for made in node.outputs)):
        producer = value.producer()
        if value.name not in plan.activations or (producer is not None and _rounds(producer, plan)):
            continue
        uses = [(usage.node, usage.idx) for usage in value.uses()]
        rounding = [use for use in uses if _rounds(use[0], plan)]
        if rounding and (len(rounding) < len(uses) or value.is_graph_output()):
            found.append((value, rounding))
    return found


def _rounds(node: ir.Node, plan: QuantizationPlan) -> bool:
    entry = plan.nodes.get(node_name(node))
    return entry is not None and entry.rounds


def _stackable(graph: ir.Graph, values: Mapping[str | None, ir.Value], segments: Sequence[Segment]) -> bool:
    """True if every tensor between segments begins with the batch axis, and any number of samples may be run."""
    inputs = [value for value in graph.inputs if not value.is_initializer()]
    batch = {_first_axis(value) for value in inputs}
    if len(batch) != 1 or None in batch:
        return False
    crossing = {name for segment in segments for name in (*segment.reads, *segment.makes)}
    return all(_first_axis(values[name]) in batch for name in crossing)


def _first_axis(value: ir.Value) -> str | None:
    """The symbol of the value's first axis; None if it has none."""
    if value.shape is None or not len(value.shape):
        return None
    first = value.shape[0]
    return first.value if isinstance(first, ir.SymbolicDim) else None
