"""Equalization as a step: the float network stays what it was, the quantized one comes nearer to it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from service.contracts.algorithms import CrossLayerEqualization
from service.contracts.config import QuantizationConfig
from tests.unit.quantizer.equalization.benches import Bench, float_outputs, quantized_outputs, used
from tests.unit.quantizer.toolbox import (
    Arrays,
    batchnorm_weights,
    config,
    make_model,
    normal,
    op_types,
    rng,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.equalization.cross_layer import NO_PAIR
from worker.quantizer.graph.values import constant, node_name
from worker.quantizer.refine.draft import Draft

CHANNELS = 12
PER_TENSOR = {"weight": {"granularity": "per_tensor"}}
# Channels of very different weights, which one grid cannot hold.
GAINS = np.exp(rng(1).uniform(-3, 3, CHANNELS)).astype(np.float32)


def scaled(array: np.ndarray, gains: np.ndarray, axis: int) -> np.ndarray:
    shape = [-1 if k == axis else 1 for k in range(array.ndim)]
    return (array * gains.reshape(shape)).astype(np.float32)


def weights() -> dict[str, np.ndarray]:
    return {
        "w": scaled(normal(CHANNELS, 3, 3, 3, scale=0.3), GAINS, 0),
        "b": (0.3 * normal(CHANNELS, seed=1) + 0.2) * GAINS,
        "d": scaled(normal(CHANNELS, 1, 3, 3, seed=2, scale=0.5), 1 / GAINS * GAINS[::-1], 0),
        "e": normal(CHANNELS, seed=3) * 0.1 * GAINS[::-1],
        "k": scaled(normal(7, CHANNELS, 1, 1, seed=4), 1 / GAINS[::-1], 1),
        "zero": np.array(0, np.float32),
        "six": np.array(6, np.float32),
    }


def network(activation: str = "Relu({0})", **changed: np.ndarray) -> onnx.ModelProto:
    """Convolution, depthwise convolution and 1x1 convolution with activation functions between them."""
    first, second = (activation.format(name) for name in ("a", "c"))
    text = (
        f"(float[N,3,9,9] x) => (float[N,7,9,9] y) {{ [one] a = Conv<pads=[1,1,1,1]>(x, w, b) [act1] r = {first} "
        f"[two] c = Conv<group={CHANNELS}, pads=[1,1,1,1]>(r, d, e) [act2] s = {second} [three] y = Conv(s, k) }}"
    )
    arrays = weights() | changed
    used = {name: array for name, array in arrays.items() if name not in ("zero", "six") or name in activation}
    return make_model(text, used)


RELU6 = "Clip({0}, zero, six)"
FEEDS = {"x": normal(24, 3, 9, 9, seed=9)}
UNSEEN = {"x": 2 * normal(24, 3, 9, 9, seed=10)}


def bench(
    model: onnx.ModelProto, feeds: Arrays = FEEDS, settings: QuantizationConfig | None = None, **options: Any
) -> Bench:
    return Bench(model, feeds, CrossLayerEqualization(**options), settings or config(**PER_TENSOR))


def applied(found: Bench) -> Draft:
    change = found.apply()
    assert change.draft is not None
    return change.draft


def same(one: Arrays, other: Arrays, rtol: float = 1e-4) -> bool:
    return all(np.allclose(one[k], other[k], rtol=rtol, atol=rtol * np.abs(one[k]).max()) for k in one)


def quantized_db(draft: Draft, model: onnx.ModelProto, feeds: Arrays = FEEDS) -> float:
    return sqnr_db(run_onnx(model, feeds)["y"], quantized_outputs(draft, feeds)["y"])


ACTIVATIONS = {"relu": "Relu({0})", "leaky": "LeakyRelu<alpha=0.2>({0})", "relu6": RELU6, "none": "Identity({0})"}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_the_float_network_stays_and_the_quantized_one_gains(case: str) -> None:
    model = network(ACTIVATIONS[case])
    found = bench(model)
    before = quantized_db(found.draft, model)
    draft = applied(found)
    assert same(run_onnx(model, UNSEEN), float_outputs(draft, UNSEEN))
    assert quantized_db(draft, model) > before + 3
    assert same(run_onnx(model, FEEDS), float_outputs(found.draft, FEEDS), rtol=1e-5)  # the old draft is untouched


def test_per_channel_weights_gain_by_their_activations() -> None:
    """No layer has one scale for its channels, but its results have: equalization gives them one each."""
    model = network()
    found = bench(model, settings=config(weight={"granularity": "per_channel"}))
    before = quantized_db(found.draft, model)
    assert quantized_db(applied(found), model) > before + 1


def test_it_is_asked_for_statistics_once_and_does_the_same_however_often_it_is_applied() -> None:
    found = bench(network())
    asked = found.step.requests(found.draft)
    assert found.draft.statistics["cross_layer_equalization"]
    once, again = applied(found), applied(found)
    assert "cross_layer_equalization" not in once.statistics
    assert once.emitted_bytes() == again.emitted_bytes()
    assert [request.tensor for request in found.step.requests(found.draft)] == [request.tensor for request in asked]


def test_nothing_to_do_is_said() -> None:
    lonely = make_model("(float[N,3,9,9] x) => (float[N,12,7,7] y) { y = Conv(x, w) }", {"w": weights()["w"]})
    change = bench(lonely).apply()
    assert change.draft is None and change.reason == NO_PAIR()


# Limits.


def limits_of(draft: Draft) -> list[np.ndarray]:
    return [found for node in draft.graph if node.op_type == "Min" and (found := constant(node.inputs[1])) is not None]


def test_exact_limits_hold_for_every_input() -> None:
    model = network(RELU6)
    found = bench(model, replace_relu6="per_channel")
    draft = applied(found)
    wild = {"x": 50 * normal(5, 3, 9, 9, seed=11)}
    assert same(run_onnx(model, wild), float_outputs(draft, wild))
    assert len(limits_of(draft)) == 2 and all(limit.shape == (1, CHANNELS, 1, 1) for limit in limits_of(draft))
    names = {node_name(node): node.op_type for node in draft.graph}
    assert names["act1"] == "Relu" and names["act1_limit"] == "Min"
    assert draft.prepared.op_types["act1_limit"] == "Clip"
    assert {"r", "s"} <= set(draft.plan.activations)  # quantized behind the limits alone
    assert draft.plan.activations.keys() == found.draft.plan.activations.keys()


def test_kept_limits_fix_what_reaches_them_and_bind_the_rest() -> None:
    model = network(RELU6)
    found = bench(model, replace_relu6="never")
    before = quantized_db(found.draft, model)
    draft = applied(found)
    assert Counter(node.op_type for node in draft.graph) == Counter(op_types(model))
    # to every channel that reaches the limit on this data it is what it was
    assert same(run_onnx(model, FEEDS), float_outputs(draft, FEEDS))
    assert quantized_db(draft, model) > before + 1
    # kept limits fix what reaches them and bind the rest
    found = bench(network(RELU6), replace_relu6="never", use_activations=False)
    tensors = run_onnx(with_output(network(RELU6), "r"), FEEDS)["r"].max(axis=(0, 2, 3))
    ratio = rows_of(applied(found), "one") / np.abs(weights()["w"]).reshape(CHANNELS, -1).max(axis=1)
    reached = tensors >= 6.0
    assert reached.any() and not reached.all()
    np.testing.assert_allclose(ratio[reached], 1.0, rtol=1e-6)
    assert (ratio[~reached] * tensors[~reached] <= 6.0 * (1 + 1e-5)).all() and (ratio[~reached] != 1.0).any()


def test_dropped_limits_are_told_with_their_cost() -> None:
    model = network(RELU6)
    found = bench(model, replace_relu6="relu")
    change = found.apply()
    assert [node.op_type for node in change.draft.graph] == ["Conv", "Relu", "Conv", "Relu", "Conv"]
    relu = network()
    assert same(run_onnx(relu, UNSEEN), float_outputs(change.draft, UNSEEN))
    cost = sqnr_db(run_onnx(model, FEEDS)["y"], run_onnx(relu, FEEDS)["y"])
    assert f"leaves the float network {cost:.1f} dB" in change.summary


@pytest.mark.parametrize(
    ("settings", "exact", "told"),
    [
        ({"target": "onnxruntime_cpu"}, True, "onnxruntime_cpu"),
        *(({"target": target}, False, target) for target in ("openvino", "amd_npu_cnn", "qnn")),
        ({"activation": {"dtype": "int16"}}, False, "int16"),  # wide ones keep their limits as they are
    ],
)
def test_the_target_decides_about_limits(settings: dict[str, Any], exact: bool, told: str) -> None:
    change = bench(network(RELU6), settings=config(**settings, **PER_TENSOR)).apply()
    assert change.draft is not None
    assert bool(limits_of(change.draft)) == ("kept exactly" in change.summary) == exact and told in change.summary


# Silent channels.


def test_silent_channels_are_cut_off_or_kept() -> None:
    arrays = weights()
    arrays["b"][4] = -1e3 * GAINS[4]
    # what the layer behind makes of nothing is its bias, which is passed on
    model = network(b=arrays["b"], e=np.abs(arrays["e"]))
    change = bench(model).apply()
    assert change.draft is not None and "1 channels cut off" in change.summary
    assert rows_of(change.draft, "one")[4] == 0.0 and rows_of(change.draft, "two")[4] == 0.0
    assert same(run_onnx(model, FEEDS), float_outputs(change.draft, FEEDS))
    # silent channels can be kept
    change = bench(model, silent_channels="keep").apply()
    assert change.draft is not None and "cut off" not in change.summary
    assert rows_of(change.draft, "one")[4] == pytest.approx(np.abs(weights()["w"][4]).max())
    loud = {"x": 3000 * normal(4, 3, 9, 9, seed=12)}
    assert same(run_onnx(model, loud), float_outputs(change.draft, loud))


def test_a_channel_that_is_read_before_its_activation_is_not_silent() -> None:
    text = (
        "(float[N,3,9,9] x) => (float[N,7,9,9] y) { [one] a = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(a) "
        "[two] c = Conv(r, k) [three] g = Conv(a, k2) y = Add(c, g) }"
    )
    arrays = {"w": weights()["w"], "b": np.full(CHANNELS, -1e4, np.float32), "k": weights()["k"]}
    model = make_model(text, {**arrays, "k2": normal(7, CHANNELS, 1, 1, seed=5)})
    change = bench(model).apply()
    assert change.draft is not None and "cut off" not in change.summary
    assert same(run_onnx(model, UNSEEN), float_outputs(change.draft, UNSEEN))


# Biases.


def offset(pads: str = "", of: float = 20, act: str = "Relu(a)", **changed: np.ndarray) -> onnx.ModelProto:
    """The first layer's results are always far above 0."""
    text = (
        f"(float[N,3,9,9] x) => (float[N,7,H,W] y) {{ [one] a = Conv(x, u, o) [act] r = {act} "
        f"[two] y = Conv{pads}(r, k) }}"
    )
    arrays = {"u": normal(CHANNELS, 3, 1, 1, scale=0.1), "o": np.full(CHANNELS, of, np.float32), "k": weights()["k"]}
    return make_model(text, arrays | changed)


def test_a_bias_that_is_always_passed_on_is_absorbed() -> None:
    model = offset()
    found = bench(model)
    change = found.apply()
    assert change.draft is not None and f"{CHANNELS} biases absorbed" in change.summary
    assert same(run_onnx(model, FEEDS), float_outputs(change.draft, FEEDS))
    wide, narrow = (draft.plan.ranges["r"].maximum for draft in (found.draft, change.draft))
    assert narrow < 0.5 * wide
    plain = applied(bench(model, absorb_bias=False))
    assert plain.plan.ranges["r"].maximum == pytest.approx(wide, rel=1e-3)
    assert quantized_db(change.draft, model) > quantized_db(plain, model)


@pytest.mark.parametrize("pads", ["<pads=[1,1,1,1]>", '<auto_pad="SAME_UPPER">'])
def test_a_layer_that_pads_absorbs_nothing(pads: str) -> None:
    change = bench(offset(pads, k=normal(7, CHANNELS, 3, 3, seed=4))).apply()
    assert "absorbed" not in change.summary


def test_pools_and_matrices_pass_an_absorbed_bias_on() -> None:
    text = (
        "(float[N,3,9,9] x) => (float[N,5] y) { [one] a = Conv(x, u, o) r = Relu(a) "
        "p = AveragePool<kernel_shape=[3,3], strides=[3,3]>(r) g = GlobalAveragePool(p) f = Flatten(g) "
        "[two] y = Gemm(f, m) }"
    )
    arrays = {"u": normal(CHANNELS, 3, 1, 1, scale=0.1), "o": np.full(CHANNELS, 20, np.float32)}
    model = make_model(text, {**arrays, "m": normal(CHANNELS, 5, seed=5)})
    change = bench(model).apply()
    assert change.draft is not None and "absorbed" in change.summary
    assert same(run_onnx(model, FEEDS), float_outputs(change.draft, FEEDS))


_MATRICES = {
    "a product has no bias to give": ("MatMul(x, u)", "Gemm(r, m)", False),
    "nor has one that is multiplied by 0": ("Gemm<beta=0.0>(x, u, o)", "Gemm(r, m)", False),
    "nor does such a one take any": ("Gemm(x, u, o)", "Gemm<beta=0.0>(r, m, n)", False),
    "factors of data and biases": ("Gemm<alpha=2.0, beta=4.0>(x, u, o)", "Gemm<alpha=0.5, beta=-0.25>(r, m, n)", True),
    "and of none": ("Gemm<beta=4.0>(x, u, o)", "Gemm<alpha=0.5, beta=-0.25, transB=1>(r, t)", True),
}


@pytest.mark.parametrize("case", _MATRICES)
def test_matrices_absorb_by_what_they_multiply_their_biases_with(case: str) -> None:
    maker, reader, absorbs = _MATRICES[case]
    text = f"(float[N,3] x) => (float[N,5] y) {{ [one] a = {maker} r = Relu(a) [two] y = {reader} }}"
    arrays = {"u": np.abs(normal(3, CHANNELS)) + 0.1, "o": normal(CHANNELS), "m": normal(CHANNELS, 5), "n": normal(5)}
    arrays["t"] = np.ascontiguousarray(arrays["m"].T)
    model = make_model(text, used(arrays, text))
    found = bench(model, feeds={"x": 9 + normal(16, 3)})
    change = found.apply()
    assert ("absorbed" in change.summary) == absorbs
    draft = found.draft if change.draft is None else change.draft
    onnx.checker.check_model(ir.to_proto(draft.prepared.model), full_check=True)
    assert same(run_onnx(model, found.feeds), float_outputs(draft, found.feeds))


def test_an_absorbed_bias_moves_an_exact_limit() -> None:
    model = offset(of=5.2, act="Clip(a, zero, six)", zero=weights()["zero"], six=weights()["six"])
    change = bench(model, replace_relu6="per_channel").apply()
    assert change.draft is not None and "absorbed" in change.summary
    assert same(run_onnx(model, FEEDS), float_outputs(change.draft, FEEDS))
    # further out some results reach the limit; where none falls below what was absorbed, all is as it was
    above = {"x": 1.5 * FEEDS["x"]}
    before, lowest = (run_onnx(with_output(model, "a"), feeds)["a"] for feeds in (above, FEEDS))
    passed = (before >= lowest.min(axis=(0, 2, 3), keepdims=True)).all(axis=1)
    assert (before.max(axis=1)[passed] > 6).any()
    expected, got = run_onnx(model, above)["y"], float_outputs(change.draft, above)["y"]
    np.testing.assert_allclose(got.transpose(0, 2, 3, 1)[passed], expected.transpose(0, 2, 3, 1)[passed], rtol=1e-3)


def test_small_biases_of_their_own_grid_take_part() -> None:
    bias = weights()["b"].copy()
    bias[np.argmin(GAINS)] = 40.0
    model = network(b=bias)
    npu = config(target="amd_npu_cnn", bias={"dtype": "int8"}, activation={"dtype": "int8", "symmetric": True})
    options = {"settings": npu, "use_activations": False}
    drafts = [applied(bench(model, scale_append_bias=heeded, **options)) for heeded in (True, False)]
    heeded, unheeded = (spread(np.abs(array_of(draft, "one", 2))) for draft in drafts)
    assert heeded < 0.5 * unheeded
    # biases on the grid of the products do not
    model = network()
    one, other = (applied(bench(model, scale_append_bias=heeded)) for heeded in (True, False))
    np.testing.assert_array_equal(rows_of(one, "one"), rows_of(other, "one"))


# The rest of the options.


def test_a_stem_is_equalized_through_its_normalization() -> None:
    text = (
        "(float[N,3,9,9] x) => (float[N,7,7,7] y) { [one] a = Conv(x, w, b) r = Relu(a) "
        "[norm] n = BatchNormalization(r, bn_scale, bn_bias, bn_mean, bn_var) [two] y = Conv(n, k) }"
    )
    arrays = {name: weights()[name] for name in ("w", "b", "k")}
    model = make_model(text, {**arrays, **batchnorm_weights(CHANNELS)})
    draft = applied(bench(model))
    assert same(run_onnx(model, UNSEEN), float_outputs(draft, UNSEEN))
    assert spread(rows_of(draft, "one")) < 0.5 * spread(rows_of(bench(model).draft, "one"))
    assert bench(model, stem=False).apply().draft is None


def test_options_of_the_search_are_passed_on() -> None:
    model = network()
    one, many = bench(model, steps=1).apply(), bench(model, steps=30).apply()
    assert "in 1 sweeps" in one.summary and "in 30 sweeps" in many.summary
    assert one.draft is not None and many.draft is not None
    assert not np.allclose(rows_of(one.draft, "two"), rows_of(many.draft, "two"), rtol=1e-3)
    assert bench(model, steps=0, absorb_bias=False).apply().draft is None
    # a threshold leaves small channels alone
    all_of_them = applied(bench(model, steps=1))
    few = applied(bench(model, steps=1, scale_use_threshold=True, weight_threshold=5.0))
    before = rows_of(bench(model).draft, "one")
    moved = [int((rows_of(draft, "one") != before).sum()) for draft in (all_of_them, few)]
    assert 0 < moved[1] < moved[0]
    # activations bind only if they are asked
    even = {"w": normal(CHANNELS, 3, 3, 3, scale=0.3), "d": np.abs(normal(CHANNELS, 1, 3, 3, seed=2))}
    model = network(**even, b=0.1 * normal(CHANNELS, seed=1))
    before = bench(model).draft.plan.ranges
    bound, free = (applied(bench(model, use_activations=use, steps=40)).plan.ranges for use in (True, False))
    assert all(bound[tensor].maximum <= before[tensor].maximum * 1.001 for tensor in ("r", "s"))
    assert any(free[tensor].maximum > before[tensor].maximum * 1.2 for tensor in ("r", "s"))


# The report.


def test_ranges_before_and_after_are_told() -> None:
    found = bench(network())
    change = found.apply()
    assert change.draft is not None and set(change.nodes) == {"one", "two", "three"}
    rows = {row.tensor: row for row in change.ranges}
    assert [rows[name].kind for name in ("w", "d", "k")] == ["weight"] * 3 and rows["d"].node == "two"
    for name, node in (("w", "one"), ("d", "two")):
        before, after = (array_of(draft, node) for draft in (found.draft, change.draft))
        assert (rows[name].before.minimum, rows[name].before.maximum) == (before.min(), before.max())
        assert (rows[name].after.minimum, rows[name].after.maximum) == (after.min(), after.max())
        assert rows[name].spread_after == pytest.approx(spread(rows_of(change.draft, node)))
        assert rows[name].spread_after < rows[name].spread_before
    seen = run_onnx(with_output(network(), "r"), FEEDS)["r"]
    assert rows["r"].kind == "activation" and rows["r"].before.maximum == pytest.approx(seen.max())
    assert rows["r"].after.maximum == change.draft.plan.ranges["r"].maximum
    assert rows["r"].spread_before == pytest.approx(spread(seen.max(axis=(0, 2, 3))))


def with_output(model: onnx.ModelProto, tensor: str) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.append(onnx.helper.make_tensor_value_info(tensor, onnx.TensorProto.FLOAT, None))
    return copy


def array_of(draft: Draft, node: str, index: int = 1) -> np.ndarray:
    found = constant(next(n for n in draft.graph if node_name(n) == node).inputs[index])
    assert found is not None
    return found


def rows_of(draft: Draft, node: str) -> np.ndarray:
    return np.abs(array_of(draft, node)).reshape(len(array_of(draft, node)), -1).max(axis=1)


def spread(sizes: np.ndarray) -> float:
    return float(sizes.max() / np.median(sizes[sizes > 0]))
