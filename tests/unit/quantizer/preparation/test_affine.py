"""Folding of BatchNormalization, Add and Mul into the linear node before them: the float model is the oracle."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support.each import each
from tests.unit.quantizer.toolbox import (
    Arrays,
    batchnorm_text,
    batchnorm_weights,
    make_model,
    normal,
    op_types,
    prepare_proto,
    run_onnx,
    step,
)


def assert_same(model: onnx.ModelProto, feeds: Arrays) -> onnx.ModelProto:
    """The prepared model's outputs equal the original's to 1e-5 of the largest value."""
    _, prepared = prepare_proto(model)
    expected = run_onnx(model, feeds, optimized=False)
    got = run_onnx(prepared, feeds, optimized=False)
    assert expected.keys() == got.keys()
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-5 * np.abs(array).max(), err_msg=name)
    return prepared


def assert_folded_to(model: onnx.ModelProto, feeds: Arrays, ops: list[str]) -> None:
    assert op_types(assert_same(model, feeds)) == ops


def left_reason(model: onnx.ModelProto, name: str) -> str:
    detail = step(prepare_proto(model)[0], "fold_affine").detail
    found = [part for part in detail.split("; ") if part.startswith(f"{name} stays: ")]
    assert found, detail
    return found[0].removeprefix(f"{name} stays: ")


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


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
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


@pytest.mark.parametrize("epsilon", ["", "<epsilon=0.5>"], ids=["default epsilon", "epsilon 0.5"])
def test_epsilon_is_the_operators_own(epsilon: str) -> None:
    weights = {"w": normal(4, 3, 1, 1), **batchnorm_weights(4)}
    text = (
        f"(float[N,3,5,5] x) => (float[N,4,5,5] y) {{ t = Conv(x, w) {batchnorm_text('t', 'y', attributes=epsilon)} }}"
    )
    model = make_model(text, weights)
    assert_folded_to(model, {"x": normal(3, 3, 5, 5)}, ["Conv"])


@pytest.mark.parametrize("trans_b", [0, 1])
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


def test_batchnorm_after_a_transposed_gemm_input() -> None:
    weights = {"w": normal(4, 6), "b": normal(6), **batchnorm_weights(6)}
    model = make_model(
        f"(float[4,N] x) => (float[N,6] y) {{ t = Gemm<transA=1>(x, w, b) {batchnorm_text('t', 'y')} }}", weights
    )
    assert_folded_to(model, {"x": normal(4, 5)}, ["Gemm"])


def test_matmul_and_add_become_gemm_and_take_batchnorm_in() -> None:
    weights = {"w": normal(4, 6), "b": normal(6), **batchnorm_weights(6)}
    model = make_model(
        f"(float[N,4] x) => (float[N,6] y) {{ [fc] t = MatMul(x, w) u = Add(t, b) {batchnorm_text('u', 'y')} }}",
        weights,
    )
    prepared = assert_same(model, {"x": normal(5, 4)})
    assert [(node.name, node.op_type) for node in prepared.graph.node] == [("fc", "Gemm")]


CONSTANTS = {
    "scalar": np.float32(1.7),
    "one": np.float32([0.3]),
    "ones": np.float32([[[0.3]]]),
    "channels": normal(6, 1, 1, seed=21),
    "with batch axis": normal(1, 6, 1, 1, seed=22),
}


@each("op", ["Add", "Mul"])
@each("side", ["left", "right"])
@each("constant", CONSTANTS)
@pytest.mark.parametrize("linear", ["conv", "transpose grouped"])
def test_constants_after_convolution(op: str, side: str, constant: str, linear: str) -> None:
    call, shape = {
        "conv": ("Conv(x, w, b)", (6, 4, 3, 3)),
        "transpose grouped": ("ConvTranspose<group=2>(x, w, b)", (4, 3, 3, 3)),
    }[linear]
    operands = "c, t" if side == "left" else "t, c"
    model = make_model(
        f"(float[N,4,8,8] x) => (float[N,6,H,W] y) {{ t = {call} [after] y = {op}({operands}) }}",
        {"w": normal(*shape), "b": normal(6), "c": CONSTANTS[constant]},
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, [call.split("(")[0].split("<")[0]])


@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (6,), (1, 6)], ids=str)
def test_constants_after_gemm(op: str, shape: tuple[int, ...]) -> None:
    constant = normal(*shape, seed=4) if shape else np.float32(1.2)
    model = make_model(
        f"(float[N,4] x) => (float[N,6] y) {{ t = Gemm<beta=0.5>(x, w, b) y = {op}(t, c) }}",
        {"w": normal(4, 6), "b": normal(6, seed=2), "c": constant},
    )
    assert_folded_to(model, {"x": normal(5, 4)}, ["Gemm"])


def test_a_chain_of_followers_is_folded_whole() -> None:
    weights = {"w": normal(6, 4, 3, 3), "m": normal(6, 1, 1), "a": normal(1, 6, 1, 1), **batchnorm_weights(6)}
    weights |= batchnorm_weights(6, "second")
    model = make_model(
        f"(float[N,4,8,8] x) => (float[N,6,6,6] y) {{ [conv] t = Conv(x, w) u = Mul(m, t) {batchnorm_text('u', 'v')} "
        f"z = Add(v, a) {batchnorm_text('z', 'y', 'second')} }}",
        weights,
    )
    prepared = assert_same(model, {"x": normal(2, 4, 8, 8)})
    assert [(node.name, list(node.output)) for node in prepared.graph.node] == [("conv", ["y"])]


NOT_PER_CHANNEL = {
    "per position": normal(1, 1, 6, 6),
    "per column": normal(6),  # aligned with the last axis, which happens to have as many entries
    "per row": normal(6, 1),
    "whole": normal(1, 6, 6, 6),
    "five axes": normal(1, 1, 6, 1, 1),
    "float64": np.ones((6, 1, 1)),
}


@pytest.mark.parametrize("constant", sorted(set(NOT_PER_CHANNEL) - {"float64"}))
def test_a_constant_that_is_not_per_channel_stays(constant: str) -> None:
    rank = max(4, NOT_PER_CHANNEL[constant].ndim)
    model = make_model(
        f"(float[N,4,8,8] x) => (float[{','.join('ABCDE'[:rank])}] y) {{ t = Conv(x, w) y = Add(t, c) }}",
        {"w": normal(6, 4, 3, 3), "c": NOT_PER_CHANNEL[constant]},
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, ["Conv", "Add"])


def test_a_constant_per_batch_entry_stays() -> None:
    model = make_model(
        "(float[6,4] x) => (float[6,6] y) { t = Gemm(x, w) y = Mul(t, c) }", {"w": normal(4, 6), "c": normal(6, 1)}
    )
    assert_folded_to(model, {"x": normal(6, 4)}, ["Gemm", "Mul"])


def test_a_gemm_bias_per_batch_entry_stays() -> None:
    weights = {"w": normal(4, 6), "b": normal(6, 1), **batchnorm_weights(6)}
    model = make_model(f"(float[6,4] x) => (float[6,6] y) {{ t = Gemm(x, w, b) {batchnorm_text('t', 'y')} }}", weights)
    assert_folded_to(model, {"x": normal(6, 4)}, ["Gemm", "BatchNormalization"])
    assert left_reason(model, "bn") == "the bias before it is not a constant per channel"


def test_adding_the_result_to_itself_stays() -> None:
    model = make_model(
        "(float[N,4,8,8] x) => (float[N,6,6,6] y) { t = Conv(x, w) y = Add(t, t) }", {"w": normal(6, 4, 3, 3)}
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, ["Conv", "Add"])


@pytest.fixture
def conv_bn_weights() -> dict[str, np.ndarray]:
    return {"w": normal(6, 4, 3, 3), **batchnorm_weights(6)}


def test_an_intermediate_that_is_read_twice_stays(conv_bn_weights: dict[str, np.ndarray]) -> None:
    model = make_model(
        f"(float[N,4,8,8] x) => (float[N,6,6,6] y) {{ t = Conv(x, w) {batchnorm_text('t', 'u')} v = Relu(t) "
        "y = Add(u, v) }",
        conv_bn_weights,
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, ["Conv", "BatchNormalization", "Relu", "Add"])
    assert left_reason(model, "bn") == "its input is read elsewhere too"


def test_an_intermediate_that_is_a_graph_output_stays(conv_bn_weights: dict[str, np.ndarray]) -> None:
    model = make_model(
        f"(float[N,4,8,8] x) => (float[N,6,6,6] y, float[N,6,6,6] t) {{ t = Conv(x, w) {batchnorm_text('t', 'y')} }}",
        conv_bn_weights,
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, ["Conv", "BatchNormalization"])
    assert left_reason(model, "bn") == "its input is read elsewhere too"


def test_training_mode_stays(conv_bn_weights: dict[str, np.ndarray]) -> None:
    text = "y, m, v = BatchNormalization<training_mode=1>(t, bn_scale, bn_bias, bn_mean, bn_var)"
    model = make_model(f"(float[2,4,8,8] x) => (float[2,6,6,6] y) {{ t = Conv(x, w) [bn] {text} }}", conv_bn_weights)
    assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, ["Conv", "BatchNormalization"])
    assert left_reason(model, "bn") == "it is in training mode"


def test_parameters_that_are_inputs_stay(conv_bn_weights: dict[str, np.ndarray]) -> None:
    del conv_bn_weights["bn_mean"]
    model = make_model(
        f"(float[N,4,8,8] x, float[6] bn_mean) => (float[N,6,6,6] y) {{ t = Conv(x, w) {batchnorm_text('t', 'y')} }}",
        conv_bn_weights,
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8), "bn_mean": normal(6)}, ["Conv", "BatchNormalization"])
    assert left_reason(model, "bn") == "its parameters are not constants per channel"


def test_a_weight_that_is_an_input_stays(conv_bn_weights: dict[str, np.ndarray]) -> None:
    weight = conv_bn_weights.pop("w")
    model = make_model(
        f"(float[N,4,8,8] x, float[6,4,3,3] w) => (float[N,6,6,6] y) {{ t = Conv(x, w) {batchnorm_text('t', 'y')} }}",
        conv_bn_weights,
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8), "w": weight}, ["Conv", "BatchNormalization"])
    assert left_reason(model, "bn") == "the weight before it is not constant"


def test_a_bias_that_is_an_input_stays(conv_bn_weights: dict[str, np.ndarray]) -> None:
    model = make_model(
        f"(float[N,4,8,8] x, float[6] b) => (float[N,6,6,6] y) {{ t = Conv(x, w, b) {batchnorm_text('t', 'y')} }}",
        conv_bn_weights,
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8), "b": normal(6)}, ["Conv", "BatchNormalization"])
    assert left_reason(model, "bn") == "the bias before it is not a constant per channel"


def test_batchnorm_after_anything_else_stays() -> None:
    model = make_model(
        f"(float[N,6,8,8] x) => (float[N,6,8,8] y) {{ t = Relu(x) {batchnorm_text('t', 'y')} }}", batchnorm_weights(6)
    )
    assert_folded_to(model, {"x": normal(2, 6, 8, 8)}, ["Relu", "BatchNormalization"])
    assert left_reason(model, "bn") == "it does not follow a Conv, ConvTranspose or Gemm"


def test_a_fold_that_overflows_is_not_made(conv_bn_weights: dict[str, np.ndarray]) -> None:
    conv_bn_weights["w"] = np.full_like(conv_bn_weights["w"], 1e38)
    conv_bn_weights["bn_scale"] = np.full(6, 1e3, np.float32)
    model = make_model(
        f"(float[N,4,8,8] x) => (float[N,6,6,6] y) {{ t = Conv(x, w) {batchnorm_text('t', 'y')} }}", conv_bn_weights
    )
    assert left_reason(model, "bn") == "the folded weight or bias would not be finite"
    assert op_types(prepare_proto(model)[1]) == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize("reader", ["z = Conv(x, w, b)", "z = Mul(x, w)"])
def test_shared_parameters_stay_right_for_their_other_reader(reader: str) -> None:
    shape = (6, 6, 1, 1)
    weights = {"w": normal(*shape), "b": normal(6, seed=9), **batchnorm_weights(6)}
    model = make_model(
        f"(float[6,6,1,1] x) => (float[6,6,1,1] y, float[6,6,1,1] z) {{ t = Conv(x, w, b) {batchnorm_text('t', 'y')} "
        f"[other] {reader} }}",
        weights,
    )
    assert_folded_to(model, {"x": normal(6, 6, 1, 1)}, ["Conv", reader.split(" = ")[1].split("(")[0]])


def test_two_convolutions_that_share_a_weight_each_fold_their_own_batchnorm() -> None:
    weights = {"w": normal(6, 4, 3, 3), **batchnorm_weights(6), **batchnorm_weights(6, "second")}
    weights["second_scale"] = weights["second_scale"] * 3
    model = make_model(
        f"(float[N,4,8,8] x) => (float[N,6,6,6] y, float[N,6,6,6] z) {{ t = Conv(x, w) {batchnorm_text('t', 'y')} "
        f"u = Conv(x, w) {batchnorm_text('u', 'z', 'second')} }}",
        weights,
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, ["Conv", "Conv"])


def test_a_bias_that_shares_its_name_with_nothing_is_made_beside_taken_names() -> None:
    weights = {"w": normal(6, 4, 3, 3), "w_bias": normal(6, 1, 1, seed=4), **batchnorm_weights(6)}
    model = make_model(
        f"(float[N,4,8,8] x) => (float[N,6,6,6] y) {{ t = Conv(x, w) {batchnorm_text('t', 'u')} v = Relu(u) "
        "y = Mul(v, w_bias) }",
        weights,
    )
    assert_folded_to(model, {"x": normal(2, 4, 8, 8)}, ["Conv", "Relu", "Mul"])


def test_a_new_bias_does_not_take_a_tensors_name() -> None:
    weights = {"w": normal(6, 4, 3, 3), **batchnorm_weights(6)}
    model = make_model(
        f"(float[N,4,8,8] w_bias) => (float[N,6,6,6] y) {{ t = Conv(w_bias, w) {batchnorm_text('t', 'u')} "
        "y = Relu(u) }",
        weights,
    )
    assert_folded_to(model, {"w_bias": normal(2, 4, 8, 8)}, ["Conv", "Relu"])


def test_followers_inside_a_subgraph_are_left_alone(conv_bn_weights: dict[str, np.ndarray]) -> None:
    model = make_model(
        "(float[N,4,8,8] x, bool go) => (float[N,6,6,6] y) { t = Conv(x, w) y = If(go) <"
        "then_branch = a () => (float[N,6,6,6] p) { " + batchnorm_text("t", "p") + " }, "
        "else_branch = b () => (float[N,6,6,6] q) { q = Relu(t) }> }",
        conv_bn_weights,
    )
    for go in (True, False):
        prepared = assert_same(model, {"x": normal(2, 4, 8, 8), "go": np.array(go)})
        assert op_types(prepared) == ["Conv", "If"]
