"""Ranks layers by the error that quantizing each of them alone leaves in the output of the network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms.precision import Level
from service.contracts.sensitivity import KindSensitivity, LayerSensitivity, Sensitivity
from service.contracts.specs import ActivationSpec, WeightSpec
from worker.quantizer.data import choose_batch_size
from worker.quantizer.evaluation.metrics import Distance
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.graph.values import constant, name_of
from worker.quantizer.plan.grids import activation_grid, weight_grid
from worker.quantizer.plan.journal import Journal
from worker.quantizer.plan.types import Grid
from worker.quantizer.plan.weights import granularity_of
from worker.quantizer.precision.layers import Layer
from worker.quantizer.precision.mixed.assignment import Ranges
from worker.quantizer.precision.sensitivity.propagation import ActivationError, Propagation, WeightError
from worker.quantizer.precision.sensitivity.verification import verified
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Draft
from worker.quantizer.run.extra import ExtraFile, ExtraFiles
from worker.quantizer.run.identity import content_key
from worker.quantizer.run.services import Services

# One sample at a time: all its disturbed copies are in memory at once.
_BATCH = 1
# Copies grow with the square of the number of layers: so many samples times layers cost about two passes over 125.
_SAMPLES_TIMES_LAYERS = 112
_FEWEST_SAMPLES, _MOST_SAMPLES = 2, 16


def analyse_once(
    draft: Draft,
    layers: Sequence[Layer],
    levels: Mapping[str, Level],
    measured: str,
    ranges: Ranges,
    case: Case,
    services: Services,
    *,
    verify: int = 0,
    **settings: int,
) -> Sensitivity:
    """``analyse``, or what it found for another job, or attempt, on the same network, samples and levels."""
    scope = {
        "levels": {name: level.model_dump(mode="json") for name, level in levels.items()},
        "measured": measured,
        "layers": [[layer.node, layer.weight, list(layer.sources), layer.group] for layer in layers],
        "ranges": [
            [name, source, found.minimum, found.maximum]
            for name, level in levels.items()
            for (source, spec), found in sorted(ranges.items(), key=lambda item: item[0][0])
            if spec == level.activation
        ],
        "settings": {**settings, "verify": verify},
    }
    network = hashlib.sha256(to_bytes(draft.prepared.model)).digest()
    origin = {name: value for name, value in case.origin.items() if name != "evaluation"}
    key = content_key("sensitivity", origin, network, scope)
    stored = services.cache.get(key) or services.checkpoint.load(f"sensitivity {key}")
    if stored is not None:
        services.run.log("sensitivity: taken over from an earlier job or attempt")
        return Sensitivity.model_validate_json(stored)
    found = analyse(draft, layers, levels, measured, ranges, case, services, **settings)
    if verify:
        first_sample = settings.get("first_sample", 0)
        found = verified(
            found, draft, layers, levels[measured], ranges, case, services, count=verify, first_sample=first_sample
        )
    document = found.model_dump_json().encode()
    services.cache.put(key, document)
    services.checkpoint.save(f"sensitivity {key}", document)
    return found


def publish(sensitivity: Sensitivity, files: ExtraFiles) -> None:
    """Put the ranking among the files of the job, unless there is one already."""
    if any(file.kind == "sensitivity_json" for file in files.all):
        return
    document = sensitivity.model_dump_json(indent=1).encode()
    files.add(ExtraFile("sensitivity_json", "sensitivity.json", "application/json", document))
    files.add(ExtraFile("sensitivity_csv", "sensitivity.csv", "text/csv", sensitivity.to_csv().encode()))


def enough_samples(layers: int) -> int:
    """Samples that give a steady ranking without costing more than a few passes over a calibration set."""
    return max(_FEWEST_SAMPLES, min(_MOST_SAMPLES, _SAMPLES_TIMES_LAYERS // max(layers, 1)))


def analyse(
    draft: Draft,
    layers: Sequence[Layer],
    levels: Mapping[str, Level],
    measured: str,
    ranges: Ranges,
    case: Case,
    services: Services,
    *,
    samples: int,
    first_sample: int = 0,
    output_index: int = 0,
) -> Sensitivity:
    """Measure every layer.

    Args:
        draft: whose float network and plan count.
        layers: of it.
        levels: by name; float ones have no error.
        measured: the level whose errors are propagated; the lowest.
        ranges: calibrated, by source tensor and spec.
        case: what is quantized.
        services: of the run.
        samples: how many to run.
        first_sample: number of the first one.
        output_index: of the output that counts.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    last = min(first_sample + samples, case.calibration_samples)
    services.run.progress("sensitivity", 0, last - first_sample, "samples")
    nodes = {node.name: node for node in draft.graph}
    local = {layer.node: _weight_errors(nodes[layer.node], levels) for layer in layers}
    grids = {
        name: {
            source: activation_grid(level.activation, ranges[source, level.activation])
            for source in dict.fromkeys(source for layer in layers for source in layer.sources)
            if isinstance(level.activation, ActivationSpec) and (source, level.activation) in ranges
        }
        for name, level in levels.items()
    }
    squares = _SourceErrors(grids, measured)
    errors, owners = _errors(nodes, layers, levels[measured], squares, grids[measured])
    propagation = Propagation(draft.prepared.model, errors, threads=services.threads, run=services.run)
    output = name_of(draft.graph.outputs[output_index])
    distances = [Distance() for _ in errors]
    size = choose_batch_size(case.inputs, case.calibration, _BATCH)
    done = 0
    for batch in case.calibration.batches(case.inputs, size, limit=last, start=first_sample):
        found = propagation.outputs(batch.feeds)[output]
        clean = batch.cut(found.pop(-1))
        for k, values in found.items():
            distances[k].update(clean, batch.cut(values))
        done += batch.valid
        services.run.progress("sensitivity", done, last - first_sample, "samples")
    relative = {owner: distance.relative_noise for owner, distance in zip(owners, distances, strict=True)}
    ranked = _ranked(layers, levels, measured, relative, local, squares.sums)
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
            error = (rounded - values).reshape(-1)
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
    return weight_grid(array, level.weight, granularity_of(node, level.weight, Journal())).fake(array)


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
    layers: Sequence[Layer],
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
    layers: Sequence[Layer],
    levels: Mapping[str, Level],
    measured: str,
    noise: Mapping[tuple[str, str], float],
    weights: Mapping[str, Mapping[str, float]],
    sums: Mapping[tuple[str, str], float],
) -> list[LayerSensitivity]:
    """The layers, most sensitive first."""

    def kinds(layer: Layer, level: str) -> KindSensitivity:
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

    rows = [(layer, {level: kinds(layer, level) for level in levels}) for layer in layers]
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
    return error / measured if measured else 0.0
