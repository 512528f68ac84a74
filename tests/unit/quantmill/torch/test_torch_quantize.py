"""quantize(): from a module and a loader to a quantized model that is called like the module."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from quantmill.torch import ExampleInputsError, Quantized, export, quantize, quantize_exported, store
from service.contracts.command_errors import FileAccessError
from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from tests.support.each import each
from tests.support.provenance import without_provenance
from tests.support.torch_networks import MobileNetV3Small, Swin, TextEncoder, batches, images, made
from worker.quantizer.graph import serialized

pytestmark = pytest.mark.slow

QUICK = {"evaluation": {"latency_runs": 1}}
# On every CPU the same figures.
INT8 = {"preset": "int8", "target_options": {"x86_without_vnni": True}, **QUICK}
IDS = torch.randint(0, 100, (32, 12), generator=torch.Generator().manual_seed(2))
NETWORKS: dict[str, tuple[Any, Tensor]] = {
    "mobilenet_v3_small": (MobileNetV3Small, images(16, 32)), "swin": (Swin, images(16, 32)),
    "transformer_encoder": (TextEncoder, IDS),
}  # fmt: skip


def in_onnxruntime(path: Path, *inputs: Tensor) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return session.run(None, dict(zip(names, [value.numpy() for value in inputs], strict=True)))


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_keep_20_db_and_load_gives_the_file_bit_by_bit(name, tmp_path):
    build, samples = NETWORKS[name]
    module = made(build)
    result = quantize(module, samples[:2], batches(samples), INT8, output=tmp_path / "q.onnx", threads=1)
    assert result.report.fidelity.sqnr_db >= 20
    layers = [row for row in result.report.layers if row.op in ("Conv", "Gemm") or row.weight_dtype]
    assert len(layers) > 5
    in_float = {row.reason_code for row in layers if row.weight_dtype != "int8"}
    assert in_float <= {"most-error-for-its-bytes"}, "which selective precision leaves in float"
    assert sum(row.weight_dtype == "int8" for row in layers) > 0.9 * len(layers)
    loaded = result.load(threads=1)(samples[:3])
    np.testing.assert_array_equal(loaded.numpy(), in_onnxruntime(result.onnx_path, samples[:3])[0])
    with torch.no_grad():
        expected = module(samples[:3])
    assert (loaded - expected).square().sum() < 0.01 * expected.square().sum()


class Answers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.unused = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(2, 2)
        self.report = nn.Linear(8, 3)

    def forward(self, a: Tensor, b: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        hidden = torch.relu(self.left(a) + self.right(b)) * scale
        return {"scores": self.report(hidden), "states": (hidden, a + 1, None)}


A, B = torch.randn(2, 24, 6, generator=torch.Generator().manual_seed(0))
EXAMPLE = {"b": B[:2], "a": A[:2], "scale": 0.5}
LABELS = torch.arange(24) % 3


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    loader = DataLoader(TensorDataset(A, B, LABELS), batch_size=5)
    output = tmp_path_factory.mktemp("answers") / "q.onnx"
    return quantize(made(Answers), EXAMPLE, loader, INT8, evaluation_loader=loader, output=output)


def test_the_loaded_model_is_called_like_the_module_and_returns_the_like(answers):
    loaded = answers.load()
    results = [loaded(A[:4], B[:4], scale=0.5), loaded(A[:4], b=B[:4], scale=0.5), loaded(scale=0.5, b=B[:4], a=A[:4])]
    scores, states, _ = in_onnxruntime(answers.onnx_path, A[:4], B[:4])
    for result in results:
        assert list(result) == ["scores", "states"]
        np.testing.assert_array_equal(result["scores"], scores)
        np.testing.assert_array_equal(result["states"][0], states)
        assert result["states"][2] is None
    expected = made(Answers)(A[:4], B[:4], scale=0.5)["scores"]
    torch.testing.assert_close(results[0]["scores"], expected, rtol=0.1, atol=0.1)
    fidelity = answers.report.fidelity
    assert (fidelity.source, fidelity.samples) == ("evaluation", 24)
    assert "top1" in answers.report.quantized.metrics, "where the data holds labels"


@each(
    ("args", "kwargs", "says"),
    [
        ((A, B), {}, "differs from the one"),
        ((A, B), {"scale": 2.0}, "2.0 where the model was exported with 0.5"),
        ((A,), {"scale": 0.5}, "missing a required argument"),
    ],
)
def test_a_call_that_the_model_does_not_know(args, kwargs, says, answers):
    with pytest.raises(ExampleInputsError, match=re.escape(says)):
        answers.load()(*args, **kwargs)


def test_configs_of_every_form_and_the_same_bytes(answers, tmp_path):
    resolved = parse_config(INT8)
    for k, config in enumerate((INT8, resolved, resolved.model_dump(mode="json"))):
        result = quantize(made(Answers), EXAMPLE, [(A, B)], config, output=tmp_path / f"{k}.onnx")
        settled = result.report.manifest.config  # its calibration is the one that was chosen
        assert settled.activation.calibration in resolved.activation.calibration.candidates
        assert result.onnx_path == tmp_path / f"{k}.onnx"
        assert settled.model_copy(update={"activation": resolved.activation}) == resolved
        # whose data holds labels besides
        found, expected = (without_provenance(path.read_bytes()) for path in (result.onnx_path, answers.onnx_path))
        assert found == expected
    quark = {"format": "quark", "config": "XINT8", "evaluation": {"latency_runs": 1}}
    for config, target in (("int8", "onnxruntime_cpu"), (quark, "amd_npu_cnn")):
        result = quantize(made(Answers), EXAMPLE, [(A, B)], config)
        assert (result.report.manifest.config.target, result.onnx_path.is_file()) == (target, True)


def test_modules_are_left_in_float_by_their_paths():
    module = made(Answers)
    result = quantize(module, EXAMPLE, [(A, B)], {**INT8, "exclude": [{"module": "right"}]})
    assert [row.weight_dtype for row in result.report.layers if row.reason_code == "excluded"] == [None]
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load(result.onnx_path).graph.initializer}
    assert kinds["right.weight"] == onnx.TensorProto.FLOAT
    assert "left.weight" not in kinds
    with pytest.raises(InvalidConfigError, match="no node of the model is selected by module 'middle'"):
        quantize(module, EXAMPLE, [(A, B)], {**INT8, "exclude": [{"module": "middle"}]})


class Flattens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.reshape(4, 12))


def test_a_fixed_batch_size_and_only_as_many_samples_as_the_config_wants():
    x = torch.randn(10, 3, 4)
    result = quantize(made(Flattens), x[:4], [x[:4], x[4:]], INT8, dynamic_batch=False)
    assert result.report.fidelity.samples == 10
    assert result.load()(x[:4]).shape == (4, 3)
    result = quantize(made(Answers), EXAMPLE, [(A, B)] * 3, {**INT8, "calibration_samples": 5})
    assert result.report.fidelity.samples == 24


def test_weights_too_large_for_one_file_make_the_same_model(answers, tmp_path, monkeypatch):
    monkeypatch.setattr(serialized, "MAX_WEIGHT_BYTES", 0)
    exported = export(made(Answers), EXAMPLE, tmp_path / "float.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["float.onnx", "float.onnx.data"]
    result = quantize_exported(exported, store([(A, B)], exported, tmp_path / "data.npz"), INT8)
    made_whole, made_of_parts = (without_provenance(one.onnx_path.read_bytes()) for one in (answers, result))
    assert made_of_parts == made_whole


def test_an_output_that_cannot_be_written_fails_before_the_work(tmp_path):
    def loader() -> Any:
        raise AssertionError("the work was begun")
        yield

    with pytest.raises(FileAccessError):
        quantize(made(Answers), EXAMPLE, loader(), INT8, output=tmp_path / "nowhere" / "q.onnx")
