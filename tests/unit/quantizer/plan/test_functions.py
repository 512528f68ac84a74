"""Functions that are written out: no Q/DQ pair inside, one around; numbers against the float model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.unit.quantizer.preparation.preparing import prepare_with
from tests.unit.quantizer.toolbox import Arrays, config, make_model, normal, quantize_model, run_onnx, sqnr_db
from worker.quantizer.plan.rules.functions import PART_OF_FUNCTION, written_functions
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared

ONES = {"e": np.float32(1e-5), "two": np.float32(2), "one": np.float32(1), "beta": np.float32(1.7)}
W = {"w": normal(8, 8, scale=0.4), "v": normal(8, 8, seed=1, scale=0.4), "g": normal(8, seed=2) + 2}
RMS = {
    "torch": "q = Pow(r, two) m = ReduceMean<axes=[-1]>(q) s = Add(m, e) t = Sqrt(s) i = Div(one, t) n = Mul(r, i)",
    "reciprocal": "q = Mul(r, r) m = ReduceMean<axes=[-1]>(q) s = Add(e, m) t = Sqrt(s) i = Reciprocal(t) "
    "n = Mul(i, r)",
    "divided": "q = Mul(r, r) m = ReduceMean<axes=[-1]>(q) s = Add(m, e) t = Sqrt(s) n = Div(r, t)",
}
HALVES = (
    "a = Slice(r, zero, four, last) b = Slice(r, four, eight, last) n = Neg(b) o = Concat<axis=-1>(n, a) "
    "p = Mul(r, cos) s = Mul(o, sin) t = Add(p, s)"
)
PAIRS = (
    "a = Slice(r, zero, four, last) b = Slice(r, four, eight, last) ac = Mul(a, c4) bs = Mul(b, s4) u = Sub(ac, bs) "
    "as = Mul(a, s4) bc = Mul(b, c4) w2 = Add(as, bc) t = Concat<axis=-1>(u, w2)"
)
INDICES = {"zero": np.array([0]), "four": np.array([4]), "eight": np.array([8]), "last": np.array([-1])}


def between_products(body: str, made: str) -> str:
    return f"(float[N,5,8] x) => (float[N,5,8] y) {{ [first] r = MatMul(x, w) {body} [second] y = MatMul({made}, v) }}"


FEEDS = {"x": normal(16, 5, 8, seed=3)}


def near(
    model: onnx.ModelProto, feeds: Arrays = FEEDS, least: float = 30, **settings: Any
) -> tuple[Prepared, QuantizationPlan, set[str]]:
    """Quantized, and near the float model: what was prepared, the plan, and the tensors that a QuantizeLinear reads."""
    prepared, plan, emitted = quantize_model(model, feeds, config(**settings))
    assert sqnr_db(run_onnx(model, feeds)["y"], run_onnx(emitted, feeds)["y"]) > least
    return prepared, plan, {node.input[0] for node in emitted.graph.node if node.op_type == "QuantizeLinear"}


@pytest.mark.parametrize(
    ("spelling", "target"),
    [
        ("torch", "onnxruntime_cpu"),
        ("reciprocal", "onnxruntime_cpu"),
        ("divided", "onnxruntime_gpu"),
        ("torch", "openvino"),
        ("reciprocal", "tensorrt"),
    ],
)
def test_rms_norm(spelling: str, target: str) -> None:
    model = make_model(between_products(f"{RMS[spelling]} z = Mul(n, g)", "z"), {**W, **ONES})
    prepared, plan, pairs = near(model, preset="int8_symmetric", target=target)
    assert [found.name for found in written_functions(prepared.graph)] == ["RMSNorm"]
    assert pairs & {"q", "m", "s", "t", "i", "n", "z"} == {"z"}
    square = next(node for node in prepared.graph if node.outputs[0].name == "q")
    if spelling == "reciprocal":
        assert plan.nodes[square.name or ""].reason == PART_OF_FUNCTION(function="RMSNorm")
        _, plan, _ = quantize_model(model, FEEDS, config(target=target, target_options={"float_functions": False}))
        assert not any(entry.reason and entry.reason.code == "part-of-function" for entry in plan.nodes.values())


@pytest.mark.parametrize(("body", "tables", "width"), [(HALVES, ("cos", "sin"), 8), (PAIRS, ("c4", "s4"), 4)])
def test_rotary_embedding(body: str, tables: tuple[str, str], width: int) -> None:
    inputs = "float[N,5,8] x, " + ", ".join(f"float[N,5,{width}] {name}" for name in tables)
    model = make_model(between_products(body, "t").replace("float[N,5,8] x", inputs), {**W, **INDICES})
    angles = np.outer(np.arange(5), 0.5 ** np.arange(width)) + np.zeros((16, 1, 1))
    turns = {tables[0]: np.cos(angles).astype(np.float32), tables[1]: np.sin(angles).astype(np.float32)}
    prepared, _, pairs = near(model, {**FEEDS, **turns})
    assert [found.name for found in written_functions(prepared.graph)] == ["rotary embedding"]
    assert not pairs & {"p", "s", "o", "n", "ac", "bs", "as", "bc", *tables}


@pytest.mark.parametrize("body", ["s = Sigmoid(r) z = Mul(r, s)", "k = Mul(r, beta) s = Sigmoid(k) z = Mul(s, r)"])
def test_silu_has_no_pair_inside(body: str) -> None:
    model = make_model(between_products(body, "z"), {**W, **ONES})
    for target in ("onnxruntime_gpu", "openvino", "tensorrt"):
        assert near(model, preset="int8_symmetric", target=target)[2] & {"k", "s", "z"} == {"z"}
    if "beta" not in body:  # operators that all have integer kernels are left to them
        assert near(model)[2] >= {"s", "z"}


def test_gelu_and_layer_norm_where_the_opset_has_none() -> None:
    gelu = "d = Div(r, root) f = Erf(d) h = Add(f, one) k = Mul(h, half) z = Mul(r, k)"
    norm = (
        "m = ReduceMean<axes=[-1]>(z) d2 = Sub(z, m) q = Mul(d2, d2) vv = ReduceMean<axes=[-1]>(q) s = Add(vv, e) "
        "t = Sqrt(s) n = Div(d2, t)"
    )
    weights = {**W, **ONES, "root": np.float32(2**0.5), "half": np.float32(0.5)}
    model = make_model(between_products(f"{gelu} {norm}", "n"), weights, opset=13)
    prepared, _ = prepare_with(model, opset=13)
    assert [found.name for found in written_functions(prepared.graph)] == ["GELU", "LayerNorm"]
    near(model, least=25, preset="int8", preparation={"opset": 13}, weight={"granularity": "per_tensor"})
