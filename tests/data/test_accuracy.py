"""What the default recipe costs on real networks and real data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.cases import case_of, source
from service.contracts.config import parse_config
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

pytestmark = [*DATA_MARKS, pytest.mark.long]

# model: samples to evaluate on, top-1 of the float model, points that may be lost
ACCURACY = {
    "MobileNetV1 0.75": (438, 86.07, 86.07 - 84.3), "ResNet20": (1500, 80.67, 0.3), "KWS DS-CNN": (4000, 91.52, 0.5),
    "MNIST CNN": (3000, 98.1, 0.2),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCURACY)
def test_the_default_recipe_keeps_the_accuracy(name: str, tmp_path: Path) -> None:
    case, folder = case_of(name), required_data_dir()
    samples, float_top1, max_drop = ACCURACY[name]
    with np.load(folder / case.evaluation[0]) as arrays:
        first = {key: array[:samples] for key, array in arrays.items() if array.ndim}
    np.savez(tmp_path / "first.npz", **first)
    sources = source(folder, case.calibration), source(tmp_path, ("first.npz", case.evaluation[1]))
    quick = {"latency_runs": 1, "layer_samples": 2, "advice_seconds": 0}
    settings = parse_config({"preset": "int8", "evaluation": quick})
    report = quantize(folder / case.model, settings, *sources, run=SilentRun(), threads=1).report
    before, after = report.float_.metrics["top1"], report.quantized.metrics["top1"]
    assert report.fidelity.samples == samples
    assert before == pytest.approx(float_top1, abs=0.1)
    assert before - after <= max_drop
    assert report.fidelity.sqnr_db > 10
