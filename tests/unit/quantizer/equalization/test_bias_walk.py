"""Bias correction layer after layer: the fixed point behind activation functions, and what it is measured on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.contracts.algorithms import BiasCorrection
from tests.unit.quantizer.equalization.benches import Bench, float_outputs, quantized_outputs, used
from tests.unit.quantizer.toolbox import config, make_model, normal, run_onnx
from worker.quantizer.equalization.bias_correction.creation import make_places
from worker.quantizer.equalization.bias_correction.full import Sample, activation_behind, bias_shift, take_sample
from worker.quantizer.operators.linear import product_view
from worker.quantizer.walk import Feed, Walk

NPU = config(preset="xint8", algorithms=[])


def relu6(values: np.ndarray) -> np.ndarray:
    return np.clip(values, 0, 6)


def same(values: np.ndarray) -> np.ndarray:
    return values


@given(st.floats(-1.5, 1.5), st.floats(0.5, 3), st.floats(-1, 5), st.integers(0, 1000))
def test_the_means_agree_behind_the_activation_function(off: float, spread: float, center: float, seed: int) -> None:
    values = (center + spread * np.random.default_rng(seed).standard_normal((4000, 1))).astype(np.float32)
    wanted = relu6(values).mean()
    moved = values + np.float32(off)
    assume(((moved > 0) & (moved < 6)).mean() > 0.03)  # of fewer values that follow the bias no mean is told
    shift = bias_shift(Sample(values, moved), relu6, relu6)
    found = relu6(values + np.float32(off) + shift.astype(np.float32)).mean()
    before = abs(relu6(values + np.float32(off)).mean() - wanted)
    assert abs(found - wanted) <= max(0.02 * before, 1e-3)


def test_the_shift_at_the_ends_of_what_can_be_told() -> None:
    expected, found = normal(500, 6, seed=1), normal(500, 6, seed=2) + 3
    shift = bias_shift(Sample(expected, found), same, same)  # without a function: the difference of the means
    np.testing.assert_allclose(shift, expected.mean(axis=0) - found.mean(axis=0), atol=1e-4)
    for level in (-50.0, 50.0):  # channels that clip throughout are left alone
        values = np.full((100, 2), level, np.float32) + normal(100, 2)
        np.testing.assert_array_equal(bias_shift(Sample(values + 10, values), relu6, relu6), 0)
    # half of the values lie on a cliff: a fixed-point step overshoots there, and ends no further off than it began
    values = np.concatenate([np.full((500, 1), -0.01), np.full((500, 1), 5.0)]).astype(np.float32)
    expected = values + np.float32(0.5)
    shift = bias_shift(Sample(expected, values), relu6, relu6)
    wanted = relu6(expected).mean()
    assert abs(relu6(values + shift).mean() - wanted) <= abs(relu6(values).mean() - wanted)


FUNCTIONS = {
    "none": "y = Identity(c)",
    "relu": "y = Relu(c)",
    "relu6": "y = Clip(c, zero, six)",
    "leaky relu": "y = LeakyRelu<alpha=0.25>(c)",
    "prelu": "y = PRelu(c, slope)",
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_the_function_behind_a_layer_is_known(case: str) -> None:
    weights = {
        "w": normal(6, 3, 3, 3, seed=1),
        "b": normal(6, seed=2),
        "zero": np.array(0, np.float32),
        "six": np.array(6, np.float32),
        "slope": np.linspace(0.1, 0.6, 6, dtype=np.float32).reshape(6, 1, 1),
    }
    text = f"(float[N,3,6,6] x) => (float[N,6,4,4] y, float[N,6,4,4] c) {{ [it] c = Conv(x, w, b) {FUNCTIONS[case]} }}"
    feeds = {"x": normal(16, 3, 6, 6, seed=3)}
    outputs = run_onnx(make_model(text, weights), feeds)
    model = make_model(text.replace(", float[N,6,4,4] c", ""), weights)
    it = Bench(model, feeds, BiasCorrection(mode="full"), NPU)
    node = next(node for node in it.draft.graph if node.name == "it")
    activation, limited = activation_behind(node, it.draft.plan)
    before, expected = (np.moveaxis(outputs[name], 1, -1).reshape(-1, 6) for name in "cy")
    np.testing.assert_allclose(activation(before), expected, rtol=1e-5, atol=1e-6)
    grid = it.draft.plan.activations["y"].quantization
    ends = [(limit - float(grid.zero_point)) * float(grid.scale) for limit in grid.at_run_time().limits]
    np.testing.assert_allclose(limited(1000 * before), np.clip(activation(1000 * before), *ends), rtol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        "Conv(x, w, b)",
        "Conv<group=2, pads=[1,1,1,1]>(x, grouped, b)",
        "Conv<group=4, strides=[2,2], pads=[1,1,1,1]>(x, deep)",
        "Gemm(x, matrix, b)",
    ],
)
def test_the_sample_is_taken_from_the_outputs(layer: str) -> None:
    """Of few positions all are taken: the channel means are those that onnxruntime computes."""
    weights = {
        "w": normal(8, 4, 3, 3, seed=1),
        "grouped": normal(8, 2, 3, 3, seed=2),
        "deep": normal(4, 1, 3, 3, seed=2),
        "matrix": normal(4, 8, seed=3),
        "b": normal(8, seed=4),
    }
    shape = (20, 4) if "Gemm" in layer else (20, 4, 6, 6)
    fed, made = ("N,4", "N,8") if "Gemm" in layer else ("N,4,6,6", "N,a,b,c")
    model = make_model(f"(float[{fed}] x) => (float[{made}] y) {{ [it] y = {layer} }}", used(weights, layer))
    settings = config(weight={"granularity": "per_tensor"})
    it = Bench(model, {"x": normal(*shape, seed=9)}, BiasCorrection(mode="full"), settings)
    made = make_places(it.draft, settings, insert_add=True)
    with Walk(made.draft.prepared, made.draft.plan, Feed.of(it.toolkit)) as walk:
        (visit,) = list(walk.visits())
        sample = take_sample(visit, product_view(visit.node), made.found["it"], walk.parameters)
    for values, outputs in (
        (sample.expected, float_outputs(it.draft, it.feeds)["y"]),
        (sample.found, quantized_outputs(it.draft, it.feeds)["y"]),
    ):
        rows = np.moveaxis(outputs, 1, -1).reshape(-1, outputs.shape[1])
        assert values.shape == rows.shape
        np.testing.assert_allclose(values.mean(axis=0), rows.mean(axis=0), rtol=1e-3, atol=2e-2)


def test_a_layer_that_cannot_be_measured_is_told() -> None:
    model = make_model(
        "(float[N,4] x) => (float[N,6] y) { [odd] m = Gemm<alpha=0.5>(x, w, b) r = Relu(m) [it] y = Gemm(r, v, b) }",
        {"w": normal(4, 6), "v": normal(6, 6, seed=1), "b": normal(6, seed=2)},
    )
    settings = config(weight={"dtype": "int4", "granularity": "per_tensor"})
    change = Bench(model, {"x": normal(32, 4)}, BiasCorrection(mode="full"), settings).apply()
    assert change.draft is not None and change.nodes == ("it",)
    assert "1 left alone: alpha differs from 1" in change.summary
