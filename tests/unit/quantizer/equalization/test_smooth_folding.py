"""Factors that constants have taken in, against onnxruntime: the tensor comes out scaled, and nothing else changes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.quantizer.equalization.benches import used
from tests.unit.quantizer.toolbox import batchnorm_weights, make_model, normal, prepare_proto, rng, run_onnx
from worker.quantizer.equalization.smooth_quant.folding import Folding, apply_folds, find_folding
from worker.quantizer.graph.values import Names

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
    "scale": normal(6, seed=33) + 2,
    "half": np.array(0.5, np.float32),
    "zero": np.array(0, np.float32),
    "slope": np.full((6,), 0.2, np.float32),
    "slopes": np.full((6, 1, 1), 0.2, np.float32),
    "split": np.array([0, 0, HEADS, WIDTH], np.int64),
    "merge": np.array([0, 0, CHANNELS], np.int64),
    "tokens": np.array([2, 1, 6], np.int64),
    "first": np.array(0, np.int64),
    "starts": np.array([1], np.int64),
    "ends": np.array([3], np.int64),
    "axis1": np.array([1], np.int64),
    "pads": np.array([0, 1, 0, 0, 0, 0], np.int64),
    "shape": np.array([2, 5, 6], np.int64),
    "axis2": np.array([2], np.int64),
    "apart": np.array([1, 1, 2, 3], np.int64),
    **batchnorm_weights(6),
}
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
    # grouped queries: one head's values serve two heads, which cannot be scaled apart
    "keys shared by several heads": f"{TOKENS} {{ v = MatMul(x, narrow) u = Unsqueeze(v, axis2) e = Expand(u, apart) "
    "y = Reshape(e, merge) }",
    "one value for many channels": "(float[2,5,1] x) => (float[2,5,6] y) { m = MatMul(x, single) "
    "y = Expand(m, shape) }",
}


def folding_of(model: onnx.ModelProto) -> tuple[ir.Model, Folding | None]:
    prepared, _ = prepare_proto(model)
    value = prepared.graph.outputs[0]
    assert value.shape is not None and isinstance(value.shape[-1], int)
    return prepared.model, find_folding(value, value.shape[-1], lambda node: False)


def check_folds(model: onnx.ModelProto, shape: tuple[int, ...]) -> Folding:
    prepared, folding = folding_of(model)
    factors = np.exp(rng(5).uniform(-2, 2, prepared.graph.outputs[0].shape[-1]))
    feeds = {"x": normal(*shape, seed=9)}
    expected = run_onnx(ir.to_proto(prepared), feeds)["y"] * factors
    apply_folds(prepared.graph, folding.folds, factors, Names(prepared.graph))
    got = run_onnx(ir.to_proto(prepared), feeds)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(axis=None))
    return folding


def fed_shape(text: str) -> tuple[int, ...]:
    inside = text[text.index("[") + 1 : text.index("]")]
    return tuple(2 if part == "N" else int(part) for part in inside.split(","))


@pytest.mark.parametrize("case", FOLDED)
def test_the_tensor_comes_out_scaled(case: str) -> None:
    text = FOLDED[case]
    folding = check_folds(make_model(text, used(WEIGHTS, text)), fed_shape(text))
    assert "y" in folding.tensors and folding.folds


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
    apply_folds(prepared.graph, folding.folds, np.full(6, 3.0), Names(prepared.graph))
    after = run_onnx(ir.to_proto(prepared), feeds)
    np.testing.assert_allclose(after["y"], 3 * before["y"], rtol=1e-6)
    np.testing.assert_array_equal(after["z"], before["z"])
    # a refused layer takes nothing in
    prepared, _ = prepare_proto(make_model(f"{TOKENS} {{ y = MatMul(x, w) }}", {"w": WEIGHTS["w"]}))
    assert find_folding(prepared.graph.outputs[0], 6, lambda node: node.op_type == "MatMul") is None


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
