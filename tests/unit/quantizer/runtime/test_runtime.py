"""Sessions: types that the runtime's Python side does not know, and failures in words."""

from __future__ import annotations

import ast

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from service.contracts.errors import EngineError, UnsupportedModelError
from tests.support.source import trees
from tests.unit.quantizer.toolbox import make_model, normal, quantize_file
from worker.quantizer.runtime.session import Session, session_options


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


def test_no_session_spins_while_it_waits() -> None:
    """One place makes the options of all sessions, and says so there."""
    entry = session_options(2, optimized=True).get_session_config_entry("session.intra_op.allow_spinning")
    assert entry == "0"
    makers = [
        name
        for name, tree in trees("quantmill", "worker").items()
        if any(isinstance(node, ast.Attribute | ast.Name) and named(node) == "SessionOptions" for node in tree)
    ]
    assert makers == ["worker/quantizer/runtime/session.py"]
    sessions = {
        name: call
        for name, tree in trees("quantmill", "worker").items()
        for call in tree
        if isinstance(call, ast.Call) and named(call.func) == "InferenceSession"
    }
    assert len(sessions) > 2
    assert [name for name, call in sessions.items() if len(call.args) < 2] == [], "a session without options"


def named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
