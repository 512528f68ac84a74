"""Which axis weights are rounded along, which are shared, and which biases can be int32."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.quantizer.toolbox import (
    Arrays,
    config,
    make_model,
    normal,
    plan_for,
    quantize_model,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.numerics.granularity import PER_TENSOR, PerAxis
from worker.quantizer.plan.journal import Journal
from worker.quantizer.plan.types import QuantizationPlan

CONV = {"w": normal(4, 3, 3, 3), "w2": normal(4, 4, 3, 3), "fc": normal(4, 5), "b": normal(4)}


def plan_of(
    text: str, weights: Arrays | None = None, opset: int = 17, journal: Journal | None = None, **settings: object
) -> QuantizationPlan:
    model = make_model(text, CONV if weights is None else weights, opset=opset)
    return plan_for(model, config(**settings), journal)[1]


@pytest.mark.parametrize(
    ("call", "shape", "axis"),
    [
        ("Conv(i, k)", (6, 4, 3, 3), 0),
        ("Conv<group=2>(i, k)", (6, 2, 3, 3), 0),
        ("ConvTranspose(i, k)", (4, 6, 3, 3), 1),
        ("ConvTranspose<group=2>(i, k)", (4, 3, 3, 3), 1),
        ("ConvTranspose<group=4>(i, k)", (4, 1, 3, 3), 0),
        ("ConvTranspose<group=4>(i, k)", (4, 2, 3, 3), 0),
        ("Gemm(x, k)", (4, 6), 1),
        ("Gemm<transB=1>(x, k)", (6, 4), 0),
        ("MatMul(x, k)", (4, 6), 1),
        ("MatMul(x, k)", (3, 4, 6), None),
    ],
)
def test_the_channel_axis_of_weights(call: str, shape: tuple[int, ...], axis: int | None) -> None:
    rank = ",".join("ABCD"[: len(shape)])
    text = f"(float[2,4] x, float[1,4,9,9] i) => (float[{rank}] y) {{ y = {call} }}"
    for settings, wanted in (
        ({}, PER_TENSOR if axis is None else PerAxis(axis)),
        ({"weight": {"granularity": "per_tensor"}}, PER_TENSOR),
    ):
        assert plan_of(text, {"k": normal(*shape)}, **settings).weights["k"].granularity == wanted


@pytest.mark.parametrize("per_group", [1, 2])
def test_depthwise_transposed_channels_keep_scales_and_biases_of_their_own(per_group: int) -> None:
    weight = normal(4, per_group, 3, 3) * np.float32([1e-3, 1, 30, 500]).reshape(4, 1, 1, 1)
    bias = normal(4 * per_group, scale=0.01)
    model = make_model(
        "(float[1,4,9,9] x) => (float[A,B,C,D] y) { t = ConvTranspose<group=4>(x, k, b) y = Identity(t) }",
        {"k": weight, "b": bias},
    )
    feeds = {"x": normal(1, 4, 9, 9)}
    wanted = config(include=[{"op_type": "ConvTranspose"}], activation={"dtype": "int16"})
    _, plan, quantized = quantize_model(model, feeds, wanted)
    grid, entry = plan.weights["k"].quantization, next(iter(plan.biases.values()))
    assert grid.scale.shape == (4,)
    for group in range(4):
        assert sqnr_db(weight[group], grid.fake(weight)[group]) > 30
    np.testing.assert_allclose(
        entry.quantization.scale, np.repeat(grid.scale, per_group) * plan.activations["x"].quantization.scale
    )
    assert sqnr_db(run_onnx(model, feeds)["y"], run_onnx(quantized, feeds)["y"]) > 30


@pytest.mark.parametrize(("second", "shared"), [("Gemm(s, k)", True), ("Gemm<transB=1>(s, k)", False)])
def test_a_shared_weight_is_planned_once_and_along_one_axis(second: str, shared: bool) -> None:
    journal = Journal()
    text = f"(float[2,5] x) => (float[2,5] y, float[2,5] z) {{ y = Gemm(x, k) s = Sin(x) z = {second} }}"
    plan = plan_of(text, {"k": normal(5, 5)}, journal=journal)
    assert list(plan.weights) == ["k"]
    assert plan.weights["k"].granularity == (PerAxis(1) if shared else PER_TENSOR)
    assert ["'k' is read along different axes" in note for note in journal.notes] == [True] * (not shared)


BIASES = {
    "Gemm(x, fc, v)": None,
    "Gemm(x, fc, row)": None,
    "Gemm<alpha=0.5>(x, fc, v)": "alpha or beta",
    "Gemm<beta=2.0>(x, fc, v)": "alpha or beta",
    "Gemm(x, fc, one)": "shape [1]",
    "Gemm(x, fc, column)": "shape [5, 1]",
    "Gemm(x, fc, full)": "shape [5, 5]",
    "Gemm(x, fc, given)": "not constant",
    "Gemm(x, fc, bad)": "NaN or Inf",
}


@pytest.mark.parametrize("call", BIASES)
def test_biases_that_cannot_be_int32_say_why(call: str) -> None:
    plan = plan_of(
        f"(float[5,4] x, float[5] given) => (float[5,5] y) {{ [it] y = {call} }}",
        {
            **CONV,
            "v": normal(5),
            "row": normal(1, 5),
            "one": normal(1),
            "column": normal(5, 1),
            "full": normal(5, 5),
            "bad": np.full(5, np.nan, np.float32),
        },
    )
    assert plan.nodes["it"].quantized
    reason = plan.biases["it"].reason
    assert (reason is None) == (BIASES[call] is None)
    assert reason is None or BIASES[call] in reason.words
