"""Sensitivity as a step: ranks the layers and leaves the network as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from service.contracts.algorithms import SensitivityAnalysis
from service.contracts.algorithms.precision import Level, level_document
from service.contracts.search import LayerSensitivity, Sensitivity
from worker.quantizer.evaluation.metrics import Distance
from worker.quantizer.evaluation.side_by_side import side_by_side
from worker.quantizer.graph.serialized import model_digest
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Step, Toolkit
from worker.quantizer.run.extra import ExtraFile, ExtraFiles
from worker.quantizer.run.identity import content_key
from worker.quantizer.search.goal import output_place
from worker.quantizer.search.layers import NO_LINEAR_NODE, QuantizedLayer, find_layers
from worker.quantizer.search.levels import Assigner, level_ranges
from worker.quantizer.search.ranking import Analysis, analyse

_CANDIDATES = ("A16W16", "A8W16", "A16W8", "A8W8")
# Copies grow with the square of the number of layers: so many samples times layers cost about two passes over 125.
_SAMPLES_TIMES_LAYERS = 112
_FEWEST_SAMPLES, _MOST_SAMPLES = 2, 16
# Samples that every model is run on: fewer than a ranking of a small network takes, more than that of a large one.
_VERIFIED_SAMPLES = 16
_BATCH = 8
_FLOAT = Level(activation="float32", weight="float32")


class SensitivityStep(Step[SensitivityAnalysis]):
    """Puts the ranking among the files of the job."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        """The same draft.

        Raises:
            InvalidConfigError: there is no such output.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        config, spec = toolkit.case.config, self.spec
        layers = find_layers(draft.graph, draft.plan)
        if not layers:
            return Change.nothing(NO_LINEAR_NODE())
        own = (config.activation.model_dump(mode="json"), config.weight.model_dump(mode="json"))
        levels = spec.levels or {word: Level.model_validate(level_document(word, *own)) for word in _CANDIDATES}
        analysis = analysis_of(
            draft, layers, levels, toolkit, samples=spec.samples, output=spec.output_index, verify=spec.verify
        )
        found = analyse_once(analysis)
        first = found.layers[0]
        summary = f"{len(layers)} layers ranked on {found.samples} samples; the most sensitive one is {first.node!r}"
        return Change(draft, (), summary, judged=False)


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
    return Analysis(
        draft, layers, levels, ranges, case, services, samples or enough, toolkit.first_sample, place, verify
    )


def analyse_once(analysis: Analysis) -> Sensitivity:
    """``analyse``, or what it found for another job, or attempt, on the same network, samples and levels.

    The ranking is put among the files of the job, unless there is one already.
    """
    services = analysis.services
    key = _key(analysis)
    found = services.checkpoint.find_as(key, Sensitivity.model_validate_json)
    if found is not None:
        services.run.log("sensitivity: taken over from an earlier job or attempt")
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
    case, services, first, count = analysis.case, analysis.services, analysis.first_sample, analysis.verify
    alone = [replace(layer, group=k) for k, layer in enumerate(analysis.layers)]
    levels = _FLOAT, analysis.levels[analysis.measured]
    assigner = Assigner(analysis.draft, alone, levels, analysis.ranges, case, services)
    number = {layer.node: layer.group for layer in alone}
    expected = list(
        case.expected_outputs(
            services.run, batch_size=_BATCH, first=first, last=first + _VERIFIED_SAMPLES, outputs=[found.output]
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
        "settings": {name: getattr(analysis, name) for name in ("samples", "first_sample", "output_index", "verify")},
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
