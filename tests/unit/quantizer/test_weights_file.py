"""Weights as safetensors: every initializer, under its own name, with its own bytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from service.contracts.config import parse_config
from service.contracts.errors import UnsupportedModelError
from service.contracts.runner import DatasetSource
from tests.support.tiny import make_model
from worker.quantizer.graph.serialized import save_weights
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun


def header(path: Path) -> dict[str, dict[str, object]]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + size])
    return {name: facts for name, facts in found.items() if name != "__metadata__"}


def initializers(path: Path) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}


def test_all_of_them_are_there_as_they_are(tmp_path: Path) -> None:
    make_model(tmp_path / "m.onnx")
    save_weights(tmp_path / "m.onnx", tmp_path / "w.safetensors")
    found, wanted = load_file(tmp_path / "w.safetensors"), initializers(tmp_path / "m.onnx")
    assert found.keys() == wanted.keys()
    assert wanted, "the model has weights"
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(found[name], onnx.numpy_helper.to_array(tensor), strict=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "w.safetensors"], "nothing else is left"


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_those_of_a_quantized_model_are_integers(tmp_path: Path, dtype: str) -> None:
    make_model(tmp_path / "m.onnx")
    (taken,) = onnx.load(tmp_path / "m.onnx").graph.input
    samples = np.random.default_rng(1).standard_normal((16, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "c.npz", **{taken.name: samples})
    data = DatasetSource(path=str(tmp_path / "c.npz"))
    config = parse_config({"preset": "int8", "weight": {"dtype": dtype}})
    made = quantize(tmp_path / "m.onnx", config, data, threads=1, run=SilentRun())
    (tmp_path / "q.onnx").write_bytes(made.model)
    save_weights(tmp_path / "q.onnx", tmp_path / "w.safetensors")
    found, wanted = header(tmp_path / "w.safetensors"), initializers(tmp_path / "q.onnx")
    assert found.keys() == wanted.keys()
    kinds = {onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in wanted.values()}
    assert dtype.upper() in kinds
    raw = (tmp_path / "w.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    for name, tensor in wanted.items():
        begin, end = found[name]["data_offsets"]  # type: ignore[misc]
        stored = raw[start + begin : start + end]
        assert stored == (tensor.raw_data or onnx.numpy_helper.to_array(tensor).tobytes()), name


def test_a_model_without_weights_says_so(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModelError, match="no weights"):
        save_weights(tmp_path / "m.onnx", tmp_path / "w.safetensors")
    assert not (tmp_path / "w.safetensors").exists()
