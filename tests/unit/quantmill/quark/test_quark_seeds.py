"""Every config of Quark's documentation, as its users write it but for the import, translated and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import quantmill.quark
from quantmill.quark import ModelQuantizer, QuantFormat, QuantType
from quantmill.quark.quantization.config import QConfig, get_default_config
from quantmill.quark.quantization.config.algorithm import AdaQuantConfig, AdaRoundConfig
from quantmill.quark.quantization.config.config import Config, QuantizationConfig
from quantmill.quark.quantization.config.custom_config import DEFAULT_ADAROUND_PARAMS
from quantmill.quark.quantization.config.spec import Int8Spec, QLayerConfig, UInt8Spec
from tests.unit.quantizer.precision.benches import chain_of_convolutions, samples
from tests.unit.quantizer.toolbox import run_onnx, sqnr_db

SAMPLES = 32
MIN_MSE: dict[str, Any] = {
    "quant_format": QuantFormat.QDQ,
    "calibrate_method": quantmill.quark.PowerOfTwoMethod.MinMSE,
    "activation_type": QuantType.QUInt8,
    "weight_type": QuantType.QInt8,
    "enable_npu_cnn": True,
}


class Reader(quantmill.quark.CalibrationDataReader):
    def __init__(self, batch: int = 1) -> None:
        self.batches = iter(np.split(samples(SAMPLES)["x"], SAMPLES // batch))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"x": batch}


def top1_acc(outputs: torch.Tensor) -> float:
    _, preds = torch.max(outputs, 1)
    labels = run_onnx(chain_of_convolutions(outlier=2), {"x": samples(SAMPLES)["x"]})["y"].argmax(axis=1)
    assert len(preds) == len(labels)
    return sum(int(pred == label) for pred, label in zip(preds, labels, strict=True)) / len(preds)


def legacy(**fields: Any) -> Config:
    return Config(global_quant_config=QuantizationConfig(**fields))


# name -> config, algorithm that has to have run
CONFIGS: dict[str, tuple[Any, str | None]] = {
    "XINT8": (Config(global_quant_config=get_default_config("XINT8")), None),
    "cross-layer equalization": (
        legacy(
            **MIN_MSE,
            include_cle=True,
            extra_options={
                "ActivationSymmetric": True,
                "ReplaceClip6Relu": True,
                "CLESteps": 1,
                "CLEScaleAppendBias": True,
            },
        ),
        "cross_layer_equalization",
    ),
    "mixed precision": (
        legacy(
            calibrate_method=quantmill.quark.CalibrationMethod.Percentile,
            quant_format=quantmill.quark.VitisQuantFormat.QDQ,
            activation_type=quantmill.quark.VitisQuantType.QInt16,
            weight_type=QuantType.QInt8,
            include_auto_mp=True,
            extra_options={
                "ActivationSymmetric": False,
                "WeightsSymmetric": True,
                "Int32Bias": False,
                "AutoMixprecision": {
                    "ActTargetQuantType": QuantType.QInt8,
                    "WeightTargetQuantType": QuantType.QInt8,
                    "OutputIndex": 0,
                    "Top1AccTarget": 0.1,
                    "EvaluateFunction": top1_acc,
                },
            },
        ),
        "mixed_precision",
    ),
    "fast finetune": (
        legacy(
            **MIN_MSE,
            include_fast_ft=True,
            extra_options={
                "ActivationSymmetric": True,
                "FastFinetune": {
                    "OptimAlgorithm": "adaround",
                    "OptimDevice": "cpu",
                    "BatchSize": 1,
                    "NumIterations": 1000,
                    "LearningRate": 0.1,
                },
            },
        ),
        "adaround",
    ),
    "SmoothQuant": (
        legacy(**MIN_MSE, include_sq=True, extra_options={"ActivationSymmetric": True, "SmoothAlpha": 0.5}),
        "smooth_quant",
    ),
    "INT8_CNN_ACCURATE": (
        legacy(
            calibrate_method=quantmill.quark.CalibrationMethod.Percentile,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            include_fast_ft=True,
            extra_options={"Percentile": 99.9999, "FastFinetune": DEFAULT_ADAROUND_PARAMS},
        ),
        "adaround",
    ),
    "AdaRoundConfig": (
        QConfig(
            global_config=QLayerConfig(activation=UInt8Spec(), weight=Int8Spec()),
            algo_config=[AdaRoundConfig(batch_size=1, num_iterations=1000, learning_rate=0.1)],
        ),
        "adaround",
    ),
    "AdaQuantConfig": (
        QConfig(
            global_config=QLayerConfig(activation=UInt8Spec(), weight=Int8Spec()),
            algo_config=[AdaQuantConfig(num_iterations=4, data_size=4)],
        ),
        "adaquant",
    ),
}


COSTLY = ("INT8_CNN_ACCURATE", "AdaRoundConfig")


@pytest.fixture(scope="module")
def float_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("float") / "float.onnx"
    onnx.save(chain_of_convolutions(outlier=2), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in COSTLY else name for name in CONFIGS]
)
def test_the_configs_of_the_documentation_run(name: str, float_model: Path, tmp_path: Path) -> None:
    config, method = CONFIGS[name]
    quantizer = ModelQuantizer(config, threads=1)
    assert quantizer.quantize_model(str(float_model), str(tmp_path / "q.onnx"), Reader()) is None
    report = quantizer.report
    assert report is not None
    assert [entry.method for entry in report.algorithms] == [method] * (method is not None)
    x = samples(SAMPLES)["x"]
    got = run_onnx(onnx.load(tmp_path / "q.onnx"), {"x": x})["y"]
    assert sqnr_db(run_onnx(onnx.load(float_model), {"x": x})["y"], got) > 10.0
    assert sum(layer.reason is None for layer in report.layers) >= 5


def test_mixed_precision_calls_the_function_and_keeps_to_its_target(float_model: Path) -> None:
    quantizer = ModelQuantizer(CONFIGS["mixed precision"][0], threads=1)
    model = quantizer.quantize_model(str(float_model), None, Reader(batch=8))
    assert quantizer.report is not None and model is not None
    (metric,) = quantizer.report.metrics
    assert (metric.name, metric.float_) == ("top1_acc", 1.0)
    assert metric.quantized is not None and metric.quantized >= 0.9
    got = run_onnx(model, {"x": samples(SAMPLES)["x"]})["y"]
    assert top1_acc(torch.from_numpy(got)) == pytest.approx(metric.quantized)


def test_the_numbers_of_the_documentation_leave_the_fast_solver(float_model: Path) -> None:
    for name in ("fast finetune", "INT8_CNN_ACCURATE", "AdaRoundConfig"):
        (step,) = ModelQuantizer(CONFIGS[name][0]).recipe.algorithms
        assert step.solver == "moments", name
    own = AdaRoundConfig(num_iterations=40, data_size=8)
    layer = QLayerConfig(activation=UInt8Spec(), weight=Int8Spec())
    quantizer = ModelQuantizer(QConfig(layer, algo_config=[own]), threads=1)
    assert quantizer.recipe.algorithms[0].solver == "gradient"
    assert any("num_iterations 40" in note for note in quantizer.notes)
