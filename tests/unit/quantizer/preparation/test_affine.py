"""Folding of BatchNormalization, Add and Mul into the linear node before them: the float model is the oracle."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support.each import each
from tests.unit.quantizer.preparation.preparing import assert_equal_outputs
from tests.unit.quantizer.toolbox import (
    Arrays,
    batchnorm_text,
    batchnorm_weights,
    make_model,
    normal,
    op_types,
    prepare_proto,
    step,
)


def assert_folded_to(model: onnx.ModelProto, feeds: Arrays, ops: list[str]) -> onnx.ModelProto:
    """The prepared model computes what the original does, with these operators."""
    _, prepared = prepare_proto(model)
    assert_equal_outputs(model, prepared, feeds, tolerance=1e-5)
    assert op_types(prepared) == ops
    return prepared


def left_reason(model: onnx.ModelProto, name: str = "bn") -> str:
    parts = step(prepare_proto(model)[0], "fold_affine").detail.split("; ")
    return next(part.removeprefix(f"{name} stays: ") for part in parts if part.startswith(f"{name} stays: "))


CONVOLUTIONS = {
    # name: spatial rank, weight shape, attributes, input channels, output channels, operator
    "conv1d": ("Conv", (6, 4, 3), "", 4, 6),
    "conv2d": ("Conv", (6, 4, 3, 3), "<pads=[1,1,1,1]>", 4, 6),
    "conv3d": ("Conv", (6, 4, 2, 2, 2), "", 4, 6),
    "grouped": ("Conv", (6, 2, 3, 3), "<group=2>", 4, 6),
    "depthwise": ("Conv", (4, 1, 3, 3), "<group=4, strides=[2,2]>", 4, 4),
    "depthwise multiplier": ("Conv", (8, 1, 3), "<group=4>", 4, 8),
    "dilated": ("Conv", (6, 4, 3, 3), "<dilations=[2,2]>", 4, 6),
    "one channel": ("Conv", (1, 4, 3, 3), "", 4, 1),
    "transpose1d": ("ConvTranspose", (4, 6, 3), "<strides=[2]>", 4, 6),
    "transpose2d": ("ConvTranspose", (4, 6, 3, 3), "", 4, 6),
    "transpose grouped": ("ConvTranspose", (4, 3, 3, 3), "<group=2, strides=[2,2]>", 4, 6),
    "transpose depthwise": ("ConvTranspose", (4, 1, 3, 3), "<group=4>", 4, 4),
}


@each("bias", [True, False])
@each("case", CONVOLUTIONS)
def test_batchnorm_after_convolution(case: str, bias: bool) -> None:
    op, shape, attributes, taken, made = CONVOLUTIONS[case]
    spatial = ",".join(["9"] * (len(shape) - 2))
    weights = {"w": normal(*shape), **({"b": normal(made, seed=2)} if bias else {}), **batchnorm_weights(made)}
    model = make_model(
        f"(float[N,{taken},{spatial}] x) => (float[N,C,{','.join('HWD'[: len(shape) - 2])}] y) {{"
        f"[lin] t = {op}{attributes}(x, w{', b' if bias else ''}) {batchnorm_text('t', 'y')} }}",
        weights,
    )
    assert_folded_to(model, {"x": normal(2, taken, *[9] * (len(shape) - 2), seed=5)}, [op])


@each("trans_b", [0, 1])
@each("factors", ["", "alpha=0.5", "beta=2.0", "alpha=0.5, beta=-3.0", "beta=0.0"])
@each("bias", ["none", "vector", "row", "scalar", "single"])
def test_batchnorm_after_gemm(trans_b: int, factors: str, bias: str) -> None:
    biases = {"vector": normal(6), "row": normal(1, 6), "scalar": np.float32(0.7), "single": np.float32([1.5])}
    weights = {"w": normal(*((6, 4) if trans_b else (4, 6))), **batchnorm_weights(6)}
    if bias != "none":
        weights["b"] = biases[bias]
    attributes = ", ".join(filter(None, [f"transB={trans_b}", factors]))
    call = f"Gemm<{attributes}>(x, w{', b' if bias != 'none' else ''})"
    model = make_model(f"(float[N,4] x) => (float[N,6] y) {{ [fc] t = {call} {batchnorm_text('t', 'y')} }}", weights)
    assert_folded_to(model, {"x": normal(5, 4, seed=3)}, ["Gemm"])


@each("inner", ["t = Gemm<transA=1>(x, w, b)", "m = MatMul(v, w) t = Add(m, b)"])
def test_batchnorm_after_other_products(inner: str) -> None:
    weights = {"w": normal(4, 6), "b": normal(6), **batchnorm_weights(6)}
    model = make_model(
        f"(float[4,N] x, float[N,4] v) => (float[N,6] y) {{ [fc] {inner} {batchnorm_text('t', 'y')} }}", weights
    )
    prepared = assert_folded_to(model, {"x": normal(4, 5), "v": normal(5, 4)}, ["Gemm"])
    assert prepared.graph.node[0].name == "fc"


CONSTANTS = {
    "scalar": np.float32(1.7), "one": np.float32([0.3]), "ones": np.float32([[[0.3]]]),
    "channels": normal(6, 1, 1, seed=21), "with batch axis": normal(1, 6, 1, 1, seed=22),
}  # fmt: skip


@each("op", ["Add", "Mul"])
@each("operands", ["c, t", "t, c"])
@each("constant", CONSTANTS)
@each(("call", "shape"), [("Conv(x, w, b)", (6, 4, 3, 3)), ("ConvTranspose<group=2>(x, w, b)", (4, 3, 3, 3))])
def test_constants_after_convolution(op: str, operands: str, constant: str, call: str, shape: tuple[int, ...]) -> None:
    model = make_model(
        f"(float[N,4,8,8] x) => (float[N,6,H,W] y) {{ t = {call} [after] y = {op}({operands}) }}",
        {"w": normal(*shape), "b": normal(6), "c": CONSTANTS[constant]},
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, ["ConvTranspose" if "group" in call else "Conv"])


@each("op", ["Add", "Mul"])
@each("shape", [(), (1,), (1, 1), (6,), (1, 6)])
def test_constants_after_gemm(op: str, shape: tuple[int, ...]) -> None:
    text = f"(float[N,4] x) => (float[N,6] y) {{ t = Gemm<beta=0.5>(x, w, b) y = {op}(t, c) }}"
    model = make_model(text, {"w": normal(4, 6), "b": normal(6, seed=2), "c": normal(*shape, seed=4)})
    assert_folded_to(model, {"x": normal(5, 4)}, ["Gemm"])


def test_a_chain_of_followers_is_folded_whole() -> None:
    weights = {"w": normal(6, 4, 3, 3), "m": normal(6, 1, 1), "a": normal(1, 6, 1, 1), **batchnorm_weights(6)}
    weights |= batchnorm_weights(6, "second")
    model = make_model(
        f"(float[N,4,8,8] x) => (float[N,6,6,6] y) {{ [conv] t = Conv(x, w) u = Mul(m, t) {batchnorm_text('u', 'v')} "
        f"z = Add(v, a) {batchnorm_text('z', 'y', 'second')} }}",
        weights,
    )
    prepared = assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, ["Conv"])
    assert [(node.name, list(node.output)) for node in prepared.graph.node] == [("conv", ["y"])]


NOT_PER_CHANNEL = {
    "per position": normal(1, 1, 6, 6),
    "per column": normal(6),  # aligned with the last axis, which happens to have as many entries
    "per row": normal(6, 1),
    "whole": normal(1, 6, 6, 6),
    "five axes": normal(1, 1, 6, 1, 1),
}


@each("constant", NOT_PER_CHANNEL)
def test_a_constant_that_is_not_per_channel_stays(constant: str) -> None:
    rank = max(4, NOT_PER_CHANNEL[constant].ndim)
    model = make_model(
        f"(float[N,4,8,8] x) => (float[{','.join('ABCDE'[:rank])}] y) {{ t = Conv(x, w) y = Add(t, c) }}",
        {"w": normal(6, 4, 3, 3), "c": NOT_PER_CHANNEL[constant]},
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, ["Conv", "Add"])


BN = batchnorm_text("t", "y")
RESULT = "(float[N,4,8,8] x) => (float[N,6,6,6] y)"
WITH_C = "(float[N,4,8,8] x, float[6] c) => (float[N,6,6,6] y)"
ELSEWHERE, BIAS = "its input is read elsewhere too", "the bias before it is not a constant per channel"
TRAINING = "BatchNormalization<training_mode=1>(t, bn_scale, bn_bias, bn_mean, bn_var)"
LEFT = [
    ("(float[6,4] x) => (float[6,6] y) { t = Gemm(x, k) y = Mul(t, rows) }", "Gemm Mul", None),
    (f"(float[6,4] x) => (float[6,6] y) {{ t = Gemm(x, k, rows) {BN} }}", "Gemm BN", BIAS),
    (f"{RESULT} {{ t = Conv(x, w) y = Add(t, t) }}", "Conv Add", None),
    (
        f"{RESULT} {{ t = Conv(x, w) {batchnorm_text('t', 'u')} v = Relu(t) y = Add(u, v) }}",
        "Conv BN Relu Add",
        ELSEWHERE,
    ),
    (f"(float[N,4,8,8] x) => (float[N,6,6,6] y, float[N,6,6,6] t) {{ t = Conv(x, w) {BN} }}", "Conv BN", ELSEWHERE),
    (
        f"(float[2,4,8,8] x) => (float[2,6,6,6] y) {{ t = Conv(x, w) [bn] y, m, v = {TRAINING} }}",
        "Conv BN",
        "it is in training mode",
    ),
    (f"{WITH_C} {{ t = Conv(x, w) {BN.replace('bn_mean', 'c')} }}", "Conv BN", "its parameters are not constants"),
    (
        f"(float[N,4,8,8] x, float[6,4,3,3] f) => (float[N,6,6,6] y) {{ t = Conv(x, f) {BN} }}",
        "Conv BN",
        "the weight before it is not constant",
    ),
    (f"{WITH_C} {{ t = Conv(x, w, c) {BN} }}", "Conv BN", BIAS),
    (f"(float[N,6,8,8] z) => (float[N,6,8,8] y) {{ t = Relu(z) {BN} }}", "Relu BN", "it does not follow a Conv"),
]


@pytest.mark.parametrize(("text", "ops", "reason"), LEFT)
def test_what_cannot_be_folded_stays_and_says_why(text: str, ops: str, reason: str | None) -> None:
    weights = {"w": normal(6, 4, 3, 3), "k": normal(4, 6), "rows": normal(6, 1), **batchnorm_weights(6)}
    model = make_model(text, weights)
    feeds = {"x": normal(6, 4) if "float[6,4] x" in text else normal(2, 4, 8, 8)}
    feeds |= {"c": normal(6), "f": normal(6, 4, 3, 3), "z": normal(2, 6, 8, 8)}
    found = ops.replace("BN", "BatchNormalization").split()
    assert_folded_to(model, {value.name: feeds[value.name] for value in model.graph.input}, found)
    assert reason is None or left_reason(model).startswith(reason)


def test_a_fold_that_overflows_is_not_made() -> None:
    weights = {"w": np.full((6, 4, 3, 3), 1e38, np.float32), **batchnorm_weights(6)}
    weights["bn_scale"] = np.full(6, 1e3, np.float32)
    model = make_model(f"{RESULT} {{ t = Conv(x, w) {BN} }}", weights)
    assert left_reason(model) == "the folded weight or bias is not finite"
    assert op_types(prepare_proto(model)[1]) == ["Conv", "BatchNormalization"]


@each("reader", ["z = Conv(x, w, b)", "z = Mul(x, w)", batchnorm_text("s", "z", "second", "<epsilon=0.5>")])
def test_shared_parameters_stay_right_for_their_other_reader(reader: str) -> None:
    """Also where both fold a BatchNormalization of their own."""
    weights = {
        "w": normal(6, 6, 1, 1),
        "b": normal(6, seed=9),
        **batchnorm_weights(6),
        **batchnorm_weights(6, "second"),
    }
    weights["second_scale"] = weights["second_scale"] * 3
    first = "s = Conv(x, w, b)" if "second" in reader else ""
    model = make_model(
        f"(float[6,6,1,1] x) => (float[6,6,1,1] y, float[6,6,1,1] z) {{ t = Conv(x, w, b) {BN} {first} {reader} }}",
        weights,
    )
    assert_folded_to(model, {"x": normal(6, 6, 1, 1)}, ["Conv", "Mul" if "Mul" in reader else "Conv"])


@each("taken", ["weight", "input"])
def test_a_new_bias_does_not_take_the_name_of_another_tensor(taken: str) -> None:
    weights = {"w": normal(6, 4, 3, 3), **batchnorm_weights(6)}
    source, end = ("w_bias", "y = Relu(u)") if taken == "input" else ("x", "v = Relu(u) y = Mul(v, w_bias)")
    if taken == "weight":
        weights["w_bias"] = normal(6, 1, 1, seed=4)
    model = make_model(
        f"(float[N,4,8,8] {source}) => (float[N,6,6,6] y) {{ t = Conv({source}, w) {batchnorm_text('t', 'u')} {end} }}",
        weights,
    )
    ops = ["Conv", "Relu", *(["Mul"] if taken == "weight" else [])]
    assert_folded_to(model, {source: normal(2, 4, 8, 8)}, ops)


def test_followers_inside_a_subgraph_are_left_alone() -> None:
    model = make_model(
        "(float[N,4,8,8] x, bool go) => (float[N,6,6,6] y) { t = Conv(x, w) y = If(go) <"
        "then_branch = a () => (float[N,6,6,6] p) { " + batchnorm_text("t", "p") + " }, "
        "else_branch = b () => (float[N,6,6,6] q) { q = Relu(t) }> }",
        {"w": normal(6, 4, 3, 3), **batchnorm_weights(6)},
    )
    for go in (True, False):
        assert_folded_to(model, {"x": normal(2, 4, 8, 8), "go": np.array(go)}, ["Conv", "If"])
