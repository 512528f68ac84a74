"""SmoothQuant and bias correction on models of every origin: with sub-graphs, with state, with matrices alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.test_zoo import assert_runs_like, quantize_by
from tests.data.zoo import feeds_of, whole_inputs
from tests.support.data import DATA_MARKS

pytestmark = DATA_MARKS
ALGORITHMS = [
    {"method": "smooth_quant", "accept": "always"},
    {"method": "bias_correction", "mode": "full", "accept": "always"},
]
# name: by how many dB SQNR rises at least, measured on the four samples that the steps learn from
MODELS = {
    "derived_resnet20_loop": 1.0,
    "mlperf_ad01_autoencoder": 3.0,
    "silero_vad_16k_op15": 4.0,
    "gtcrn_stream_simple": 0.0,
    "dtln_model_1": 2.0,
}


@pytest.mark.parametrize("name", MODELS)
def test_both_steps_leave_a_model_that_runs_and_is_better(name: str, tmp_path: Path) -> None:
    feeds = feeds_of(name, 6)
    path = whole_inputs(feeds[:4], tmp_path / "data.npz")
    plain = quantize_by(name, path, preset="plain").report.fidelity.sqnr_db
    result = quantize_by(name, path, preset="plain", algorithms=ALGORITHMS)
    assert len(result.report.algorithms) == 2
    assert plain is not None
    assert result.report.fidelity.sqnr_db > plain + MODELS[name]
    assert_runs_like(name, result, feeds[4:])
