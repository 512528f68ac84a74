"""Models and data that the runtime accepts and then fails at: whose fault it is, and which node, input and sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from service.contracts.errors import (
    DatasetMismatchError,
    EngineError,
    ModelError,
    QuantmillError,
    UnsupportedModelError,
)
from tests.unit.quantizer.toolbox import Arrays, make_model, normal, quantize_file, rng
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.runtime.session import Session

NET = "(float[N,3,8,8] x) => (float[N,8,6,6] y) { [c] a = Conv(x, w) [r] b = Relu(a) [head] y = Conv(b, v) }"
WORDS = "(int64[N,4] ids) => (float[N,4,5] y) { [emb] e = Gather(t, ids) [fc] y = MatMul(e, w) }"


def net(**weights: np.ndarray) -> onnx.ModelProto:
    return make_model(NET, {"w": normal(8, 3, 3, 3), "v": normal(8, 8, 1, 1), **weights})


def words() -> onnx.ModelProto:
    return make_model(WORDS, {"t": normal(10, 8), "w": normal(8, 5)})


def inspected(folder: Path, model: onnx.ModelProto) -> QuantmillError:
    onnx.save(model, folder / "m.onnx")
    with pytest.raises(QuantmillError) as caught:
        inspect_model(folder / "m.onnx", threads=1)
    return caught.value


def quantized(folder: Path, model: onnx.ModelProto, feeds: Arrays) -> QuantmillError:
    with pytest.raises(QuantmillError) as caught:
        quantize_file(folder, model, feeds)
    return caught.value


# --- known at inspection ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["inspection", "run"])
def test_channels_that_do_not_fit(tmp_path: Path, place: str) -> None:
    model = net(w=normal(8, 5, 3, 3))
    error = (
        inspected(tmp_path, model) if place == "inspection" else quantized(tmp_path, model, {"x": normal(2, 3, 8, 8)})
    )
    assert isinstance(error, UnsupportedModelError)
    assert error.where == {"node": "c", "op_type": "Conv", "tensor": "w"}
    assert "takes 5 channels, its input 'x' has 3" in error.detail
    assert error.hint


def test_channels_of_groups_and_transposed_convolutions(tmp_path: Path) -> None:
    text = "(float[1,4,8,8] x) => (float[N,M,A,B] y) { [g] a = Conv<group=2>(x, w) [t] y = ConvTranspose(a, v) }"
    good = {"w": normal(6, 2, 3, 3), "v": normal(6, 2, 2, 2)}
    onnx.save(make_model(text, good), tmp_path / "good.onnx")
    assert inspect_model(tmp_path / "good.onnx", threads=1).node_names == ("g", "t")
    assert inspected(tmp_path, make_model(text, {**good, "w": normal(6, 3, 3, 3)})).where["node"] == "g"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "node"), [("w", "c"), ("v", "head")])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, value: float, name: str, node: str) -> None:
    broken = {"w": normal(8, 3, 3, 3), "v": normal(8, 8, 1, 1)}[name]
    broken[2, 1, 0, 0] = value
    error = inspected(tmp_path, net(**{name: broken}))
    assert isinstance(error, ModelError)
    assert error.where == {"node": node, "op_type": "Conv", "tensor": name, "index": [2, 1, 0, 0]}


def test_infinity_in_a_mask_is_meant(tmp_path: Path) -> None:
    mask = np.array([[0, -np.inf, 0, 0]], np.float32)
    model = make_model("(float[N,4] x) => (float[N,4] y) { a = Add(x, m) y = Softmax<axis=1>(a) }", {"m": mask})
    onnx.save(model, tmp_path / "m.onnx")
    assert inspect_model(tmp_path / "m.onnx", threads=1).node_count == 2


# --- known only at run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [0, 4])
def test_an_index_beyond_the_table_names_input_and_sample(tmp_path: Path, sample: int) -> None:
    ids = rng().integers(0, 10, (6, 4))
    ids[sample, 1] = 99
    error = quantized(tmp_path, words(), {"ids": ids})
    assert isinstance(error, DatasetMismatchError)
    assert error.where == {"node": "emb", "op_type": "Gather", "input": "ids", "sample": sample}
    assert "idx=99" in error.detail
    assert "vocabulary" in (error.hint or "")


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_values_that_overflow_name_node_and_sample(tmp_path: Path, value: float) -> None:
    x = normal(5, 3, 8, 8)
    x[3] = value
    error = quantized(tmp_path, net(), {"x": x})
    assert isinstance(error, DatasetMismatchError)
    assert error.where["op_type"] in ("Conv", "Relu")
    assert error.where["node"] in ("c", "r")
    assert error.where["sample"] == 3
    assert "sample 3 of the calibration data" in error.detail


def test_a_node_that_is_never_finite_is_no_fault_of_the_data(tmp_path: Path) -> None:
    text = (
        "(float[N,4] x) => (float[N,3] y) { [first] a = Gemm(x, w) [log] b = Log(n) [add] c = Add(a, b) "
        "[last] y = Gemm(c, v) }"
    )
    weights = {"w": normal(4, 4), "v": normal(4, 3), "n": np.array([[0.0, 1, 1, 1]], np.float32)}
    error = quantized(tmp_path, make_model(text, weights), {"x": normal(5, 4)})
    assert isinstance(error, UnsupportedModelError)
    assert error.where["node"] == "add"
    assert "-Inf on every sample" in error.detail


def test_a_model_that_cannot_run_at_all(tmp_path: Path) -> None:
    text = "(float[N,4] x) => (float[M,3] y) { [rs] h = Reshape(x, s) [b] y = Gemm(h, w) }"
    model = make_model(text, {"s": np.array([-1, 3]), "w": normal(3, 3)})
    error = quantized(tmp_path, model, {"x": normal(4, 4)})
    assert isinstance(error, UnsupportedModelError)
    assert error.where == {"node": "rs", "op_type": "Reshape"}
    assert "cannot be reshaped" in error.detail
    assert ".h:" not in error.detail


def test_sizes_that_a_dynamic_model_cannot_take_are_the_datas_fault(tmp_path: Path) -> None:
    model = make_model("(float[N,K] x, float[N,L] z) => (float[N,M] y) { [ad] s = Add(x, z) [r] y = Relu(s) }")
    session = Session(model.SerializeToString(), threads=1, what="float model", uploaded=True)
    with pytest.raises(DatasetMismatchError) as caught:
        session.run({"x": normal(1, 4), "z": normal(1, 3)})
    assert caught.value.where == {"node": "ad", "op_type": "Add"}


def test_a_shape_that_the_model_does_not_declare_names_the_input() -> None:
    session = Session(net().SerializeToString(), threads=1, uploaded=True)
    with pytest.raises(DatasetMismatchError) as caught:
        session.run({"x": normal(1, 3, 9, 8)})
    assert caught.value.where == {"input": "x"}


def test_a_model_of_the_engines_own_making_is_the_engines_fault() -> None:
    model = make_model("(float[N,4] x) => (float[M,3] y) { [rs] y = Reshape(x, s) }", {"s": np.array([-1, 3])})
    with pytest.raises(EngineError) as caught:
        Session(model.SerializeToString(), threads=1, what="quantized model").run({"x": normal(1, 4)})
    assert caught.value.where == {"node": "rs", "op_type": "Reshape"}
