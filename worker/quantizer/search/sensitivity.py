"""Sensitivity: ranks layers by the error that quantizing each alone leaves in the outputs; changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import SensitivityAnalysis
from service.contracts.algorithms.precision import Level, level_document
from service.contracts.costs import spread
from service.contracts.search import KindSensitivity, LayerSensitivity, Sensitivity
from service.contracts.specs import ActivationSpec, WeightSpec
from worker.quantizer.data import choose_batch_size
from worker.quantizer.evaluation.metrics import Distance, Distances
from worker.quantizer.evaluation.side_by_side import side_by_side
from worker.quantizer.graph.serialized import model_digest
from worker.quantizer.graph.values import constant, name_of
from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.plan.grids import activation_grid, granularity_of, weight_grid
from worker.quantizer.plan.types import PlanLog
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.refine.step import Step, StepResult, Toolkit
from worker.quantizer.run.identity import content_key
from worker.quantizer.run.services import ExtraFile, ExtraFiles, Services
from worker.quantizer.search.goal import output_place
from worker.quantizer.search.levels import NO_LINEAR_NODE, Assigner, QuantizedLayer, Ranges, find_layers, level_ranges
from worker.quantizer.search.propagation import ActivationError, Propagation, WeightError, entrances

# Ranks layers by the error that quantizing each of them alone leaves in the output of the network.

_MOST = 1e20
# One sample at a time: all its disturbed copies are in memory at once.
_RANKING_BATCH = 1


@dataclass(frozen=True)
class Analysis:
    """What is ranked, and on what."""

    draft: Draft  # whose float network and plan count
    layers: Sequence[QuantizedLayer]  # of it
    levels: Mapping[str, Level]  # by name; float ones have no error. The last one's errors are propagated.
    ranges: Ranges  # calibrated, by source tensor and spec
    case: Case  # what is quantized
    services: Services  # of the run
    samples: Sequence[int]  # ascending numbers of those to run
    output_index: int = 0  # of the output that counts
    verify: int = 0  # layers at the head of the ranking that are checked by models

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
    case, services = analysis.case, analysis.services
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
    model, entered = entrances(draft.prepared.model, draft.plan)
    errors, owners = _errors(
        nodes, layers, levels[measured], squares, {name: entered.get(name, name) for name in grids[measured]}
    )
    found = propagated(model, errors, case, services, samples=analysis.samples)
    output = name_of(draft.graph.outputs[analysis.output_index])
    relative = {owner: noise.get(output, 0.0) for owner, noise in zip(owners, found, strict=True)}
    ranked = _ranked(analysis, relative, local, squares.sums)
    return Sensitivity(output=output, samples=len(analysis.samples), measured=measured, layers=tuple(ranked))


def propagated(
    model: ir.Model,
    errors: list[WeightError | ActivationError],
    case: Case,
    services: Services,
    *,
    samples: Sequence[int],
) -> list[dict[str, float]]:
    """What each error alone leaves in the outputs that it reaches: error power over signal power, by name.

    Args:
        model: prepared float model.
        errors: what starts where.
        case: whose calibration samples are run.
        services: of the run.
        samples: ascending numbers of those to run.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    services.run.progress("sensitivity", 0, len(samples), "samples")
    propagation = Propagation(model, errors, threads=services.threads, run=services.run)
    distances = [Distances() for _ in errors]
    size = choose_batch_size(case.inputs, case.calibration, _RANKING_BATCH)
    done = 0
    for batch in case.calibration.batches(case.inputs, size, samples=samples):
        for output, copies in propagation.outputs(batch.feeds).items():
            clean = batch.cut(copies.pop(-1))
            for k, values in copies.items():
                distances[k].update([(output, clean, batch.cut(values))])
        done += batch.valid
        services.run.progress("sensitivity", done, len(samples), "samples")
    return [{output: one.relative_noise for output, one in found.of.items()} for found in distances]


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
    known: Mapping[str, str],
) -> tuple[list[WeightError | ActivationError], list[tuple[str, str]]]:
    """All errors of ``level``, each once, and (kind, initializer or source) of each.

    ``known`` are tensors that have a grid, and where their errors start.
    """
    errors: dict[tuple[str, str], WeightError | ActivationError] = {}
    for layer in layers:
        rounded = level_weight(nodes[layer.node], level) if layer.weight is not None else None
        if layer.weight is not None and rounded is not None:
            errors.setdefault(("weight", layer.weight), WeightError(layer.weight, rounded))
        for source in layer.sources:
            if source in known:
                errors.setdefault(("activation", source), ActivationError(known[source], sources.of(source)))
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


_CANDIDATES = ("A16W16", "A8W16", "A16W8", "A8W8")
# Copies grow with the square of the number of layers: so many samples times layers cost about two passes over 125.
_SAMPLES_TIMES_LAYERS = 112
_FEWEST_SAMPLES, _MOST_SAMPLES = 2, 16
# Samples that every model is run on: fewer than a ranking of a small network takes, more than that of a large one.
_VERIFIED_SAMPLES = 16
_VERIFIED_BATCH = 8
_FLOAT = Level(activation="float32", weight="float32")


class SensitivityStep(Step[SensitivityAnalysis]):
    """Puts the ranking among the files of the job."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """The same draft.

        Raises:
            InvalidConfigError: there is no such output.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        config, spec = toolkit.case.config, self.spec
        layers = find_layers(draft.graph, draft.plan)
        if not layers:
            return StepResult.nothing(NO_LINEAR_NODE())
        own = (config.activation.model_dump(mode="json"), config.weight.model_dump(mode="json"))
        levels = spec.levels or {word: Level.model_validate(level_document(word, *own)) for word in _CANDIDATES}
        analysis = analysis_of(
            draft, layers, levels, toolkit, samples=spec.samples, output=spec.output_index, verify=spec.verify
        )
        found = analyse_once(analysis)
        first = found.layers[0]
        summary = f"{len(layers)} layers ranked on {found.samples} samples; the most sensitive one is {first.node!r}"
        return StepResult(draft, (), summary, judged=False)


def analysis_of(
    draft: Draft,
    layers: Sequence[QuantizedLayer],
    levels: Mapping[str, Level],
    toolkit: Toolkit,
    *,
    samples: int | None,
    output: int | str,
    verify: int,
) -> Analysis:
    """An analysis on samples that a step may learn from; ``samples`` None: as many as give a steady ranking.

    Raises:
        InvalidConfigError: there is no such output.
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    case, services = toolkit.case, toolkit.services
    ranges = level_ranges(draft, list(levels.values()), case, services)
    # A steady ranking must not cost more than a few passes over a calibration set.
    enough = max(_FEWEST_SAMPLES, min(_MOST_SAMPLES, _SAMPLES_TIMES_LAYERS // len(layers)))
    place = output_place(output, case)
    return Analysis(draft, layers, levels, ranges, case, services, toolkit.learning(samples or enough), place, verify)


def analyse_once(analysis: Analysis) -> Sensitivity:
    """``analyse``, or what it found for another job, or attempt, on the same network, samples and levels.

    The ranking is put among the files of the job, unless there is one already.
    """
    services = analysis.services
    key = _key(analysis)
    found = services.checkpoint.find_as(key, Sensitivity.model_validate_json)
    if found is not None:
        services.run.log("sensitivity: reusing the result of an earlier job or attempt")
    else:
        found = analyse(analysis)
        if analysis.verify:
            found = verified(analysis, found)
        services.checkpoint.keep(key, found.model_dump_json().encode())
    _publish(found, services.files)
    return found


def verified(analysis: Analysis, found: Sensitivity) -> Sensitivity:
    """``found`` with its first ``verify`` layers measured on emitted models, and ordered by what was measured.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    case, services, count = analysis.case, analysis.services, analysis.verify
    alone = [replace(layer, group=k) for k, layer in enumerate(analysis.layers)]
    levels = _FLOAT, analysis.levels[analysis.measured]
    assigner = Assigner(analysis.draft, alone, levels, analysis.ranges, case, services)
    number = {layer.node: layer.group for layer in alone}
    expected = list(
        case.expected_outputs(
            services.run,
            batch_size=_VERIFIED_BATCH,
            samples=[analysis.samples[k] for k in spread(len(analysis.samples), _VERIFIED_SAMPLES)],
            outputs=[found.output],
        )
    )

    def measured(row: LayerSensitivity) -> LayerSensitivity:
        session = assigner.draft_of({number[row.node]: 1}).session(services.threads)
        distance = Distance()
        for twins in side_by_side(session, expected, services.run):
            for _, one, other in twins.pairs():
                distance.update(one, other)
        services.run.progress("sensitivity", row.rank, min(count, len(found.layers)), "layers verified")
        return row.model_copy(update={"verified": distance.relative_noise})

    head = [measured(row) for row in found.layers[:count]]
    head.sort(key=lambda row: -(row.verified or 0.0))
    rows = [row.model_copy(update={"rank": k + 1}) for k, row in enumerate([*head, *found.layers[count:]])]
    return found.model_copy(update={"layers": tuple(rows)})


def _key(analysis: Analysis) -> str:
    """Of everything that the ranking depends on."""
    scope = {
        "levels": {name: level.model_dump(mode="json") for name, level in analysis.levels.items()},
        "measured": analysis.measured,
        "layers": [[layer.node, layer.weight, list(layer.sources), layer.group] for layer in analysis.layers],
        "ranges": [
            [name, source, found.minimum, found.maximum]
            for name, level in analysis.levels.items()
            for (source, spec), found in sorted(analysis.ranges.items(), key=lambda item: item[0][0])
            if spec == level.activation
        ],
        "settings": {name: getattr(analysis, name) for name in ("samples", "output_index", "verify")},
    }
    network = model_digest(analysis.draft.prepared.model)
    origin = {name: value for name, value in analysis.case.origin.items() if name != "evaluation"}
    return content_key("sensitivity", origin, network, scope)


def _publish(sensitivity: Sensitivity, files: ExtraFiles) -> None:
    if any(file.kind == "sensitivity_json" for file in files.all):
        return
    document = sensitivity.model_dump_json(indent=1).encode()
    files.add(ExtraFile("sensitivity_json", "sensitivity.json", "application/json", document))
    files.add(ExtraFile("sensitivity_csv", "sensitivity.csv", "text/csv", sensitivity.to_csv().encode()))
