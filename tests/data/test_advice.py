"""Whose depthwise network is lost under AMD Quark's NPU recipe is sent to a config that keeps to the NPU's rules
and gives the accuracy back."""

from __future__ import annotations

import json

import pytest

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.patch import advised_config
from service.contracts.report import Report
from service.quark import read_config
from tests.data.test_accuracy import CASES, source
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

# Two quantizations of a MobileNet, one of them with AdaRound.
pytestmark = [*DATA_MARKS, pytest.mark.timeout(1800)]

MOBILENET = CASES["mobilenet_v1"]
# XINT8 with cross-layer equalization, as Quark's documentation has it.
QUARK = {
    "format": "quark",
    "config": {
        "global_quant_config": {
            "quant_format": "QDQ",
            "calibrate_method": "MinMSE",
            "activation_type": "QUInt8",
            "weight_type": "QInt8",
            "enable_npu_cnn": True,
            "include_cle": True,
            "extra_options": {"ActivationSymmetric": True},
        }
    },
}
QUICK = {"layer_samples": 1, "latency_runs": 1, "advice_seconds": 0.0}


def quantized(config: QuantizationConfig) -> Report:
    folder = required_data_dir()
    calibration, evaluation = source(folder, MOBILENET.calibration), source(folder, MOBILENET.evaluation)
    return quantize(folder / MOBILENET.model, config, calibration, evaluation, run=SilentRun(), threads=2).report


def test_the_first_advice_to_an_npu_user_applied_as_it_stands_gives_84() -> None:
    config = parse_config({**read_config(QUARK).model_dump(mode="json"), "evaluation": QUICK})
    before = quantized(config)
    assert before.quantized.metrics["top1"] < 60.0
    first = before.advice[0]
    assert first.status == "untried" and first.config
    # what a user does with the file of the report
    report = Report.model_validate(json.loads(json.dumps(before.to_json_dict())))
    advised = advised_config(report.manifest.config, report.advice[0].config)
    assert (advised.target, advised.target_options) == ("amd_npu_cnn", config.target_options)
    assert (advised.bias, advised.weight, advised.activation) == (config.bias, config.weight, config.activation)
    after = quantized(advised)
    assert after.quantized.metrics["top1"] >= 84.0
    assert after.advice == ()
