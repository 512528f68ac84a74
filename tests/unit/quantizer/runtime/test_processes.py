"""What only fresh processes show: the same bytes everywhere, and memory that does not grow with the data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.exact_sums import make_sums_as_here
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.quantizer.toolbox import config, data, make_model, network, normal, quantize_file, rng

ROOT = Path(__file__).parents[4]
SCRIPT = """
import hashlib, json, resource, sys
from pathlib import Path
from service.contracts.config import parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.runner import DatasetSource
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

model, calibration, settings, preprocessing = sys.argv[1:]
source = DatasetSource(path=calibration, preprocessing=PreprocessingSpec.model_validate_json(preprocessing))
result = quantize(Path(model), parse_config(json.loads(settings)), source, run=SilentRun(), threads=1)
print(json.dumps({
    "sha256": hashlib.sha256(result.model).hexdigest(),
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "stages": {stage.name: stage.peak_rss_bytes for stage in result.report.stages},
}))
"""


def start(
    model: Path, calibration: Path, settings: dict, *, hash_seed: str = "0", preprocessing: str = "{}"
) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", SCRIPT, str(model), str(calibration), json.dumps(settings), preprocessing]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )


def outcome(process: subprocess.Popen[str]) -> dict:
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    return json.loads(output)


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes_in_any_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_sums_as_here(monkeypatch)  # fresh processes compute so
    settings = {"preset": "int8_percentile", "algorithms": [{"method": "bias_correction"}]}
    first = quantize_file(tmp_path, network(opset=11), data(), config(**settings))
    again = quantize_file(tmp_path, network(opset=11), data(), config(**settings))
    assert first.model == again.model
    running = [start(tmp_path / "float.onnx", tmp_path / "calibration.npz", settings, hash_seed=seed) for seed in "12"]
    for process in running:
        assert outcome(process)["sha256"] == first.report.manifest.output_sha256


@pytest.mark.slow
@pytest.mark.long
def test_memory_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    """2000 samples of 192 KiB once they are floats would take 375 MiB; 200 take a tenth."""
    model = make_model(
        "(float[N,3,128,128] x) => (float[N,5] y) { t = Conv<strides=[4,4]>(x, w) r = Relu(t) p = GlobalAveragePool(r) "
        "f = Flatten(p) y = MatMul(f, k) }",
        {"w": normal(4, 3, 3, 3), "k": normal(4, 5)},
    )
    onnx.save(model, tmp_path / "model.onnx")
    block = rng(0).integers(0, 256, (200, 128, 128, 3)).astype(np.uint8)
    np.savez(tmp_path / "200.npz", images=block)
    np.savez(tmp_path / "2000.npz", images=np.concatenate([block] * 10))
    spec = json.dumps({"inputs": {"x": {"array": "images", "layout": "NHWC", "scale": 1 / 255}}})
    settings = {"preset": "int8_percentile", "evaluation": {"latency_runs": 1}}
    running = [
        start(tmp_path / "model.onnx", tmp_path / f"{samples}.npz", settings, preprocessing=spec)
        for samples in (200, 2000)
    ]
    few, many = (outcome(process) for process in running)
    assert many["peak_bytes"] - few["peak_bytes"] < 50 * 2**20
    for name, peak in many["stages"].items():
        assert peak - few["stages"][name] < 50 * 2**20, name
