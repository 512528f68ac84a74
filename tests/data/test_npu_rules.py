"""XINT8 on real networks: the emitted models keep every rule of AMD's NPU, and the accuracy."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.report import Report
from service.contracts.runner import DatasetSource
from tests.data.test_accuracy import CASES, FEWER, first, source
from tests.data.test_zoo import QUANTIZED, assert_runs_like
from tests.data.zoo import feeds_of, model_path, whole_inputs
from tests.support.data import DATA_MARKS, required_data_dir
from tests.support.npu_checker import check_npu_model
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

pytestmark = DATA_MARKS


def xint8(**settings: object) -> QuantizationConfig:
    return parse_config(
        {
            "target": "amd_npu_cnn",
            "activation": {
                "dtype": "int8",
                "symmetric": True,
                "scale": "power_of_two",
                "calibration": {"method": "mse"},
            },
            "weight": {"granularity": "per_tensor", "scale": "power_of_two", "calibration": {"method": "mse"}},
            "bias": {"dtype": "int8"},
            "evaluation": {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0},
            **settings,
        }
    )


def left(report: Report) -> tuple[str, ...]:
    return tuple(layer.name for layer in report.layers if layer.reason is not None)


@pytest.mark.parametrize("name", QUANTIZED)
def test_models_of_every_kind_keep_the_rules(name: str, tmp_path: Path) -> None:
    feeds = feeds_of(name, 3)
    data = whole_inputs(feeds[:2], tmp_path / "data.npz")
    result = quantize(model_path(name), xint8(), DatasetSource(path=str(data)), run=SilentRun(), threads=1)
    assert_runs_like(name, result, feeds[2:])
    assert not check_npu_model(onnx.load_from_string(result.model), excluded=left(result.report))
    assert any(layer.reason is None for layer in result.report.layers)
    assert not any("could not be kept" in note for note in result.report.notes)


# float top-1 less XINT8 top-1, in points
@pytest.mark.parametrize(("name", "most"), [("resnet20", 0.8), ("mnist", 0.5), ("kws_dscnn", 1.5)])
def test_accuracy_is_kept(name: str, most: float, tmp_path: Path) -> None:
    case, folder = CASES[name], required_data_dir()
    sources = source(folder, case.calibration), first(FEWER, case.evaluation, tmp_path)
    result = quantize(folder / case.model, xint8(calibration_samples=250), *sources, run=SilentRun(), threads=1)
    assert not check_npu_model(onnx.load_from_string(result.model), excluded=left(result.report))
    report = result.report
    assert report.float_.metrics["top1"] - report.quantized.metrics["top1"] <= most
