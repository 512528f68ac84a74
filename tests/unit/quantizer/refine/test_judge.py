"""The judge's figures are those of the samples that it was given."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.quantizer.precision.benches import chain_of_convolutions, samples, toolkit_for
from tests.unit.quantizer.toolbox import run_onnx, sqnr_db
from worker.quantizer.evaluation.compare import layer_distances
from worker.quantizer.refine.judge import Judge

FIRST = 12


def outputs(model: bytes, x: np.ndarray, batch: int) -> np.ndarray:
    """Of a model that takes ``batch`` samples at a time, the last batch filled up by its last sample."""
    rest = -len(x) % batch
    padded = np.concatenate([x, np.repeat(x[-1:], rest, axis=0)])
    found = [run_onnx(model, {"x": padded[k : k + batch]}, optimized=False)["y"] for k in range(0, len(padded), batch)]
    return np.concatenate(found)[: len(x)]


@pytest.mark.parametrize("batch", ["N", "8"])
def test_samples_that_fill_up_the_last_batch_do_not_count(batch: str) -> None:
    model = chain_of_convolutions(2, batch=batch)
    draft, toolkit = toolkit_for(model)
    score = Judge(toolkit.case, toolkit.services, FIRST).score(draft)
    x = samples()["x"][:FIRST]
    expected, got = (outputs(data, x, 8) for data in (model.SerializeToString(), draft.emitted_bytes()))
    assert score.sqnr_db == pytest.approx(sqnr_db(expected, got), abs=2e-3)


def test_nor_do_they_in_the_distance_of_a_layer() -> None:
    model = chain_of_convolutions(2, batch="8")
    draft, toolkit = toolkit_for(model)
    case, services = toolkit.case, toolkit.services
    sessions = case.float_session, draft.session(1)
    found = layer_distances(
        *sessions, {"dense": ("y", "y")}, case.calibration, case.inputs, limit=FIRST, run=services.run
    )
    x = samples()["x"][:FIRST]
    expected, got = (outputs(data, x, 8) for data in (model.SerializeToString(), draft.emitted_bytes()))
    assert found["dense"] == pytest.approx(sqnr_db(expected, got), abs=2e-3)
