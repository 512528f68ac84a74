"""``quantize --state`` and ``--ranges-from``, here and on a service: new weights for a graph, ranges from before."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.numpy import save_file

from service.contracts.report import Report

SHAPES = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (5, 16), "b2": (5,)}


@pytest.fixture
def state(tmp_path):
    """Other weights of the tiny model, in a file."""
    rng = np.random.default_rng(3)
    found = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in SHAPES.items()}
    save_file(found, tmp_path / "new.safetensors")
    return found


def with_weights(path, state):
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(state[tensor.name], tensor.name))
    return model.SerializeToString()


def test_new_weights_are_quantized_by_the_ranges_of_an_earlier_report(quantmill, tiny, tmp_path, state):
    # 16 bits are computed in float, which no CPU saturates
    run = ["quantize", tiny.model, "--preset", "a16w8_per_channel", "--calibration", tiny.calibration]
    more = ["--state", "new.safetensors"]
    for name, options in (("old", []), ("new", [*more, "--ranges-from", "old.json"]), ("own", more)):
        quantmill(*run, "--output", f"{name}.onnx", "--report", f"{name}.json", *options, code=0)
    old, new = (Report.model_validate_json((tmp_path / name).read_bytes()) for name in ("old.json", "new.json"))
    assert new.tensor_ranges == old.tensor_ranges
    assert new.manifest.model_sha256 != old.manifest.model_sha256
    assert (tmp_path / "new.onnx").read_bytes() != (tmp_path / "old.onnx").read_bytes()
    # the weights are those of the state: float scores by onnxruntime, quantized ones near them
    x = np.load(tiny.calibration)["x"]
    scores = onnxruntime.InferenceSession(tmp_path / "own.onnx").run(None, {"x": x})[0]
    expected = onnxruntime.InferenceSession(with_weights(tiny.model, state)).run(None, {"x": x})[0]
    assert np.square(scores - expected).mean() < 0.01 * np.square(expected).mean()


@pytest.mark.slow
@pytest.mark.long
def test_a_service_quantizes_new_weights_to_the_same_bytes(quantmill, ask, service, tiny, tmp_path, state):
    run = ["quantize", tiny.model, "--calibration", tiny.calibration, "--state", "new.safetensors"]
    quantmill(*run, "--output", "here.onnx", "--report", "here.json", code=0)
    ask(*run, "--output", "there.onnx", "--report", "there.json")
    assert (tmp_path / "there.onnx").read_bytes() == (tmp_path / "here.onnx").read_bytes()
    here, there = (Report.model_validate_json((tmp_path / f"{name}.json").read_bytes()) for name in ("here", "there"))
    assert there.tensor_ranges == here.tensor_ranges
    (latest,) = service.client.jobs(limit=1)
    model = service.client.model(latest.model_id)
    assert (model.format, model.files[-1].path) == ("safetensors", "new.safetensors")
    assert model.skeleton_model_id is not None
    assert model.version == service.client.model(model.skeleton_model_id).version + 1


def test_a_state_that_does_not_fit_is_told_by_tensor(quantmill, tiny, tmp_path):
    save_file({"w1": np.ones((1, 3, 3, 3), np.float32)}, tmp_path / "odd.safetensors")
    run = ("quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx")
    told = quantmill(*run, "--state", "odd.safetensors", code=1).stderr
    assert all(word in told for word in ("'w1'", "[16, 3, 3, 3]", "'b2'"))
    assert not (tmp_path / "q.onnx").exists()
