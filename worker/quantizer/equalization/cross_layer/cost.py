"""What it costs the float network to lose its limits."""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.data import choose_batch_size
from worker.quantizer.evaluation.metrics import Distance, comparable
from worker.quantizer.refine.step import Workshop
from worker.quantizer.runtime import Session, to_bytes

_SAMPLES, _BATCH = 64, 8


def cost_in_words(model: ir.Model, workshop: Workshop) -> str:
    """How far a changed float model is from the uploaded one, over up to 64 samples that steps may learn from.

    Args:
        model: the float model as changed.
        workshop: whose calibration data count; their labels, where there are any, are judged by too.
    """
    context = workshop.context
    session = Session(to_bytes(model), threads=context.threads, what="equalized float model")
    names = context.float_session.output_names
    distances: dict[str, Distance] = {}
    metrics = context.metrics
    measurable = metrics.fed_by(context.calibration)
    before, after = metrics.start(), metrics.start()
    first = workshop.first_sample
    batches = context.calibration.batches(
        context.inputs,
        choose_batch_size(context.inputs, context.calibration, _BATCH),
        start=first,
        limit=min(first + _SAMPLES, context.calibration_samples),
        arrays=metrics.arrays if measurable else (),
    )
    for batch in batches:
        context.run.check()
        expected = dict(zip(names, context.float_session.run(batch.feeds, names, start=batch.start), strict=True))
        got = dict(zip(names, session.run(batch.feeds, names), strict=True))
        for name, array in expected.items():
            if comparable(array, got[name]):
                distances.setdefault(name, Distance()).update(array, got[name])
        if measurable:
            before.update(batch, expected, expected)
            after.update(batch, got, expected)
    figures = [distance.sqnr_db for distance in distances.values() if distance.sqnr_db is not None]
    words = f"leaves the float network {min(figures):.1f} dB" if figures else "changes the float network"
    one, other = (found.values.get(metrics.primary) for found in (before, after))
    if one is not None and other is not None:
        words += f", {metrics.primary} {one:.2f} -> {other:.2f}"
    return words
