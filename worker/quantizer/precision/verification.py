"""Checks the head of a ranking by models in which one layer alone is quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from service.contracts.algorithms.precision import Level
from service.contracts.sensitivity import LayerSensitivity, Sensitivity
from worker.quantizer.context import Context
from worker.quantizer.data import choose_batch_size
from worker.quantizer.precision.assignment import Assigner, Ranges
from worker.quantizer.precision.layers import Layer
from worker.quantizer.refine.draft import Draft
from worker.quantizer.runtime import Session, is_large

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
    context: Context,
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
        context: of the run.
        count: layers to check.
        first_sample: number of the first sample to run.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    alone = [replace(layer, group=k) for k, layer in enumerate(layers)]
    assigner = Assigner(draft, alone, (_FLOAT, level), ranges, context)
    number = {layer.node: layer.group for layer in alone}
    last = min(first_sample + SAMPLES, context.calibration_samples)
    size = choose_batch_size(context.inputs, context.calibration, _BATCH)
    name = found.output
    batches = list(context.calibration.batches(context.inputs, size, limit=last, start=first_sample))
    expected = [context.float_session.run(batch.feeds, [name], start=batch.start)[0] for batch in batches]
    signal = sum(_power(batch.cut(values)) for batch, values in zip(batches, expected, strict=True))

    def measured(row: LayerSensitivity) -> LayerSensitivity:
        context.run.check()
        model = assigner.draft_of({number[row.node]: 1}).emitted()
        session = Session(model, threads=context.threads, what="quantized model", optimized=not is_large(model))
        noise = 0.0
        for batch, values in zip(batches, expected, strict=True):
            got = session.run(batch.feeds, [name])[0]
            noise += _power(batch.cut(got).astype(np.float64) - batch.cut(values))
        context.run.progress("sensitivity", row.rank, min(count, len(found.layers)), "layers verified")
        return row.model_copy(update={"verified": noise / signal if signal else noise})

    head = [measured(row) for row in found.layers[:count]]
    head.sort(key=lambda row: -(row.verified or 0.0))
    rows = [row.model_copy(update={"rank": k + 1}) for k, row in enumerate([*head, *found.layers[count:]])]
    return found.model_copy(update={"layers": tuple(rows)})


def _power(values: np.ndarray) -> float:
    flat = values.astype(np.float64).reshape(-1)
    return float(flat @ flat)
