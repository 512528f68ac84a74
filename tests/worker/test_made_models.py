"""Models whose ONNX file is made by their validation, in real runners: new weights for a graph, exported programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from service.client import ApiError
from service.storage import FileStore

pytestmark = [pytest.mark.slow, pytest.mark.long]

CONFIG = {"preset": "int8", "evaluation": {"latency_runs": 1}}


def new_state(path: Path, **changes: np.ndarray) -> Path:
    rng = np.random.default_rng(7)
    shapes = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (5, 16), "b2": (5,)}
    save_file(
        {**{name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}, **changes}, path
    )
    return path


def test_new_weights_become_a_model_that_is_quantized_by_known_ranges(service, tiny, tmp_path):
    client = service.client
    inputs = service.upload(tiny)
    first = client.submit(**inputs, config=CONFIG)
    client.wait_succeeded(first.id)
    state = new_state(tmp_path / "new.safetensors")
    made = client.wait_ready(client.create_model_version(inputs["model"], state))
    version = client.model(inputs["model"]).version
    assert (made.version, made.skeleton_model_id, made.format) == (version + 1, inputs["model"], "safetensors")
    assert [file.path for file in made.files] == ["model.onnx", "new.safetensors"]
    assert made.summary is not None
    assert made.summary.sha256 == made.files[0].sha256
    second = client.submit(**{**inputs, "model": made.id}, config=CONFIG, ranges_from=first.id)
    client.wait_succeeded(second.id)
    before, after = client.report(first.id), client.report(second.id)
    assert after.tensor_ranges == before.tensor_ranges
    assert after.manifest.model_sha256 == made.summary.sha256
    assert after.manifest.output_sha256 != before.manifest.output_sha256
    third = client.wait_ready(client.create_model_version(made.id, state))
    assert (third.version, third.files[0].sha256) == (version + 2, made.files[0].sha256)


def test_weights_that_do_not_fit_are_named(service, tiny, tmp_path):
    client = service.client
    skeleton = client.wait_ready(client.push_model(tiny.model))
    state = new_state(tmp_path / "odd.safetensors", w2=np.ones((6, 16), np.float32), extra=np.ones(1, np.float32))
    with pytest.raises(ApiError) as caught:
        client.wait_ready(client.create_model_version(skeleton.id, state))
    assert caught.value.problem().code == "state-mismatch"
    assert {error.pointer for error in caught.value.problem().errors} == {"/state/w2", "/state/extra"}


class Net(nn.Module):
    """Input ``x`` float32 [batch, 3, 8, 8], scores of 5 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


def test_an_exported_program_is_loaded_in_the_runner_and_quantized(service, tiny, tmp_path):
    torch.manual_seed(0)
    module, client = Net().eval(), service.client
    example = torch.randn(2, 3, 8, 8)
    program = torch.export.export(module, (example,), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    torch.export.save(program, tmp_path / "net.pt2")
    made = client.wait_ready(client.push_model(tmp_path / "net.pt2"))
    assert (made.format, [file.path for file in made.files]) == ("pt2", ["model.onnx", "net.pt2"])
    stored = FileStore(service.folder / "store").path(made.files[0].sha256)
    session = onnxruntime.InferenceSession(stored, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": example.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), module(example).detach(), rtol=1e-4, atol=1e-5)
    data = client.wait_ready(client.push_dataset(tiny.calibration))
    job = client.submit(model=made.id, calibration=data.id, config=CONFIG)
    client.wait_succeeded(job.id)
    assert client.report(job.id).manifest.model_sha256 == made.files[0].sha256
