"""Pictures that are scaled wrongly are named, and so is what would fit."""

from __future__ import annotations

import numpy as np
import pytest

from service.contracts.config import parse_config
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.report.findings import Finding
from service.contracts.runner import DatasetSource
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

pytestmark = DATA_MARKS

HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


class Log(SilentRun):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def log(self, message: str, level: str = "info") -> None:
        if level == "warning":
            self.warnings.append(message)


def findings(tmp_path_factory: pytest.TempPathFactory, scale: float) -> tuple[tuple[Finding, ...], str, list[str]]:
    folder, run = tmp_path_factory.mktemp("pictures"), Log()
    spec = PreprocessingSpec(inputs={"input": InputSpec(array="images", layout="NHWC", scale=scale, **HALF)})
    for name, count in (("calibration", 24), ("evaluation", 64)):
        with np.load(required_data_dir() / "imagenet" / f"{name}.npz") as arrays:
            np.savez(folder / name, images=arrays["images"][:count], labels=arrays["labels"][:count])
    report = quantize(
        required_data_dir() / "imagenet" / "mobilenet_v2_1.0_224.onnx",
        parse_config(
            {"preset": "int8", "evaluation": {"latency_runs": 1, "layer_samples": 1, "gate": {"max_drop": 1}}}
        ),
        *(
            DatasetSource(path=str(folder / f"{name}.npz"), preprocessing=spec)
            for name in ("calibration", "evaluation")
        ),
        run=run,
        threads=1,
    ).report
    return report.findings, report.verdict, run.warnings


def test_pictures_255_times_too_bright_are_no_pass(tmp_path_factory: pytest.TempPathFactory) -> None:
    found, _, warnings = findings(tmp_path_factory, 1.0)
    assert found[0].code == "float-metric-at-chance"
    assert found[0].undermines_verdict
    fits = next(finding for finding in found if finding.code == "input-fits-better-otherwise")
    assert '"scale": 0.0039' in str(fits.hint)
    assert '"mean": [0.5]' in str(fits.hint)
    assert any(found[0].message in warning for warning in warnings)


def test_right_pictures_are_silent(tmp_path_factory: pytest.TempPathFactory) -> None:
    found, verdict, _ = findings(tmp_path_factory, 1 / 255)
    assert found == ()
    assert verdict in ("pass", "fail")
