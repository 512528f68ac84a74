"""Models of every kind and origin: each one is quantized to a model that runs, or refused in words for users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import QuantmillError
from service.contracts.runner import DatasetSource
from tests.data.zoo import Feeds, feeds_of, model_path, mostly_long, reference, session_of, whole_inputs
from tests.support.data import DATA_MARKS
from tests.support.npu_checker import check_npu_model
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun

pytestmark = DATA_MARKS

# name: least SQNR of the outputs in dB (None where no float output leaves the model), or the code of the refusal
TABLE: dict[str, float | str | None] = {
    "derived_resnet20_loop": 30.0, "derived_resnet32_external": 25.0, "derived_resnet32_fp16": 25.0,
    "derived_resnet32_ort_qdq": "already-quantized", "dtln_model_1": 35.0, "fastestdet": 12.0,
    "gtcrn_stream_simple": 5.0, "keypoint_classifier": None, "mlperf_ad01_autoencoder": 30.0,
    "mobilenet_v2_0.35_128_tf2onnx": 20.0, "oww_embedding_model": 20.0, "point_history_lstm": None,
    "ppocr_mobile_v2_cls": 30.0, "silero_vad_16k_op15": 25.0, "sklearn_randomforest": "unsupported-model",
    "styletransfer_mosaic_nc8_128": 15.0, "superres_prepost_op18": "unsupported-model", "yamnet_256_64x96": 25.0,
    "yunet_s_320": 8.0,
}  # fmt: skip
# Every model is quantized by these as well, on two samples: enough to see that what comes out runs.
RECIPES: dict[str, dict[str, Any]] = {
    "a16w8": {"preset": "a16w8"},
    "dynamic": {"mode": "dynamic"},
    "weights_int4": {"mode": "weights_only", "weight": {"dtype": "int4", "granularity": "per_block", "block_size": 32}},
}
# Words that a refusal must hold: what is wrong, and where.
REFUSALS = {
    "derived_resnet32_ort_qdq": ["is a DequantizeLinear", "already quantized"],
    "sklearn_randomforest": ["'output_probability'", "map"],
    "superres_prepost_op18": ["'pre_process_0'", "DecodeImage", "com.microsoft.extensions"],
}


def quantize_by(name: str, data: Path, **recipe: Any) -> Result:
    settings = parse_config(
        {"evaluation": {"latency_runs": 1, "layer_samples": 1 if recipe else 2, "advice_seconds": 0}, **recipe}
    )
    return quantize(model_path(name), settings, DatasetSource(path=str(data)), run=SilentRun(), threads=1)


QUANTIZED = [name for name, wanted in TABLE.items() if not isinstance(wanted, str)]


@pytest.mark.parametrize("name", mostly_long(QUANTIZED, "mlperf_ad01_autoencoder", "point_history_lstm"))
def test_models_are_quantized_and_run(name: str, tmp_path: Path) -> None:
    feeds = feeds_of(name, 6)
    result = quantize_by(name, whole_inputs(feeds[:4], tmp_path / "data.npz"))
    report = result.report
    assert any(layer.reason is None for layer in report.layers)
    assert all(layer.reason or layer.sqnr_db is not None for layer in report.layers)
    least = TABLE[name]
    if least is None:
        assert report.fidelity.top1_agreement == 100.0
    else:
        assert report.fidelity.sqnr_db >= least
    assert_runs_like(name, result, feeds[4:])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", mostly_long(QUANTIZED, "keypoint_classifier"))
def test_models_are_quantized_by_every_recipe(name: str, recipe: str, tmp_path: Path) -> None:
    feeds = feeds_of(name, 3)
    result = quantize_by(name, whole_inputs(feeds[:2], tmp_path / "data.npz"), **RECIPES[recipe], calibration_samples=2)
    assert any(layer.reason is None for layer in result.report.layers)
    assert_runs_like(name, result, feeds[2:])


def assert_runs_like(name: str, result: Result, feeds: list[Feeds]) -> None:
    """The quantized model has the interface of the uploaded one, and finite results of the same shapes."""
    session, uploaded = session_of(result.model), reference(name)
    assert [(v.name, v.type) for v in session.get_inputs()] == [(v.name, v.type) for v in uploaded.get_inputs()]
    assert [(v.name, v.type) for v in session.get_outputs()] == [(v.name, v.type) for v in uploaded.get_outputs()]
    for sample in feeds:
        for expected, got in zip(uploaded.run(None, sample), session.run(None, sample), strict=True):
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            if got.dtype.kind == "f":
                assert np.isfinite(got).all()


@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_models_are_refused_in_words(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", input=np.zeros((2, 3, 32, 32), np.float32))
    with pytest.raises(QuantmillError) as caught:
        quantize_by(name, tmp_path / "data.npz")
    error = caught.value
    assert error.code == TABLE[name]
    for words in REFUSALS[name]:
        assert words in error.detail
    assert error.hint is not None
    assert error.hint.startswith(("Export", "Use"))
    assert "/" not in error.detail  # no paths of this machine


def xint8() -> QuantizationConfig:
    mse = {"scale": "power_of_two", "calibration": {"method": "mse"}}
    return parse_config(
        {
            "target": "amd_npu_cnn",
            "activation": {"dtype": "int8", "symmetric": True, **mse},
            "weight": {"granularity": "per_tensor", **mse},
            "bias": {"dtype": "int8"},
            "evaluation": {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0},
        }
    )


@pytest.mark.parametrize("name", mostly_long(QUANTIZED, "mlperf_ad01_autoencoder"))
def test_models_of_every_kind_keep_the_rules(name: str, tmp_path: Path) -> None:
    feeds = feeds_of(name, 3)
    data = whole_inputs(feeds[:2], tmp_path / "data.npz")
    result = quantize(model_path(name), xint8(), DatasetSource(path=str(data)), run=SilentRun(), threads=1)
    assert_runs_like(name, result, feeds[2:])
    left = tuple(layer.name for layer in result.report.layers if layer.reason is not None)
    assert not check_npu_model(onnx.load_from_string(result.model), excluded=left)
    assert any(layer.reason is None for layer in result.report.layers)
    assert not any("could not be kept" in note for note in result.report.notes)
