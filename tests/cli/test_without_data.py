"""Recipes that take no ranges need no calibration data, wherever they run."""

from __future__ import annotations

import pytest

from service.contracts.config import QuantizationConfig
from service.contracts.data_checks import check_data_given
from service.contracts.errors import CalibrationMissingError
from service.contracts.presets import PRESETS
from service.contracts.report import Report

RANGELESS = sorted(
    name
    for name, preset in PRESETS.items()
    if preset.settings.get("mode", "static") != "static" and not preset.settings.get("algorithms")
)


def test_there_are_such_presets() -> None:
    assert {"int8_dynamic", "int4_weights", "float16_model"} <= set(RANGELESS)


@pytest.mark.parametrize("name", PRESETS)
def test_only_recipes_that_take_ranges_or_learn_ask_for_data(name: str) -> None:
    config = QuantizationConfig(preset=name)
    if name in RANGELESS or config.random_calibration is not None:
        check_data_given(config, calibration=False, evaluation=False)
    else:
        with pytest.raises(CalibrationMissingError):
            check_data_given(config, calibration=False, evaluation=False)


@pytest.mark.parametrize("name", ["int8_dynamic", "float16_model"])
def test_the_command_needs_none(quantmill, tiny, tmp_path, name):
    done = quantmill("quantize", tiny.model, "--preset", name, "--output", "q.onnx", "--report", "r.json")
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert report.fidelity.source == "random"
    assert report.manifest.calibration_sha256 is None
    assert "random" in report.summary
    assert any("random" in note for note in report.notes)


def test_evaluation_data_alone_is_what_is_measured_on(quantmill, tiny, tmp_path):
    done = quantmill(
        "quantize", tiny.model, "--preset", "int8_dynamic", "--evaluation", tiny.evaluation, "--output", "q.onnx",
        "--report", "r.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert report.fidelity.source == "evaluation"
    assert "top1" in report.quantized.metrics


def test_a_static_recipe_is_told_what_is_missing(quantmill, tiny):
    done = quantmill("quantize", tiny.model, "--preset", "int8", "--output", "q.onnx")
    assert done.returncode == 1
    assert "error[calibration-missing]" in done.stderr
