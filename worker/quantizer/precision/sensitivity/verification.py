"""Checks the head of a ranking by models in which one layer alone is quantized."""

from __future__ import annotations

from dataclasses import replace

from service.contracts.algorithms.precision import Level
from service.contracts.sensitivity import LayerSensitivity, Sensitivity
from worker.quantizer.evaluation.metrics import Distance
from worker.quantizer.evaluation.side_by_side import side_by_side
from worker.quantizer.precision.mixed.assignment import Assigner
from worker.quantizer.precision.sensitivity.ranking import Analysis

# Samples that every model is run on: fewer than a ranking of a small network takes, more than that of a large one.
SAMPLES = 16
_BATCH = 8
_FLOAT = Level(activation="float32", weight="float32")


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
            services.run, batch_size=_BATCH, first=first, last=first + SAMPLES, outputs=[found.output]
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
