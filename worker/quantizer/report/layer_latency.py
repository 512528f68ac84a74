"""Which share of the quantized model's time each row of the report takes, by onnxruntime's profile."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from service.contracts.report import LayerFigures
from worker.quantizer.data import choose_batch_size
from worker.quantizer.evaluation.nhwc import NhwcSession
from worker.quantizer.graph import sizes
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import QuantizedDraft
from worker.quantizer.report.emitted_rows import EmittedRows
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.profile import read_profile
from worker.quantizer.runtime.session import is_large

# One of them warms up. A profile has a line per kernel and run, those of a Loop's body times its rounds.
_RUNS, _MOST_SECONDS = 6, 2.0


def with_latency(
    layers: Sequence[LayerFigures], done: QuantizedDraft, case: Case, services: Services
) -> tuple[tuple[LayerFigures, ...], str | None]:
    """The rows with their share of the time of the model as it was written, and why they have none, else None.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    if is_large(done.emitted.model) or done.content.size_bytes > sizes.WEIGHT_BYTES or done.content.path is not None:
        return tuple(layers), "the latency of single layers was not measured: the model is too large to profile"
    batch = next(
        iter(case.measured_on.batches(case.inputs, choose_batch_size(case.inputs, case.measured_on, 1), limit=1))
    )
    nhwc = () if done.plan.is_empty else done.prepared.nhwc_inputs
    with tempfile.TemporaryDirectory(prefix="quantmill-profile-") as folder:
        session = NhwcSession(
            done.content.runnable,
            nhwc,
            threads=services.threads,
            what="quantized model",
            profile=Path(folder, "profile"),
        )
        begun = time.perf_counter()
        for k in range(_RUNS):
            services.run.check()
            session.run(batch.feeds)
            if k and time.perf_counter() - begun > _MOST_SECONDS:
                break
        kernels = read_profile(session.end_profile())
    shares = EmittedRows.of(layers, done.emitted.model).latency_percents(kernels)
    return tuple(row.model_copy(update={"latency_percent": shares.get(row.name)}) for row in layers), None
