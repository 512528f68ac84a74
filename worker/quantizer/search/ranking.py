"""Ranks layers by the error that quantizing each of them alone leaves in the output of the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms.precision import Level
from service.contracts.search import KindSensitivity, LayerSensitivity, Sensitivity
from service.contracts.specs import ActivationSpec, WeightSpec
from worker.quantizer.data import choose_batch_size
from worker.quantizer.evaluation.metrics import Distance
from worker.quantizer.graph.values import constant, name_of
from worker.quantizer.numerics.grids import Grid
from worker.quantizer.plan.grids import activation_grid, weight_grid
from worker.quantizer.plan.log import PlanLog
from worker.quantizer.plan.weights import granularity_of
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Draft
from worker.quantizer.run.services import Services
from worker.quantizer.search.layers import QuantizedLayer
from worker.quantizer.search.levels import Ranges
from worker.quantizer.search.propagation import ActivationError, Propagation, WeightError

_MOST = 1e20
# One sample at a time: all its disturbed copies are in memory at once.
_BATCH = 1


@dataclass(frozen=True)
class Analysis:
    """What is ranked, and on what.

    Attributes:
        draft: whose float network and plan count.
        layers: of it.
        levels: by name; float ones have no error. The last one's errors are propagated.
        ranges: calibrated, by source tensor and spec.
        case: what is quantized.
        services: of the run.
        samples: how many to run.
        first_sample: number of the first one.
        output_index: of the output that counts.
        verify: layers at the head of the ranking that are checked by models.
    """

    draft: Draft
    layers: Sequence[QuantizedLayer]
    levels: Mapping[str, Level]
    ranges: Ranges
    case: Case
    services: Services
    samples: int
    first_sample: int = 0
    output_index: int = 0
    verify: int = 0

    @property
    def measured(self) -> str:
        """Name of the level whose errors are propagated."""
        return list(self.levels)[-1]


def analyse(analysis: Analysis) -> Sensitivity:
    """Measure every layer.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    draft, layers, levels, measured = analysis.draft, analysis.layers, analysis.levels, analysis.measured
    case, services, first = analysis.case, analysis.services, analysis.first_sample
    last = min(first + analysis.samples, case.calibration_samples)
    services.run.progress("sensitivity", 0, last - first, "samples")
    nodes = {node.name: node for node in draft.graph}
    local = {layer.node: _weight_errors(nodes[layer.node], levels) for layer in layers}
    grids = {
        name: {
            source: activation_grid(level.activation, analysis.ranges[source, level.activation])
            for source in dict.fromkeys(source for layer in layers for source in layer.sources)
            if isinstance(level.activation, ActivationSpec) and (source, level.activation) in analysis.ranges
        }
        for name, level in levels.items()
    }
    squares = _SourceErrors(grids, measured)
    errors, owners = _errors(nodes, layers, levels[measured], squares, grids[measured])
    propagation = Propagation(draft.prepared.model, errors, threads=services.threads, run=services.run)
    output = name_of(draft.graph.outputs[analysis.output_index])
    distances = [Distance() for _ in errors]
    size = choose_batch_size(case.inputs, case.calibration, _BATCH)
    done = 0
    for batch in case.calibration.batches(case.inputs, size, limit=last, start=first):
        found = propagation.outputs(batch.feeds)[output]
        clean = batch.cut(found.pop(-1))
        for k, values in found.items():
            distances[k].update(clean, batch.cut(values))
        done += batch.valid
        services.run.progress("sensitivity", done, last - first, "samples")
    relative = {owner: distance.relative_noise for owner, distance in zip(owners, distances, strict=True)}
    ranked = _ranked(analysis, relative, local, squares.sums)
    return Sensitivity(output=output, samples=done, measured=measured, layers=tuple(ranked))


class _SourceErrors:
    """Disturbs tensors by the grid of one level, and sums up what the grids of all levels would do to them."""

    def __init__(self, grids: Mapping[str, Mapping[str, Grid]], measured: str) -> None:
        self._grids = grids
        self._measured = measured
        self.sums: dict[tuple[str, str], float] = {}

    def of(self, source: str) -> Callable[[np.ndarray], np.ndarray]:
        """What disturbs ``source``."""
        return partial(self._disturb, source)

    def _disturb(self, source: str, values: np.ndarray) -> np.ndarray:
        disturbed = values
        for level, grids in self._grids.items():
            if source not in grids:
                continue
            rounded = grids[source].fake(values)
            error = (rounded - values).reshape(-1).astype(np.float64)
            key = level, source
            self.sums[key] = self.sums.get(key, 0.0) + float(np.dot(error, error))
            if level == self._measured:
                disturbed = rounded
        return disturbed


def level_weight(node: ir.Node, level: Level) -> np.ndarray | None:
    """The node's weight as ``level`` represents it, float32; None for a float level or a weight that is no constant."""
    array = constant(node.inputs[1])
    if array is None or not isinstance(level.weight, WeightSpec):
        return None
    return weight_grid(array, level.weight, granularity_of(node, level.weight, PlanLog())).fake(array)


def _weight_errors(node: ir.Node, levels: Mapping[str, Level]) -> dict[str, float]:
    """Square error of the node's weight by level."""
    array = constant(node.inputs[1])
    found = {}
    for name, level in levels.items():
        rounded = level_weight(node, level)
        if array is not None and rounded is not None:
            found[name] = float(((rounded.astype(np.float64) - array) ** 2).sum())
    return found


def _errors(
    nodes: Mapping[str | None, ir.Node],
    layers: Sequence[QuantizedLayer],
    level: Level,
    sources: _SourceErrors,
    known: Container[str],
) -> tuple[list[WeightError | ActivationError], list[tuple[str, str]]]:
    """All errors of ``level``, each once, and (kind, initializer or source) of each."""
    errors: dict[tuple[str, str], WeightError | ActivationError] = {}
    for layer in layers:
        rounded = level_weight(nodes[layer.node], level) if layer.weight is not None else None
        if layer.weight is not None and rounded is not None:
            errors.setdefault(("weight", layer.weight), WeightError(layer.weight, rounded))
        for source in layer.sources:
            if source in known:
                errors.setdefault(("activation", source), ActivationError(source, sources.of(source)))
    return list(errors.values()), list(errors)


def _ranked(
    analysis: Analysis,
    noise: Mapping[tuple[str, str], float],
    weights: Mapping[str, Mapping[str, float]],
    sums: Mapping[tuple[str, str], float],
) -> list[LayerSensitivity]:
    """The layers, most sensitive first."""
    measured = analysis.measured

    def kinds(layer: QuantizedLayer, level: str) -> KindSensitivity:
        own = weights[layer.node]
        weight = None
        if layer.weight is not None:
            weight = noise.get(("weight", layer.weight), 0.0) * _ratio(own.get(level, 0.0), own.get(measured, 0.0))
        activation = None
        found = [source for source in layer.sources if (measured, source) in sums]
        if found:
            activation = sum(
                noise.get(("activation", source), 0.0) * _ratio(sums.get((level, source), 0.0), sums[measured, source])
                for source in found
            )
        return KindSensitivity(weight=weight, activation=activation, both=(weight or 0.0) + (activation or 0.0))

    rows = [(layer, {level: kinds(layer, level) for level in analysis.levels}) for layer in analysis.layers]
    rows.sort(key=lambda row: -row[1][measured].both)
    return [
        LayerSensitivity(
            rank=k + 1,
            node=layer.node,
            op=layer.op_type,
            group=layer.group,
            parameters=layer.parameters,
            levels=found,
        )
        for k, (layer, found) in enumerate(rows)
    ]


def _ratio(error: float, measured: float) -> float:
    """At most, and where there is none, 10^20: what stands for errors that are not finite (``Distance``)."""
    ratio = error / measured if measured else 0.0
    return min(ratio, _MOST) if math.isfinite(ratio) else _MOST
