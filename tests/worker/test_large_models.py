"""A model that counts as large goes through command line and service by real processes, and comes out in two files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.large import write_model
from tests.worker.running import Service, environment
from worker.quantizer.graph.sizes import VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.long]

LAYERS, WIDTH = 3, 192
# In the place of megabytes and gigabytes; a layer has 36 KiB as int8.
LARGE = {VARIABLE: "10000:1000:20000"}
QUICK = '{"preset": "int8_weights", "evaluation": {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("large"), LAYERS, WIDTH)


@pytest.fixture(scope="module")
def small(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What is made of the model where it is not large."""
    path = tmp_path_factory.mktemp("small") / "q.onnx"
    quantize(model, path)
    assert sorted(file.name for file in path.parent.glob("q*")) == ["q.onnx"]
    return arrays(path)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service") / "home", **LARGE) as running:
        yield running


def quantize(model: Path, output: Path, **variables: str) -> None:
    config = output.with_name("config.json")
    config.write_text(QUICK)
    command = ["-m", "worker.cli", "quantize", str(model), "--config", str(config), "--output", str(output)]
    told = subprocess.run(
        [sys.executable, *command], env=environment(**variables), capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr


def arrays(path: Path) -> dict[str, np.ndarray]:
    """The initializers; the runtime takes the model with what lies beside it."""
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}


def assert_same(found: dict[str, np.ndarray], known: dict[str, np.ndarray]) -> None:
    assert found.keys() == known.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, known[name])


def test_the_command_writes_two_files(model: Path, small: dict[str, np.ndarray], tmp_path: Path) -> None:
    quantize(model, tmp_path / "q.onnx", **LARGE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "q.onnx", "q.onnx.data"]
    assert_same(arrays(tmp_path / "q.onnx"), small)


def test_the_service_gives_two_artifacts(
    model: Path, small: dict[str, np.ndarray], service: Service, tmp_path: Path
) -> None:
    client = service.client
    pushed = client.wait_ready(client.push_model(model))
    job = client.submit(model=pushed.id, config=json.loads(QUICK))
    client.wait_succeeded(job.id)
    found = {artifact.kind: artifact for artifact in client.artifacts(job.id)}
    assert found["model_data"].filename == "model.onnx.data"
    manifest = client.report(job.id).manifest
    assert manifest.output_sha256 == found["model"].sha256
    assert manifest.output_data_sha256 == found["model_data"].sha256
    client.download(job.id, tmp_path / "q.onnx")
    data = (tmp_path / "model.onnx.data").read_bytes()
    assert hashlib.sha256(data).hexdigest() == manifest.output_data_sha256
    assert_same(arrays(tmp_path / "q.onnx"), small)
    assert any("model.onnx.data" in note for note in client.report(job.id).notes)
