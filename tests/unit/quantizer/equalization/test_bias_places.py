"""Places for corrections, and the bias that is found layer after layer: the fixed point behind activation functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.contracts.algorithms import BiasCorrection
from service.contracts.config import QuantizationConfig
from tests.unit.quantizer.equalization.benches import Bench, float_outputs, quantized_outputs, used
from tests.unit.quantizer.toolbox import config, make_model, normal, op_types, run_onnx
from worker.quantizer.equalization.bias_correction import LayerSample, activation_behind, bias_shift, certainty
from worker.quantizer.equalization.correctable_biases import CorrectableBiases, make_places
from worker.quantizer.plan.parameters import Parameters

PLAIN = config(weight={"granularity": "per_tensor"})
NPU = config(preset="xint8", algorithms=[])
WEIGHTS = {
    "w": normal(4, 6, seed=1), "w2": normal(6, 6, seed=2), "kernel": normal(6, 4, 3, 3, seed=3),
    "line": normal(6, 4, 3, seed=4), "cube": normal(6, 4, 1, 1, 1, seed=4), "halves": normal(6, 2, 1, 1, seed=4),
    "deep": normal(4, 1, 3, 3, seed=2), "up": normal(4, 6, 2, 2, seed=4), "turned": normal(6, 4, seed=4),
    "b": normal(6, seed=5), "one": np.array([0.5], np.float32),
}  # fmt: skip

CREATED = {
    "bias of a convolution": ("[it] y = Conv(x, kernel)", (8, 4, 5, 5), "bias", ["Conv"]),
    "bias of a padded one": ("[it] y = Conv<pads=[1,1,1,1]>(x, kernel)", (8, 4, 5, 5), "bias", ["Conv"]),
    "bias in one dimension": ("[it] y = Conv(x, line)", (32, 4, 12), "bias", ["Conv"]),
    "bias in three dimensions": ("[it] y = Conv(x, cube)", (32, 4, 3, 3, 3), "bias", ["Conv"]),
    "bias of a grouped one": ("[it] y = Conv<group=2>(x, halves)", (32, 4, 5, 5), "bias", ["Conv"]),
    "bias of a depthwise one": ("[it] y = Conv<group=4, strides=[2,2]>(x, deep)", (20, 4, 6, 6), "bias", ["Conv"]),
    "bias of a transposed one": ("[it] y = ConvTranspose(x, up)", (8, 4, 5, 5), "bias", ["ConvTranspose"]),
    "bias of a gemm": ("[it] y = Gemm<transB=1>(x, turned)", (64, 4), "bias", ["Gemm"]),
    "gemm": ("[it] y = MatMul(x, w)", (8, 4), "Gemm in place", ["Gemm"]),
    "add": ("[it] y = MatMul(x, w)", (8, 3, 4), "Add", ["MatMul", "Add"]),
    "add in the middle": ("[it] m = MatMul(x, w) y = Softmax(m)", (8, 3, 4), "Add", ["MatMul", "Add", "Softmax"]),
    "term of one value": ("[it] m = MatMul(x, w) y = Add(m, one)", (8, 3, 4), "term", ["MatMul", "Add"]),
}


def places(it: Bench, settings: QuantizationConfig = PLAIN, *, insert_add: bool = True) -> CorrectableBiases:
    return make_places(it.draft, settings, insert_add=insert_add)


def bench(
    body: str, shape: tuple[int, ...], settings: QuantizationConfig = PLAIN, mode: str = "full", outputs: str = "y"
) -> Bench:
    fed, rank = (",".join(["N", *sizes]) for sizes in (map(str, shape[1:]), "abcd"[: len(shape) - 1]))
    made = ", ".join(f"float[{rank}] {name}" for name in outputs)
    model = make_model(f"(float[{fed}] x) => ({made}) {{ {body} }}", used(WEIGHTS, body))
    return Bench(model, {"x": normal(*shape, seed=9) + 1}, BiasCorrection(mode=mode), settings)


@pytest.mark.parametrize("case", CREATED)
def test_a_place_is_made_and_the_network_computes_what_it_did(case: str) -> None:
    body, shape, what, operators = CREATED[case]
    it = bench(body, shape)
    made = places(it)
    assert list(made.found) == ["it"] and not made.left
    assert any(what in kind for kind in made.created)
    assert [node.op_type for node in made.draft.graph] == operators
    np.testing.assert_array_equal(float_outputs(made.draft, it.feeds)["y"], float_outputs(it.draft, it.feeds)["y"])
    np.testing.assert_allclose(
        quantized_outputs(made.draft, it.feeds)["y"], quantized_outputs(it.draft, it.feeds)["y"], rtol=1e-5, atol=1e-5
    )
    assert op_types(it.model) != operators or len(it.draft.plan.biases) < len(made.draft.plan.biases) or what == "term"


@pytest.mark.parametrize("case", CREATED)
@pytest.mark.parametrize("mode", ["fast", "full"])
def test_the_correction_goes_there(case: str, mode: str) -> None:
    body, shape, *_ = CREATED[case]
    it = bench(body, shape, config(weight={"dtype": "int4", "granularity": "per_tensor"}), mode)
    change = it.apply()
    assert change.draft is not None and change.nodes == ("it",)
    before, corrected = (quantized_outputs(draft, it.feeds)["y"] for draft in (it.draft, change.draft))
    if "Softmax" in body:  # the output is not the layer's: its mean says nothing, but it has to have moved
        assert (corrected != before).any()
        return
    expected = float_outputs(it.draft, it.feeds)["y"].astype(np.float64)
    axis = -1 if "MatMul" in body else 1
    rest = tuple(k for k in range(expected.ndim) if k != axis % expected.ndim)

    def error(outputs: np.ndarray) -> float:
        return float(np.abs((outputs - expected).mean(axis=rest)).max())

    assert error(corrected) < 0.5 * error(before)


def test_places_that_others_read_or_that_are_quantized() -> None:
    gpu = config(target="tensorrt", activation={"dtype": "int8", "symmetric": True})
    it = bench("[a] y = Gemm(x, w2, b) s = Sin(x) [c] z = Gemm(s, w2, b)", (16, 6), gpu, outputs="yz")
    made = places(it, gpu)
    assert set(made.found) == {"a", "c"} and "copy of a shared bias" in made.created
    assert len({place.initializer for place in made.found.values()}) == 2
    for name, expected in float_outputs(it.draft, it.feeds).items():
        np.testing.assert_array_equal(float_outputs(made.draft, it.feeds)[name], expected)
    # a quantized term is put on a grid of its own
    made = places(bench("[it] m = MatMul(x, w) y = Add(m, b)", (8, 3, 4), NPU), NPU)
    place, parameters = made.found["it"], Parameters(made.draft.graph, made.draft.plan.copy())
    values = 100 * np.linspace(-3, 3, 6)
    place.add(parameters, values, np.zeros(6))
    step = float(place.of(parameters).grid.scale)
    np.testing.assert_allclose(place.of(parameters).present, values, atol=0.51 * step)
    assert step == 2.0 ** np.ceil(np.log2(300 / 127))


def test_what_takes_no_correction_says_so() -> None:
    made = places(bench("[it] y = MatMul(x, w)", (8, 3, 4)), insert_add=False)
    assert not made.found and "insert_add is off" in made.left["it"]
    made = places(bench("[it] m = MatMul(x, w) [next] y = MatMul(m, w2)", (8, 3, 4)))
    assert "is passed on as integers" in made.left["it"] and "next" in made.found
    # a layer that cannot be measured is told
    model = make_model(
        "(float[N,4] x) => (float[N,6] y) { [odd] m = Gemm<alpha=0.5>(x, w, b) r = Relu(m) [it] y = Gemm(r, v, b) }",
        {"w": normal(4, 6), "v": normal(6, 6, seed=1), "b": normal(6, seed=2)},
    )
    settings = config(weight={"dtype": "int4", "granularity": "per_tensor"})
    change = Bench(model, {"x": normal(32, 4)}, BiasCorrection(mode="full"), settings).apply()
    assert change.draft is not None and change.nodes == ("it",)
    assert "1 left alone: alpha differs from 1" in change.summary


@pytest.mark.parametrize("settings", [PLAIN, NPU, config(bias={"dtype": "float32"})], ids=["int32", "int8", "float"])
def test_what_is_put_is_what_is_there(settings: QuantizationConfig) -> None:
    made = places(bench("[it] y = Gemm(x, w, b)", (16, 4), settings), settings)
    place, parameters = made.found["it"], Parameters(made.draft.graph, made.draft.plan.copy())
    before = place.of(parameters)
    np.testing.assert_array_equal(before.unrounded, WEIGHTS["b"])
    np.testing.assert_array_equal(before.original, WEIGHTS["b"])
    values, shift = np.linspace(-3, 3, 6), np.linspace(1, 2, 6)
    place.add(parameters, values, shift)
    after = place.of(parameters)
    step = 0.0 if after.grid is None else float(np.max(after.grid.scale))
    np.testing.assert_allclose(after.present, values + shift, atol=0.51 * step + 1e-6)
    np.testing.assert_allclose(after.unrounded, after.present)
    np.testing.assert_array_equal(after.original, WEIGHTS["b"])


def relu6(values: np.ndarray) -> np.ndarray:
    return np.clip(values, 0, 6)


ROWS = np.arange(4000)


def same(values: np.ndarray) -> np.ndarray:
    return values


@given(st.floats(-1.5, 1.5), st.floats(0.5, 3), st.floats(-1, 5), st.integers(0, 1000))
def test_the_means_agree_behind_the_activation_function(off: float, spread: float, center: float, seed: int) -> None:
    values = (center + spread * np.random.default_rng(seed).standard_normal((4000, 1))).astype(np.float32)
    wanted = relu6(values).mean()
    moved = values + np.float32(off)
    assume(((moved > 0) & (moved < 6)).mean() > 0.03)  # of fewer values that follow the bias no mean is told
    shift = bias_shift(LayerSample(values, moved, ROWS[: len(values)]), relu6, relu6)
    found = relu6(values + np.float32(off) + shift.astype(np.float32)).mean()
    before = abs(relu6(values + np.float32(off)).mean() - wanted)
    assert abs(found - wanted) <= max(0.02 * before, 1e-3)


def test_the_shift_at_the_ends_of_what_can_be_told() -> None:
    expected, found = normal(500, 6, seed=1), normal(500, 6, seed=2) + 3
    shift = bias_shift(
        LayerSample(expected, found, ROWS[: len(found)]), same, same
    )  # without a function: the difference of the means
    np.testing.assert_allclose(shift, expected.mean(axis=0) - found.mean(axis=0), atol=1e-4)
    for level in (-50.0, 50.0):  # channels that clip throughout are left alone
        values = np.full((100, 2), level, np.float32) + normal(100, 2)
        np.testing.assert_array_equal(
            bias_shift(LayerSample(values + 10, values, ROWS[: len(values)]), relu6, relu6), 0
        )
    # half of the values lie on a cliff: a fixed-point step overshoots there, and ends no further off than it began
    values = np.concatenate([np.full((500, 1), -0.01), np.full((500, 1), 5.0)]).astype(np.float32)
    expected = values + np.float32(0.5)
    shift = bias_shift(LayerSample(expected, values, ROWS[: len(values)]), relu6, relu6)
    wanted = relu6(expected).mean()
    assert abs(relu6(values + shift).mean() - wanted) <= abs(relu6(values).mean() - wanted)


def test_what_the_choice_of_samples_makes_of_a_mean_is_held_back() -> None:
    random, owners = np.random.default_rng(0), np.repeat(np.arange(30), 7)
    # of every sample one number, which its positions share: 30 of them, not 210, tell the mean
    noise = random.standard_normal((30, 4000)).astype(np.float32)[owners]
    kept = certainty(noise, owners)
    assert ((kept >= 0.0) & (kept < 1.0)).all()
    mean = noise.mean(axis=0)
    for truth in (0.0, 0.2, 5.0):  # the shrunk mean is nearer to the true one than the mean
        shrunk = (mean + truth) * certainty(noise + np.float32(truth), owners)
        assert np.square(shrunk - truth).mean() < 1.02 * np.square(mean).mean()
    assert (kept == 0.0).mean() == pytest.approx(0.68, abs=0.05)  # as often as a mean is within one standard error of 0
    np.testing.assert_array_equal(certainty(np.full((210, 2), 3.0, np.float32), owners), 1.0)
    np.testing.assert_array_equal(certainty(noise[:21], owners[:21]), 1.0)  # three samples tell no error
    np.testing.assert_array_equal(certainty(np.zeros((210, 2), np.float32), owners), 0.0)


FUNCTIONS = {
    "none": "y = Identity(c)", "relu": "y = Relu(c)", "relu6": "y = Clip(c, zero, six)",
    "leaky relu": "y = LeakyRelu<alpha=0.25>(c)", "prelu": "y = PRelu(c, slope)",
}  # fmt: skip


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
