"""Kinds of fault that networks drawn at random have shown, each in the smallest network that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file, run_onnx, sqnr_db


class Kind(NamedTuple):
    text: str
    arrays: dict[str, np.ndarray]
    settings: dict[str, Any] = {}  # noqa: RUF012 - not written to
    opset: int = 17
    least_db: float = 25.0
    reason: str = ""


INT8 = {"activation": {"dtype": "int8", "symmetric": True}}
FLOOR = np.float32(1e-3)
KINDS = {
    "a Gemm of int8 that onnxruntime makes": Kind(
        "(float[1,4,12] x) => (float[1,4,3] y) { m = MatMul(x, w) y = Add(m, b) }",
        {"w": normal(12, 3), "b": normal(3)}, INT8, opset=21,
    ),
    "the same of a bias that is restored": Kind(
        "(float[1,4,12] x) => (float[1,4,4] y) { m = MatMul(x, w) a = Add(m, b) y = MatMul(a, v) }",
        {"w": normal(12, 3), "b": normal(3), "v": normal(3, 4)}, INT8, opset=21,
    ),
    "a divisor that is rounded to 0": Kind(
        "(float[N,8] x) => (float[N,8] y) { s = Mul(x, x) e = Add(s, o) d = Div(x, e) y = Mul(d, e) }",
        {"o": FLOOR}, {"target": "amd_npu_cnn"}, least_db=5, reason="integers would round the divisor e to 0",
    ),
    "a scalar for a bias": Kind(
        "(float[N,8] x) => (float[N,1] y) { h = Relu(x) y = Gemm(h, w, b) }",
        {"w": normal(8, 1), "b": np.float32(0.3)}, {"algorithms": [{"method": "bias_correction"}]},
    ),
    "a table while ranges are tried": Kind(
        "(float[N,6] x) => (float[N,4] y) "
        "{ i = ArgMax<axis=1, keepdims=0>(x) g = Gather(t, i) h = MatMul(x, w) y = Add(g, h) }",
        {"t": normal(6, 4), "w": normal(6, 4)}, {"activation": {"calibration": {"method": "auto"}}},
    ),
    "a limit for each place": Kind(
        "(float[N,4,12] x) => (float[N,1,12] y) { c = Conv<auto_pad=\"SAME_UPPER\">(x, w, b) y = Min(c, l) }",
        {"w": normal(1, 4, 2), "b": normal(1), "l": normal(1, 12)},
        {"target": "openvino", "algorithms": [{"method": "bias_correction"}]},
    ),
    "a scalar of a higher rank": Kind(
        "(float[N,8] x) => (float[1,N,4] y) { m = MatMul(x, w) y = Add(m, b) }",
        {"w": normal(8, 4), "b": normal(1, 1, 1)}, {"algorithms": [{"method": "bias_correction"}]},
    ),
    "values of int8 that are moved": Kind(
        "(float[1,4,6] x) => (float[1,2,5] y) { c = Conv(x, w) y = Slice(c, s, e, a) }",
        {"w": normal(4, 4, 2), "s": np.array([1]), "e": np.array([3]), "a": np.array([1])},
        {**INT8, "exclude": [{"op_type": "Slice"}]}, opset=21,
    ),
    "the same through a pool": Kind(
        "(float[N,4,6] x) => (float[N,4,4] y) { c = Conv(x, w) y = MaxPool<kernel_shape=[2]>(c) }",
        {"w": normal(4, 4, 2)}, {**INT8, "exclude": [{"op_type": "MaxPool"}]}, opset=22,
    ),
    "the same not around 0": Kind(
        "(float[N,4,6] x) => (float[N,5,4] y) { c = Conv(x, w) y = Transpose<perm=[0,2,1]>(c) }",
        {"w": normal(4, 4, 2)},
        {"activation": {"dtype": "int8", "symmetric": False}, "exclude": [{"op_type": "Transpose"}]}, opset=21,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_quantized_and_run(tmp_path: Path, kind: str) -> None:
    text, arrays, settings, opset, least_db, reason = KINDS[kind]
    model = make_model(text, arrays, opset=opset)
    shape = [dim.dim_value or 8 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": normal(8, *shape[1:], seed=3)}
    result = quantize_file(tmp_path, model, feeds, config(**settings))
    onnx.checker.check_model(result.model, full_check=True)
    test = {"x": feeds["x"][: shape[0]]}
    expected = run_onnx(model, test)["y"]
    for optimized in (True, False):
        got = run_onnx(result.model, test, optimized=optimized)["y"]
        assert got.shape == expected.shape
        assert sqnr_db(expected, got) > least_db
    assert reason in str([layer.reason for layer in result.report.layers])
