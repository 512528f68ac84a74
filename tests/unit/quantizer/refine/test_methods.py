"""Calibration method auto: the candidate whose ranges serve the network's outputs best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.contracts.calibration import AutoCalibration, MinMaxCalibration, PercentileCalibration
from service.contracts.errors import QuantmillError
from tests.unit.quantizer.precision.benches import chain_of_convolutions, samples
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file
from worker.quantizer.pipeline import Result

CUT, WHOLE = {"method": "percentile", "percentile": 90.0}, {"method": "minmax"}
MATMUL = make_model("(float[N, 8] x) => (float[N, 5] y) { y = MatMul (x, w) }", {"w": normal(8, 5, seed=1)})


def quantized(tmp_path: Path, model: Any, arrays: dict[str, np.ndarray], activation: dict[str, Any]) -> Result:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    settings = config(preset="plain", activation=activation)
    return quantize_file(folder, model, arrays, settings)


def test_a_candidate_that_cuts_off_what_counts_is_not_chosen(tmp_path: Path) -> None:
    arrays = {"x": normal(48, 8, seed=2)}
    auto = {"calibration": {"method": "auto", "candidates": [CUT, WHOLE]}}
    result = quantized(tmp_path, MATMUL, arrays, auto)
    chosen = result.report.manifest.config.activation.calibration
    assert chosen == MinMaxCalibration()
    (note,) = [note for note in result.report.notes if note.startswith("calibration auto")]
    assert "minmax was chosen" in note and "percentile 90" in note
    by_name = quantized(tmp_path, MATMUL, arrays, {"calibration": WHOLE})
    other = quantized(tmp_path, MATMUL, arrays, {"calibration": CUT})
    assert by_name.report.fidelity.sqnr_db == result.report.fidelity.sqnr_db > other.report.fidelity.sqnr_db + 3


def test_outliers_that_nobody_needs_are_cut(tmp_path: Path) -> None:
    x = normal(48, 8, seed=2)
    x[0, 3] = 500.0  # of 48 samples, and the weight behind it is next to 0
    weight = normal(8, 5, seed=1)
    weight[3] = 1e-6
    model = make_model("(float[N, 8] x) => (float[N, 5] y) { y = MatMul (x, w) }", {"w": weight})
    narrow = {"method": "percentile", "percentile": 99.0}
    result = quantized(tmp_path, model, {"x": x}, {"calibration": {"method": "auto", "candidates": [WHOLE, narrow]}})
    assert result.report.manifest.config.activation.calibration == PercentileCalibration(percentile=99.0)


def test_the_bytes_are_those_of_the_chosen_method(tmp_path: Path) -> None:
    model, arrays = chain_of_convolutions(3), {"x": samples()["x"]}
    result = quantized(tmp_path, model, arrays, {"calibration": {"method": "auto"}})
    chosen = result.report.manifest.config.activation.calibration
    assert chosen in AutoCalibration().candidates
    named = quantized(tmp_path, model, arrays, {"calibration": chosen.model_dump(mode="json")})
    assert named.model == result.model


def test_overrides_are_settled_too(tmp_path: Path) -> None:
    auto = {"method": "auto", "candidates": [CUT, WHOLE]}
    overrides = [{"match": {"node": "conv1"}, "activation": {"dtype": "int8", "symmetric": True, "calibration": auto}}]
    folder = tmp_path / "one"
    folder.mkdir()
    settings = config(preset="plain", overrides=overrides)
    result = quantize_file(folder, chain_of_convolutions(3), {"x": samples()["x"]}, settings)
    (override,) = result.report.manifest.config.overrides
    assert override.activation is not None and override.activation.calibration == MinMaxCalibration()
    assert result.report.manifest.config.activation.calibration == MinMaxCalibration()


def test_equal_candidates_leave_the_first(tmp_path: Path) -> None:
    all_of_it = {"method": "percentile", "percentile": 100.0}
    auto = {"calibration": {"method": "auto", "candidates": [all_of_it, WHOLE]}}
    result = quantized(tmp_path, MATMUL, {"x": normal(48, 8, seed=2)}, auto)
    assert result.report.manifest.config.activation.calibration == PercentileCalibration(percentile=100.0)


def test_candidates_are_methods_and_there_is_one_at_least() -> None:
    for candidates in ([], [{"method": "auto"}], [{"method": "minmax"}] * 9):
        with pytest.raises(QuantmillError):
            config(preset="plain", activation={"calibration": {"method": "auto", "candidates": candidates}})


def test_preset_of_the_npu_reaches_what_its_best_candidate_does(tmp_path: Path) -> None:
    model, x = chain_of_convolutions(3), samples()["x"]
    figures = {}
    for method in ("auto", "minmax", "mse"):
        folder = tmp_path / method
        folder.mkdir()
        settings = config(preset="npu_int8", activation={"calibration": {"method": method}})
        result = quantize_file(folder, model, {"x": x}, settings)
        assert any(note.startswith("calibration auto") for note in result.report.notes) == (method == "auto")
        figures[method] = result.report.fidelity.sqnr_db or 0.0
    assert figures["auto"] > min(figures["minmax"], figures["mse"]) - 0.5
