"""Limits per channel behind an activation function: quantized only behind them, and kept to on integers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from tests.unit.quantizer.toolbox import config, make_model, normal, plan_for, quantize_model, rng, run_onnx
from worker.quantizer.emit import emit
from worker.quantizer.plan.types import Role

CHANNELS = 6
# What comes before the limit is far out of range in some channels.
GAINS = np.array([1, 1, 5, 40, 1000, 60_000], np.float32)
LIMITS = np.array([0.5, 1.0, 2.0, 3.0, 6.0, 6.0], np.float32).reshape(1, -1, 1, 1)
WEIGHTS = {
    "w": normal(CHANNELS, 3, 1, 1, seed=1) * GAINS.reshape(-1, 1, 1, 1), "b": normal(CHANNELS, seed=2) * GAINS,
    "h": LIMITS, "k": normal(4, CHANNELS, 3, 3, seed=3),
}  # fmt: skip
HEAD = "(float[N,3,7,7] x) => (float[N,4,5,5] y) { [c] a = Conv(x, w, b) [act] r = Relu(a) "
TAIL = "[next] y = Conv(m, k) }"
FEEDS = {"x": rng(5).standard_normal((8, 3, 7, 7)).astype(np.float32)}
PER_CHANNEL = {"weight": {"granularity": "per_channel"}}


def limited(limit: str = "[cap] m = Min(r, h) ") -> onnx.ModelProto:
    return make_model(HEAD + limit + TAIL, WEIGHTS)


@pytest.mark.parametrize("target", ["onnxruntime_cpu", "openvino", "qnn", "amd_npu_cnn"])
def test_the_pair_stands_behind_the_limit(target: str) -> None:
    for limit in ("[cap] m = Min(r, h) ", "[cap] m = Min(h, r) "):
        _, plan = plan_for(limited(limit), config(target=target))
        assert plan.nodes["cap"].role is plan.nodes["act"].role is Role.FUSED
        assert "m" in plan.activations and not {"a", "r"} & set(plan.activations)


def test_any_other_limit_is_planned_as_before() -> None:
    text = "(float[N,3,7,7] x) => (float[N,4,5,5] y) { [c] r = Conv(x, w, b) [cap] m = Min(r, h) " + TAIL
    _, plan = plan_for(make_model(text, WEIGHTS), config())  # behind the linear node itself it is fused too
    assert plan.nodes["cap"].role is Role.FUSED and "r" not in plan.activations
    for other in (
        "[cap] m0 = Min(r, h) [sum] m = Add(m0, r) ",  # read elsewhere
        "[one] g = Constant<value = float[1] {2.0}>() [cap] m = Min(r, g) ",  # one limit for all
    ):
        _, plan = plan_for(limited(other), config())
        assert plan.nodes["cap"].role is None and plan.nodes["cap"].reason.code == "no-integer-kernel"


def test_a_limit_goes_where_the_user_and_the_node_before_it_say() -> None:
    _, plan = plan_for(limited(), config(include=[{"node": name} for name in ("c", "act", "next")]))
    assert plan.nodes["cap"].role is Role.FUSED
    _, plan = plan_for(limited(), config(exclude=[{"node": "c"}]))
    assert plan.nodes["cap"].role is None
    _, plan = plan_for(limited(), config(exclude=[{"node": "cap"}]))
    assert plan.nodes["cap"].role is None and "r" in plan.activations


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16"])
def test_the_range_is_the_limited_one(dtype: str, tmp_path: Path) -> None:
    _, plan, emitted = quantize_model(limited(), FEEDS, config(activation={"dtype": dtype}, **PER_CHANNEL))
    grid = plan.activations["m"].quantization
    assert float(grid.scale) * (2 ** (16 if "16" in dtype else 8) - 1) == pytest.approx(6.0, rel=0.01)
    limit = next(node for node in emitted.graph.node if node.op_type == "Min")
    before = next(node for node in emitted.graph.node if limit.input[0] in node.output)
    # the runtime has a Min for integers of 8 bits only, and convolves integers before it
    assert before.op_type == ("Relu" if dtype == "uint16" else "QuantizeLinear")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(emitted.SerializeToString(), options, providers=["CPUExecutionProvider"])
    counts = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert dtype != "uint8" or (counts["QLinearConv"] == 2 and counts["Conv"] == counts["Relu"] == 0)


@pytest.mark.parametrize("op_type", ["Min", "Max"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_limits_on_integers_give_what_limits_on_floats_give(op_type: str, dtype: str) -> None:
    model = limited(f"[cap] m = {op_type}(r, h) ")
    prepared, plan, emitted = quantize_model(model, FEEDS, config(activation={"dtype": dtype}, **PER_CHANNEL))
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in emitted.graph.initializer}
    np.testing.assert_array_equal(stored["m_limit"], plan.activations["m"].quantization.quantize(LIMITS))
    plan.integer_limits = False
    plain = ir.to_proto(emit(ir.from_proto(ir.to_proto(prepared.model)), plan).model)
    assert "m_limit" not in {tensor.name for tensor in plain.graph.initializer}
    for optimized in (False, True):
        ours, theirs = (run_onnx(one, FEEDS, optimized=optimized)["y"] for one in (emitted, plain))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
