"""Sessions: types that the runtime's Python side does not know, and failures in words."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from service.contracts.errors import EngineError, UnsupportedModelError
from tests.unit.quantizer.toolbox import make_model, normal, quantize_file
from worker.quantizer.runtime.session import Session


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


def test_a_bfloat16_model_goes_the_whole_way(tmp_path) -> None:
    model = make_model(
        "(float[N,3] x) => (bfloat16[N,4] y) { t = MatMul(x, w) y = Cast<to=16>(t) }", {"w": normal(3, 4)}
    )
    report = quantize_file(tmp_path, model, {"x": normal(8, 3)}).report
    assert report.fidelity.sqnr_db > 20
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.BFLOAT16


def test_a_model_that_fails_on_the_data_says_so() -> None:
    model = make_model("(float[N,3] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }")
    session = Session(model.SerializeToString(), threads=1, what="float model")
    with pytest.raises(EngineError, match="failed to run an unnamed Reshape node of the float model") as caught:
        session.run({"x": normal(4, 3), "s": np.array([5, 5])})
    assert caught.value.hint


def test_a_model_that_the_runtime_does_not_know_is_refused() -> None:
    model = make_model("(float[N] x) => (float[N] y) { y = NoSuchOperator(x) }")
    with pytest.raises(UnsupportedModelError, match="NoSuchOperator"):
        Session(model.SerializeToString(), threads=1)
