"""Models beyond what one file can hold go the whole way: here the limit is a few hundred kilobytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from service.contracts.errors import UnsupportedModelError
from service.contracts.runner import DatasetSource
from tests.unit.quantizer.toolbox import config, make_model, normal, rng, write_npz
from worker.quantizer.evaluation.command import evaluate_files
from worker.quantizer.graph import serialized as serializing
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.graph.skeleton import copy_of, weight_bytes
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.runtime import session as runtime
from worker.quantizer.runtime.session import Session

LIMIT = 400_000
QUICK = {"latency_runs": 1, "layer_samples": 1}


def network() -> onnx.ModelProto:
    """Float weights of a megabyte, which takes a quarter of that as int8."""
    weights = {"w": normal(128, 1024, scale=0.1), "b": normal(1024), "k": normal(1024, 128, scale=0.03)}
    return make_model(
        "(float[N,128] x) => (float[N,128] y) { [a] h = Gemm(x, w, b) [r] g = Relu(h) [m] y = MatMul(g, k) }", weights
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    assert (tmp_path / "net.data").stat().st_size > 2 * LIMIT
    return path


@pytest.fixture
def source(tmp_path: Path) -> DatasetSource:
    return write_npz(tmp_path / "data.npz", x=normal(24, 128), labels=rng().integers(0, 128, 24))


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a message could hold no more, for whatever is made of it."""
    original = serializing.serialized

    def limited(proto: onnx.ModelProto) -> bytes:
        data = original(proto)
        assert len(data) <= LIMIT, "a whole model was serialized"
        return data

    monkeypatch.setattr(serializing, "MAX_FILE_BYTES", LIMIT)
    monkeypatch.setattr(runtime, "LARGE_WEIGHT_BYTES", LIMIT // 4)
    monkeypatch.setattr(serializing, "serialized", limited)
    monkeypatch.setattr(runtime, "serialized", limited)


def run(model: Path, source: DatasetSource, **settings: Any) -> Result:
    return quantize(model, config(evaluation=QUICK, **settings), source, source, run=SilentRun(), threads=1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithms": [{"method": "bias_correction", "accept": "if_better"}]},
        {"weight": {"calibration": {"method": "mse"}}, "activation": {"calibration": {"method": "entropy"}}},
        {"mode": "weights_only"},
        {"mode": "dynamic"},
    ],
    ids=["static", "judged", "searched", "weights_only", "dynamic"],
)
def test_the_same_bytes_and_figures_as_of_a_model_that_fits(
    model: Path, source: DatasetSource, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    whole = run(model, source, **settings)
    request.getfixturevalue("small_limits")
    parts = run(model, source, **settings)
    assert parts.model == whole.model
    assert len(parts.model) < LIMIT
    assert parts.report.fidelity == whole.report.fidelity
    assert parts.report.float_.size_bytes > 2 * LIMIT
    assert [layer.sqnr_db for layer in parts.report.layers] == [layer.sqnr_db for layer in whole.report.layers]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("settings", [{"exclude": [{"op_type": "Gemm"}, {"op_type": "MatMul"}]}, {"mode": "float16"}])
def test_what_does_not_fit_into_one_file_is_refused_in_words(
    model: Path, source: DatasetSource, settings: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedModelError, match="larger than 2 GB, which a single ONNX file cannot hold") as caught:
        run(model, source, **settings)
    assert "to fewer bits" in (caught.value.hint or "")


@pytest.mark.usefixtures("small_limits")
def test_a_large_model_is_evaluated(model: Path, source: DatasetSource) -> None:
    found = evaluate_files(model, source, reference=model, threads=1, run=SilentRun())
    assert found["fidelity"]["sqnr_db"] == 200.0


@pytest.mark.usefixtures("small_limits")
def test_weights_of_any_type_are_handed_over_as_they_lie() -> None:
    halfs, integers = normal(300, 300).astype(ml_dtypes.bfloat16), rng().integers(-9, 9, (300, 200))
    proto = make_model(
        "(float[N,300] x) => (float[N,300] y, int64[300,200] z) { c = Cast<to=1>(w) y = MatMul(x, c) z = Abs(k) }",
        {"k": integers},
    )
    proto.graph.initializer.append(
        onnx.helper.make_tensor("w", onnx.TensorProto.BFLOAT16, [300, 300], halfs, raw=False)
    )
    model = ir.from_proto(proto)
    assert weight_bytes(model) > runtime.LARGE_WEIGHT_BYTES
    session = Session(model, threads=1)
    assert set(session._weights) == {"w", "k"}
    x = normal(4, 300)
    y, z = session.run({"x": x})
    np.testing.assert_allclose(y, x @ halfs.astype(np.float32), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(z, np.abs(integers))


def test_a_copy_shares_weights_and_nothing_else() -> None:
    model = ir.from_proto(network())
    before = to_bytes(model)
    copy = copy_of(model)
    assert to_bytes(copy) == before
    assert copy.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value
    copy.graph.remove(list(copy.graph)[-1])
    del copy.graph.initializers["k"]
    assert to_bytes(model) == before
