"""What it costs the float network to lose its limits."""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.evaluation.metrics import Distances
from worker.quantizer.evaluation.side_by_side import side_by_side
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.refine.step import Toolkit
from worker.quantizer.runtime.session import Session

_SAMPLES, _BATCH = 64, 8


def cost_in_words(model: ir.Model, toolkit: Toolkit) -> str:
    """How far a changed float model is from the uploaded one, over up to 64 samples that steps may learn from.

    Args:
        model: the float model as changed.
        toolkit: whose calibration data count; their labels, where there are any, are judged by too.
    """
    case, services = toolkit.case, toolkit.services
    session = Session(to_bytes(model), threads=services.threads, what="equalized float model")
    metrics, first = case.metrics, toolkit.first_sample
    measurable = metrics.fed_by(case.calibration) and metrics.judges_parts
    distances, before, after = Distances(), metrics.start(part=True), metrics.start(part=True)
    expected = case.expected_outputs(
        services.run, batch_size=_BATCH, first=first, last=first + _SAMPLES, with_arrays=measurable
    )
    for twins in side_by_side(session, expected, services.run):
        distances.update(twins.pairs())
        if measurable:
            before.update(twins.batch, twins.expected, twins.expected)
            after.update(twins.batch, twins.got, twins.expected)
    worst = distances.worst_db
    words = "changes the float network" if worst is None else f"leaves the float network {worst:.1f} dB"
    one, other = (found.values.get(metrics.primary) for found in (before, after))
    if one is not None and other is not None:
        words += f", {metrics.primary} {one:.2f} -> {other:.2f}"
    return words
