"""SmoothQuant's factors: taken in by constants, against onnxruntime; and searched for, against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.reason import Reason
from service.contracts.specs import ActivationSpec, WeightSpec
from tests.unit.quantizer.equalization.benches import used
from tests.unit.quantizer.toolbox import batchnorm_weights, make_model, normal, prepare_proto, rng, run_onnx
from worker.quantizer.equalization.channel_graph import ChannelGraph, Folding
from worker.quantizer.equalization.channel_scaling import apply_folds
from worker.quantizer.equalization.smoothing_search import (
    ProducingLayer,
    QuantizedMatrix,
    SmoothingLoss,
    SmoothingProblem,
    activation_and_weight_aware,
    activation_aware,
    search,
    smoothing,
)
from worker.quantizer.graph.values import Names
from worker.quantizer.numerics.integer import PER_TENSOR, PerAxis
from worker.quantizer.ops.linear import weight_layout
from worker.quantizer.plan.types import WeightPlan

HEADS, WIDTH = 2, 3
CHANNELS = HEADS * WIDTH

LAYER_NORM = "n = LayerNormalization<axis=-1>(x, scale, shift)"
SPLIT_HEADS = (
    "q = MatMul(x, w) v0 = MatMul(x, w2) v1 = Reshape(v0, split) v = Transpose<perm=[0,2,1,3]>(v1) "
    "q1 = Reshape(q, split) k = Transpose<perm=[0,2,3,1]>(q1) q2 = Transpose<perm=[0,2,1,3]>(q1) s = MatMul(q2, k) "
    "a = Softmax<axis=-1>(s) o = MatMul(a, v) p = Transpose<perm=[0,2,1,3]>(o) y = Reshape(p, merge)"
)
TOKENS = "(float[N,5,6] x) => (float[N,5,6] y)"
IMAGE = "(float[N,6,4,4] x)"
SHAPES = {
    "w": (6, 6), "w2": (6, 6), "b": (6,), "shift": (6,), "kernel": (6, 6, 1, 1), "grouped": (6, 3, 2, 2),
    "cls": (1, 1, 6), "five": (5, 5), "single": (1, 1), "narrow": (6, 3),
}  # fmt: skip
WEIGHTS = {
    **{name: normal(*shape, seed=seed) for seed, (name, shape) in enumerate(SHAPES.items())},
    "scale": normal(6, seed=33) + 2, "half": np.array(0.5, np.float32), "zero": np.array(0, np.float32),
    "slope": np.full((6,), 0.2, np.float32), "slopes": np.full((6, 1, 1), 0.2, np.float32),
    "split": np.array([0, 0, HEADS, WIDTH], np.int64), "merge": np.array([0, 0, CHANNELS], np.int64),
    "tokens": np.array([2, 1, 6], np.int64), "first": np.array(0, np.int64), "starts": np.array([1], np.int64),
    "ends": np.array([3], np.int64), "axis1": np.array([1], np.int64), "pads": np.array([0, 1, 0, 0, 0, 0], np.int64),
    "shape": np.array([2, 5, 6], np.int64), "axis2": np.array([2], np.int64),
    "apart": np.array([1, 1, 2, 3], np.int64), "one_head": np.array([0, 0, 1, 3], np.int64),
    "copies": np.array([1, 1, 2, 1, 1], np.int64), "two": np.array([2], np.int64), "three": np.array([3], np.int64),
    **batchnorm_weights(6),
}  # fmt: skip
BATCH_NORM = "c = BatchNormalization(x, bn_scale, bn_bias, bn_mean, bn_var)"

# Each ends in y, whose last axis is scaled.
FOLDED = {
    "layer normalization": f"{TOKENS} {{ y = LayerNormalization<axis=-1>(x, scale, shift) }}",
    "layer normalization without bias": f"{TOKENS} {{ y = LayerNormalization<axis=-1>(x, scale) }}",
    "scalar factor": f"{TOKENS} {{ t = Tanh(x) y = Mul(half, t) }}",
    "factor per channel": f"{TOKENS} {{ t = Tanh(x) y = Mul(t, scale) }}",
    "constant divisor": f"{TOKENS} {{ t = Tanh(x) y = Div(t, half) }}",
    "constant dividend": f"{TOKENS} {{ t = Exp(x) y = Div(scale, t) }}",
    "factor and term": f"{TOKENS} {{ t = Tanh(x) m = Mul(t, scale) y = Add(m, shift) }}",
    "minuend": f"{TOKENS} {{ t = Tanh(x) m = Mul(t, scale) y = Sub(shift, m) }}",
    "product of which one side is linear": f"{TOKENS} {{ t = Sigmoid(x) v = MatMul(x, w) y = Mul(t, v) }}",
    "matrix product": f"{TOKENS} {{ y = MatMul(x, w) }}",
    "matrix product and term": f"{TOKENS} {{ m = MatMul(x, w) y = Add(b, m) }}",
    "two branches": f"{TOKENS} {{ m = MatMul(x, w) {LAYER_NORM} y = Add(m, n) }}",
    "gemm": "(float[N,6] x) => (float[N,6] y) { y = Gemm<alpha=0.5>(x, w, b) }",
    "gemm transposed": "(float[N,6] x) => (float[N,6] y) { y = Gemm<transB=1, beta=2.0>(x, w, b) }",
    "activations": f"{TOKENS} {{ m = MatMul(x, w) r = Relu(m) l = LeakyRelu(r) p = PRelu(l, slope) "
    "y = Clip(p, zero) }",
    "attention": f"{TOKENS} {{ {SPLIT_HEADS} }}",
    "classifier": f"{IMAGE} => (float[N,6] y) {{ c = Conv(x, kernel, b) r = Relu(c) g = GlobalAveragePool(r) "
    "y = Flatten(g) }",
    "batch normalization": f"{IMAGE} => (float[N,6] y) {{ s = Sin(x) {BATCH_NORM.replace('(x', '(s')} "
    "p = PRelu(c, slopes) y = ReduceMean<axes=[2,3], keepdims=0>(p) }",
    "instance normalization": f"{IMAGE} => (float[N,4,4,6] y) {{ i = InstanceNormalization(x, scale, shift) "
    "y = Transpose<perm=[0,2,3,1]>(i) }",
    "grouped transposed convolution": f"{IMAGE} => (float[N,8,8,6] y) {{ c = ConvTranspose<group=2, strides=[2,2]>"
    "(x, grouped, b) m = MaxPool<kernel_shape=[1,1]>(c) y = Transpose<perm=[0,2,3,1]>(m) }",
    "class token": "(float[2,5,6] x) => (float[2,6,6] y) { m = MatMul(x, w) e = Expand(cls, tokens) "
    "y = Concat<axis=1>(e, m) }",
    "joined channels": "(float[N,5,6] x) => (float[N,5,12] y) { m = MatMul(x, w) t = Tanh(x) k = Mul(t, half) "
    "y = Concat<axis=-1>(m, k) }",
    "one token of many": "(float[N,5,6] x) => (float[N,6] y) { m = MatMul(x, w) y = Gather<axis=1>(m, first) }",
    "some tokens": "(float[N,5,6] x) => (float[N,2,6] y) { m = MatMul(x, w) y = Slice(m, starts, ends, axis1) }",
    "padded tokens": "(float[N,5,6] x) => (float[N,6,6] y) { m = MatMul(x, w) y = Pad(m, pads) }",
    "mean over the channels": "(float[N,5,6] x) => (float[N,5,1] y) { m = MatMul(x, w) y = ReduceMean<axes=[2]>(m) }",
    # grouped queries: one head's values serve two heads, which cannot be scaled apart
    "keys shared by several heads": f"{TOKENS} {{ v = MatMul(x, narrow) u = Unsqueeze(v, axis2) e = Expand(u, apart) "
    "y = Reshape(e, merge) }",
    "keys shared by several heads, of any number of positions": "(float[N,S,6] x) => (float[N,S,6] y) { "
    "v = MatMul(x, narrow) h = Reshape(v, one_head) t = Transpose<perm=[0,2,1,3]>(h) u = Unsqueeze(t, axis2) "
    "s = Shape(u) r = Mul(s, copies) e = Expand(u, r) n = Shape<start=0,end=1>(x) l = Shape<start=1,end=2>(x) "
    "i = Concat<axis=0>(n, two, l, three) k = Reshape(e, i) m = Transpose<perm=[0,2,1,3]>(k) y = Reshape(m, merge) }",
    "squeezed": "(float[N,6] x) => (float[N,6] y) { u = Unsqueeze(x, axis1) m = MatMul(u, w) y = Squeeze(m, axis1) }",
}

REFUSED = {
    "an upper limit": f"{TOKENS} {{ m = MatMul(x, w) y = Clip(m, zero, half) }}",
    "a lower limit that is not 0": f"{TOKENS} {{ m = MatMul(x, w) y = Clip(m, half) }}",
    "an operator that does not commute": f"{TOKENS} {{ m = MatMul(x, w) y = Tanh(m) }}",
    "a graph input": f"{TOKENS} {{ y = Relu(x) }}",
    "another reader": "(float[N,5,6] x) => (float[N,5,6] y, float[N,5,6] z) { m = MatMul(x, w) y = Relu(m) "
    "z = Sin(m) }",
    "a graph output on the way": "(float[N,5,6] x) => (float[N,5,6] y, float[N,5,6] m) { m = MatMul(x, w) "
    "y = Relu(m) }",
    "one branch of two": f"{TOKENS} {{ m = MatMul(x, w) t = Tanh(x) y = Add(m, t) }}",
    "a square": f"{TOKENS} {{ m = MatMul(x, w) y = Mul(m, m) }}",
    "channels that are positions of another tensor": "(float[N,6,5] x) => (float[N,5,6] y) { m = MatMul(x, five) "
    "y = Transpose<perm=[0,2,1]>(m) }",
    "one value for many channels": "(float[2,5,1] x) => (float[2,5,6] y) { m = MatMul(x, single) "
    "y = Expand(m, shape) }",
}


def folding_of(model: onnx.ModelProto) -> tuple[ir.Model, Folding | None]:
    prepared, _ = prepare_proto(model)
    value = prepared.graph.outputs[0]
    assert value.shape is not None and isinstance(value.shape[-1], int)
    found = ChannelGraph(prepared.graph).folding(value, value.shape[-1], lambda node: False)
    return prepared.model, found if isinstance(found, Folding) else None


def put(graph: ir.Graph, folding: Folding, factors: np.ndarray) -> None:
    apply_folds(graph, folding.folds, factors, Names(graph))


def check_folds(model: onnx.ModelProto, shape: tuple[int, ...]) -> Folding:
    prepared, folding = folding_of(model)
    assert folding is not None
    factors = folding.settled(np.exp(rng(5).uniform(-2, 2, prepared.graph.outputs[0].shape[-1])))
    feeds = {"x": normal(*shape, seed=9)}
    expected = run_onnx(ir.to_proto(prepared), feeds)["y"] * factors
    put(prepared.graph, folding, factors)
    got = run_onnx(ir.to_proto(prepared), feeds)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(axis=None))
    return folding


def fed_shape(text: str) -> tuple[int, ...]:
    inside = text[text.index("[") + 1 : text.index("]")]
    return tuple({"N": 2, "S": 5}.get(part) or int(part) for part in inside.split(","))


@pytest.mark.parametrize("case", FOLDED)
def test_the_tensor_comes_out_scaled(case: str) -> None:
    text = FOLDED[case]
    folding = check_folds(make_model(text, used(WEIGHTS, text)), fed_shape(text))
    assert "y" in folding.tensors and folding.folds


def test_channels_of_one_constant_share_the_geometric_mean_of_their_factors() -> None:
    text = FOLDED["keys shared by several heads"]
    _, folding = folding_of(make_model(text, used(WEIGHTS, text)))
    assert folding is not None
    np.testing.assert_allclose(folding.settled(np.array([1.0, 2, 3, 16, 2, 27])), [4, 2, 9, 4, 2, 9])


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_commute_is_refused(case: str) -> None:
    assert folding_of(make_model(REFUSED[case], used(WEIGHTS, REFUSED[case])))[1] is None


def test_a_constant_that_others_read_is_copied_and_a_refused_layer_takes_nothing_in() -> None:
    model = make_model(
        "(float[N,5,6] x) => (float[N,5,6] y, float[N,5,6] z) { t = Tanh(x) y = Mul(t, scale) z = Add(x, scale) }",
        {"scale": WEIGHTS["scale"]},
    )
    prepared, folding = folding_of(model)
    feeds = {"x": normal(2, 5, 6)}
    before = run_onnx(ir.to_proto(prepared), feeds)
    put(prepared.graph, folding, np.full(6, 3.0))
    after = run_onnx(ir.to_proto(prepared), feeds)
    np.testing.assert_allclose(after["y"], 3 * before["y"], rtol=1e-6)
    np.testing.assert_array_equal(after["z"], before["z"])
    # a refused layer takes nothing in
    prepared, _ = prepare_proto(make_model(f"{TOKENS} {{ y = MatMul(x, w) }}", {"w": WEIGHTS["w"]}))
    found = ChannelGraph(prepared.graph).folding(prepared.graph.outputs[0], 6, lambda node: node.op_type == "MatMul")
    assert isinstance(found, Reason) and found.code == "channels-not-passed-on"


STEPS = {
    "relu": "{1} = Relu({0})",
    "leaky": "{1} = LeakyRelu<alpha=0.3>({0})",
    "factor": "{1} = Mul({0}, scale)",
    "term": "{1} = Add({0}, shift)",
    "divisor": "{1} = Div({0}, scale)",
    "heads": "a{1} = Reshape({0}, split) b{1} = Transpose<perm=[0,2,1,3]>(a{1}) c{1} = Relu(b{1}) "
    "d{1} = Transpose<perm=[0,2,1,3]>(c{1}) {1} = Reshape(d{1}, merge)",
    "there and back": "a{1} = Transpose<perm=[2,0,1]>({0}) {1} = Transpose<perm=[1,2,0]>(a{1})",
    "residual": "a{1} = MatMul(x, w) {1} = Add({0}, a{1})",
    "linear": "{1} = MatMul({0}, w)",
    "normalization": "{1} = LayerNormalization<axis=-1>({0}, scale, shift)",
}


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=6), st.sampled_from(["linear", "normalization"]))
def test_random_chains_come_out_scaled(steps: list[str], first: str) -> None:
    text, source = "", "x"
    for k, name in enumerate([first, *steps]):
        text += STEPS[name].format(source, f"t{k}") + " "
        source = f"t{k}"
    check_folds(make_model(f"{TOKENS} {{ {text} y = Identity({source}) }}", used(WEIGHTS, text)), (2, 5, 6))


INPUTS = 8
FLOAT_SCALES = ActivationSpec(dtype="uint8", symmetric=False, calibration={"method": "minmax"})
POWERS = ActivationSpec(dtype="int8", symmetric=True, scale="power_of_two", calibration={"method": "mse"})


def weight_plan(axis: int | None, scale: str = "float32") -> WeightPlan:
    granularity = "per_tensor" if axis is None else "per_channel"
    spec = WeightSpec(dtype="int8", symmetric=True, granularity=granularity, scale=scale)
    return WeightPlan("w", "it", spec, PER_TENSOR if axis is None else PerAxis(axis))


def stored(array: np.ndarray, plan: WeightPlan, *, transposed: bool = False) -> QuantizedMatrix:
    layout = weight_layout("Gemm", array.shape, {"transB": int(transposed)})
    assert layout is not None
    return QuantizedMatrix(array, plan, layout)


def matrix(outputs: int, seed: int, axis: int | None = None, scale: str = "float32") -> QuantizedMatrix:
    return stored(normal(INPUTS, outputs, seed=seed), weight_plan(axis, scale))


def problem(
    rows: np.ndarray, readers: list[QuantizedMatrix], spec: ActivationSpec = FLOAT_SCALES, **more: object
) -> SmoothingProblem:
    return SmoothingProblem(rows, rows.min(axis=0), rows.max(axis=0), spec, readers, **more)  # type: ignore[arg-type]


def with_outliers(rows: int = 256, factor: float = 50.0) -> np.ndarray:
    values = normal(rows, INPUTS, seed=3)
    values[:, 2] *= factor
    return values


def rounded(values: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    return np.rint(values / scale) * scale


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("axis", [None, 1])
def test_the_error_is_that_of_the_layers(axis: int | None, transposed: bool) -> None:
    rows, s = with_outliers(), np.linspace(0.5, 3, INPUTS)
    weights = [normal(INPUTS, 5, seed=1), normal(INPUTS, 3, seed=2)]
    expected = 0.0
    x = rows / s
    step = (max(x.max(), 0) - min(x.min(), 0)) / 255
    x = rounded(x, step)
    for weight in weights:
        scaled = weight * s[:, None]
        largest = np.abs(scaled).max() if axis is None else np.abs(scaled).max(axis=0)
        found = x @ rounded(scaled, largest / 127)
        expected += np.mean((found - rows @ weight) ** 2) / np.mean((rows @ weight) ** 2)
    along = 1 - axis if axis is not None and transposed else axis
    arrays = [np.ascontiguousarray(w.T) if transposed else w for w in weights]
    readers = [stored(array, weight_plan(along), transposed=transposed) for array in arrays]
    # the zero point is rounded to an integer, which moves the ends of the range a little
    assert SmoothingLoss(problem(rows, readers))(s) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("rows", [1, 31, 33])
def test_any_number_of_rows_will_do(rows: int) -> None:
    values, reader = with_outliers(rows), matrix(6, 1)
    found = SmoothingLoss(problem(values, [reader]))(np.full(INPUTS, 2.0))
    step = (max(values.max(), 0) - min(values.min(), 0)) / 255
    weight = rounded(reader.array, np.abs(reader.array).max() / 127)
    expected = rounded(values, step) @ weight - values @ reader.array
    assert found == pytest.approx(np.mean(expected**2) / np.mean((values @ reader.array) ** 2), rel=0.5)


def test_no_candidate_of_a_fine_grid_is_much_better_and_of_several_families_the_best_is_taken() -> None:
    case = problem(with_outliers(), [matrix(6, 1), matrix(4, 2)])
    choice, error, scale_of = search(case, None), SmoothingLoss(case), smoothing(case)
    assert choice is not None and scale_of is not None
    # outliers move into the weights
    assert choice.after < choice.before / 15 and np.argmax(choice.scale) == 2
    finest = min(error(scale_of(alpha)) for alpha in np.linspace(0, 1, 81))
    assert choice.after <= 1.15 * finest
    assert choice.after == error(choice.scale)
    # of several families the best candidate is taken
    case = replace(problem(with_outliers(), [matrix(6, 1)]), spec=None)
    alone = [search(case, None, (family,)) for family in (activation_aware, activation_and_weight_aware)]
    both = search(case, None, (activation_aware, activation_and_weight_aware))
    assert both is not None and both.after == min(choice.after for choice in alone if choice is not None)
    assert both.after < both.before


def test_a_given_alpha_is_taken_and_powers_of_two_choose_how_they_are_filled() -> None:
    rows, reader = with_outliers(), matrix(6, 1)
    choice = search(problem(rows, [reader]), 0.3)
    assert choice is not None and choice.alpha == 0.3
    wanted = np.abs(rows).max(axis=0) ** 0.3 / np.abs(reader.array).max(axis=1) ** 0.7
    ratio = choice.scale / wanted
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
    for alpha in (0.0, 0.3, 1.0):  # the largest activation stays
        choice = search(problem(rows, [reader]), alpha)
        assert np.abs(rows / choice.scale).max() == pytest.approx(np.abs(rows).max(), rel=1e-5)
    # powers of two also choose how they are filled
    case = problem(with_outliers(), [matrix(6, 1, scale="power_of_two")], POWERS)
    choice, scale_of = search(case, None), smoothing(case)
    assert choice is not None and scale_of is not None
    ratio = choice.scale / scale_of(choice.alpha)
    np.testing.assert_allclose(ratio, ratio[0])
    assert choice.after <= SmoothingLoss(case)(scale_of(choice.alpha))


def test_silent_channels_and_zeros_stay_in_bounds() -> None:
    rows, reader = with_outliers(), matrix(6, 1)
    rows[:, 0] = 0
    rows[:, 1] *= 1e-30
    reader.array[4] = 0
    for alpha in (0.0, 0.5, 1.0):
        choice = search(problem(rows, [reader]), alpha)
        assert np.isfinite(choice.scale).all() and choice.scale.max() / choice.scale.min() < 1e4
    # zeros throughout give nothing
    zeros = np.zeros((9, INPUTS), np.float32)
    empty = matrix(6, 1)
    empty.array[:] = 0
    for case in (problem(zeros, [matrix(6, 1)]), problem(with_outliers(), [empty])):
        assert search(case, None) is None


def test_a_layer_that_pays_for_the_scale_counts() -> None:
    """One scale for all columns of the layer before: dividing one of them by 50 makes the others' grid no finer."""
    rows, readers = with_outliers(), [matrix(6, 1, axis=1)]
    before = stored(normal(4, INPUTS, seed=7), weight_plan(None))
    maker = ProducingLayer(normal(200, 4, seed=8), before, np.arange(INPUTS))
    scale = np.where(np.arange(INPUTS) == 2, 1.0, 1 / 50)  # columns times 50, but for one
    free, paid = SmoothingLoss(problem(rows, readers)), SmoothingLoss(problem(rows, readers, makers=[maker]))
    lost = before.array / scale - rounded(before.array / scale, np.abs(before.array / scale).max() / 127)
    noise = (maker.rows @ lost * scale) @ readers[0].array
    expected = np.mean(noise**2) / np.mean((rows @ readers[0].array) ** 2)
    assert paid(scale) - free(scale) == pytest.approx(expected, rel=0.1)


def test_what_is_rounded_already_and_what_stays_float() -> None:
    rows = with_outliers()
    coarse = rounded(rows, np.abs(rows).max() / 127).astype(np.float32)
    fresh = search(problem(rows, [matrix(6, 1)]), None)
    late = search(problem(rows, [matrix(6, 1)], rounded=coarse), None)
    assert late.after > 0.5 * late.before > 5 * fresh.after
    # a tensor in float costs the rounding of the weights alone
    rows, reader, s = with_outliers(), matrix(6, 1, axis=1), np.linspace(0.5, 3, INPUTS)
    scaled = reader.array * s[:, None]
    lost = rounded(scaled, np.abs(scaled).max(axis=0) / 127) / s[:, None] - reader.array
    expected = np.mean((rows @ lost) ** 2) / np.mean((rows @ reader.array) ** 2)
    assert SmoothingLoss(replace(problem(rows, [reader]), spec=None))(s) == pytest.approx(expected, rel=1e-2)
