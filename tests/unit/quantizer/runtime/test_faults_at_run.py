"""Models and data that the runtime accepts and then fails at: whose fault it is, and which node, input and sample."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
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
from tests.support.each import each
from tests.unit.quantizer.toolbox import Arrays, make_model, normal, quantize_file, rng
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.runtime.session import Session, session_options

NET = "(float[N,3,8,8] x) => (float[N,8,6,6] y) { [c] a = Conv(x, w) [r] b = Relu(a) [head] y = Conv(b, v) }"
WORDS = "(int64[N,4] ids) => (float[N,4,5] y) { [emb] e = Gather(t, ids) [fc] y = MatMul(e, w) }"


def net(**weights: np.ndarray) -> onnx.ModelProto:
    return make_model(NET, {"w": normal(8, 3, 3, 3), "v": normal(8, 8, 1, 1), **weights})


def inspected(folder: Path, model: onnx.ModelProto) -> QuantmillError:
    onnx.save(model, folder / "m.onnx")
    with pytest.raises(QuantmillError) as caught:
        inspect_model(folder / "m.onnx", threads=1)
    return caught.value


def quantized(folder: Path, model: onnx.ModelProto, feeds: Arrays) -> QuantmillError:
    with pytest.raises(QuantmillError) as caught:
        quantize_file(folder, model, feeds)
    return caught.value


def test_channels_that_do_not_fit(tmp_path: Path) -> None:
    model = net(w=normal(8, 5, 3, 3))
    for error in (inspected(tmp_path, model), quantized(tmp_path, model, {"x": normal(2, 3, 8, 8)})):
        assert isinstance(error, UnsupportedModelError)
        assert error.where == {"node": "c", "op_type": "Conv", "tensor": "w"}
        assert "takes 5 channels, its input 'x' has 3" in error.detail
        assert error.hint


def test_channels_of_groups_and_what_is_meant_are_no_faults(tmp_path: Path) -> None:
    text = "(float[1,4,8,8] x) => (float[N,M,A,B] y) { [g] a = Conv<group=2>(x, w) [t] y = ConvTranspose(a, v) }"
    good = {"w": normal(6, 2, 3, 3), "v": normal(6, 2, 2, 2)}
    mask = np.array([[0, -np.inf, 0, 0]], np.float32)
    masked = make_model("(float[N,4] x) => (float[N,4] y) { a = Add(x, m) y = Softmax<axis=1>(a) }", {"m": mask})
    for model in (make_model(text, good), masked):
        onnx.save(model, tmp_path / "good.onnx")
        assert inspect_model(tmp_path / "good.onnx", threads=1).node_count == 2
    assert inspected(tmp_path, make_model(text, {**good, "w": normal(6, 3, 3, 3)})).where["node"] == "g"


@each(("value", "name", "node"), [(np.nan, "w", "c"), (np.inf, "v", "head"), (-np.inf, "w", "c")])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, value: float, name: str, node: str) -> None:
    broken = {"w": normal(8, 3, 3, 3), "v": normal(8, 8, 1, 1)}[name]
    broken[2, 1, 0, 0] = value
    error = inspected(tmp_path, net(**{name: broken}))
    assert isinstance(error, ModelError)
    assert error.where == {"node": node, "op_type": "Conv", "tensor": name, "index": [2, 1, 0, 0]}


@each("sample", [0, 4])
def test_an_index_beyond_the_table_names_input_and_sample(tmp_path: Path, sample: int) -> None:
    ids = rng().integers(0, 10, (6, 4))
    ids[sample, 1] = 99
    model = make_model(WORDS, {"t": normal(10, 8), "w": normal(8, 5)})
    error = quantized(tmp_path, model, {"ids": ids})
    assert isinstance(error, DatasetMismatchError)
    assert error.where == {"node": "emb", "op_type": "Gather", "input": "ids", "sample": sample}
    assert "idx=99" in error.detail
    assert "vocabulary" in (error.hint or "")


@each("value", [3e38, -3e38])
def test_values_that_overflow_name_node_and_sample(tmp_path: Path, value: float) -> None:
    x = normal(5, 3, 8, 8)
    x[3] = value
    error = quantized(tmp_path, net(), {"x": x})
    assert isinstance(error, DatasetMismatchError)
    assert error.where["op_type"] in ("Conv", "Relu")
    assert (error.where["node"] in ("c", "r"), error.where["sample"]) == (True, 3)
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


def test_whose_fault_sizes_are_that_do_not_fit() -> None:
    sum_of = "(float[N,K] x, float[N,L] z) => (float[N,M] y) { [ad] s = Add(x, z) [r] y = Relu(s) }"
    turned = make_model("(float[N,4] x) => (float[M,3] y) { [rs] y = Reshape(x, s) }", {"s": np.array([-1, 3])})
    uploaded = {"what": "float model", "uploaded": True}
    cases = [
        (make_model(sum_of), uploaded, {"x": normal(1, 4), "z": normal(1, 3)}, {"node": "ad", "op_type": "Add"}),
        (net(), uploaded, {"x": normal(1, 3, 9, 8)}, {"input": "x"}),
        (turned, {"what": "quantized model"}, {"x": normal(1, 4)}, {"node": "rs", "op_type": "Reshape"}),
    ]
    for model, facts, feeds, where in cases:
        session = Session(model.SerializeToString(), threads=1, **facts)
        with pytest.raises(DatasetMismatchError if facts is uploaded else EngineError) as caught:
            session.run(feeds)
        assert caught.value.where == where


def test_bfloat16_goes_in_and_comes_out() -> None:
    model = make_model(
        "(bfloat16[N,3] x, float[N,3] z) => (bfloat16[N,3] y, float[N,3] f) { f = Cast<to=1>(x) s = Add(f, z) y = "
        "Cast<to=16>(s) }"
    )
    x, z = normal(4, 3).astype(ml_dtypes.bfloat16), normal(4, 3, seed=1)
    session = Session(model.SerializeToString(), threads=1)
    whole = x.astype(np.float32)
    y, f = session.run({"x": x, "z": z})
    np.testing.assert_array_equal(f, whole)
    np.testing.assert_array_equal(y, (whole + z).astype(ml_dtypes.bfloat16).astype(np.float32))
    (alone,) = session.run({"x": x, "z": z}, ["f"])
    np.testing.assert_array_equal(alone, f)


def test_a_model_that_the_runtime_does_not_know_is_refused_and_no_session_spins_while_it_waits() -> None:
    model = make_model("(float[N] x) => (float[N] y) { y = NoSuchOperator(x) }")
    with pytest.raises(UnsupportedModelError, match="NoSuchOperator"):
        Session(model.SerializeToString(), threads=1)
    entry = session_options(2, optimized=True).get_session_config_entry("session.intra_op.allow_spinning")
    assert entry == "0"
