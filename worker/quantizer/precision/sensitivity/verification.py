"""Checks the head of a ranking by models in which one layer alone is quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.contracts.algorithms.precision import Level
from service.contracts.sensitivity import LayerSensitivity, Sensitivity
from worker.quantizer.evaluation.metrics import Distance
from worker.quantizer.evaluation.side_by_side import side_by_side
from worker.quantizer.precision.layers import Layer
from worker.quantizer.precision.mixed.assignment import Assigner, Ranges
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Draft
from worker.quantizer.run.services import Services

# Samples that every model is run on: fewer than a ranking of a small network takes, more than that of a large one.
SAMPLES = 16
_BATCH = 8
_FLOAT = Level(activation="float32", weight="float32")


def verified(
    found: Sensitivity,
    draft: Draft,
    layers: Sequence[Layer],
    level: Level,
    ranges: Ranges,
    case: Case,
    services: Services,
    *,
    count: int,
    first_sample: int = 0,
) -> Sensitivity:
    """``found`` with the first ``count`` layers measured on emitted models, and ordered by what was measured.

    Args:
        found: the ranking.
        draft: that it was made of.
        layers: of the draft.
        level: that was propagated.
        ranges: calibrated, by source tensor and spec.
        case: what is quantized.
        services: of the run.
        count: layers to check.
        first_sample: number of the first sample to run.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    alone = [replace(layer, group=k) for k, layer in enumerate(layers)]
    assigner = Assigner(draft, alone, (_FLOAT, level), ranges, case, services)
    number = {layer.node: layer.group for layer in alone}
    expected = list(
        case.expected_outputs(
            services.run, batch_size=_BATCH, first=first_sample, last=first_sample + SAMPLES, outputs=[found.output]
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
