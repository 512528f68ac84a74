"""Channels tied by dataflow, against onnxruntime: whatever positive factors the groups get, the outputs stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.quantizer.equalization.benches import used
from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import Arrays, batchnorm_weights, make_model, normal, prepare_proto, rng, run_onnx
from worker.quantizer.equalization.channel_groups import Flow, follow
from worker.quantizer.equalization.channel_scaling import LimitPolicy, rewrite_limits, scale_layers
from worker.quantizer.ops.labels import PINNED

EXACT = LimitPolicy("per_channel", "")
IMAGE = "(float[N,3,8,8] x)"
FIRST = "a = Conv<pads=[1,1,1,1]>(x, w, b)"  # 6 channels
LAST = "y = Conv(z, k)"
SHAPES = {
    "w": (6, 3, 3, 3), "b": (6,), "w2": (6, 6, 3, 3), "b2": (6,), "dw": (6, 1, 3, 3), "gw": (6, 3, 1, 1),
    "k": (4, 6, 1, 1), "k12": (4, 12, 1, 1), "k3": (4, 3, 1, 1), "k24": (4, 24, 1, 1), "up": (6, 5, 2, 2),
    "gup": (6, 3, 2, 2), "dup": (6, 1, 2, 2), "k5": (4, 5, 1, 1), "fc": (6, 5), "fct": (5, 6), "fcb": (5,),
    "flat": (6 * 64, 5), "m1": (3, 8), "m2": (8, 5), "term": (6, 1, 1), "row": (8,), "slopes": (6, 1, 1),
    "wg": (6, 3, 1, 1), "w2b": (6, 6, 3, 3), "w1": (1, 3, 1, 1), "wc": (6, 3, 3, 3), "w24": (24, 3, 1, 1),
}  # fmt: skip
WEIGHTS = {
    **{name: normal(*shape, seed=seed) for seed, (name, shape) in enumerate(SHAPES.items())},
    "low": np.array(0, np.float32), "high": np.array(1, np.float32), "under": np.array(-0.5, np.float32),
    "half": np.array(0.5, np.float32), "pads": np.array([0, 0, 1, 0, 0, 0, 1, 0], np.int64),
    "one": np.array(1, np.float32), "grow": np.array([0, 2, 0, 0, 0, 4, 0, 0], np.int64),
    "sizes": np.array([1, 1, 2, 2], np.float32), "shape": np.array([0, -1], np.int64),
    "spatial": np.array([2, 3], np.int64), "halves": np.array([3, 3], np.int64), "three": np.array([3], np.int64),
    "six": np.array([6], np.int64), "axis1": np.array([1], np.int64), "order": np.array([5, 0, 3, 1, 4, 2], np.int64),
    "shuffle": np.array([0, 2, 3, 8, 8], np.int64), "unshuffle": np.array([0, 6, 8, 8], np.int64),
    "to6": np.array([0, 0, 0, 0, 0, 3, 0, 0], np.int64), **batchnorm_weights(6),
}  # fmt: skip

# Text behind the first convolution up to z, which the last one reads, or up to y; and the groups that are not pinned.
PASSED = {
    "nothing": ("z = Identity(a)", 6),
    "relu": ("z = Relu(a)", 6),
    "leaky relu": ("z = LeakyRelu<alpha=0.3>(a)", 6),
    "prelu, a slope per channel": ("z = PRelu(a, slopes)", 6),
    "clip": ("z = Clip(a, low, high)", 6),
    "clip below zero": ("z = Clip(a, under, high)", 6),
    "clip above": ("z = Clip(a, , high)", 6),
    "clip below": ("z = Clip(a, under)", 6),
    "max and min": ("r = Max(a, under) z = Min(high, r)", 6),
    "abs and neg": ("r = Neg(a) z = Abs(r)", 6),
    "pools": ("p = MaxPool<kernel_shape=[2,2]>(a) z = AveragePool<kernel_shape=[2,2], pads=[1,1,1,1]>(p)", 6),
    "global pool": ("z = GlobalAveragePool(a)", 6),
    "mean": ("z = ReduceMean<axes=[2,3]>(a)", 6),
    "padding": ("z = Pad(a, pads)", 6),
    "reflection": ('z = Pad<mode="reflect">(a, pads)', 6),
    "resize": ('z = Resize<mode="linear">(a, , sizes)', 6),
    "transposed and back": ("t = Transpose<perm=[0,2,3,1]>(a) z = Transpose<perm=[0,3,1,2]>(t)", 6),
    "order changed": ("z = Gather<axis=1>(a, order)", 6),
    "channels shuffled": ("s = Reshape(a, shuffle) t = Transpose<perm=[0,2,1,3,4]>(s) z = Reshape(t, unshuffle)", 6),
    "factor": ("z = Mul(a, half)", 6),
    "divisor": ("z = Div(a, half)", 6),
    "term": ("z = Add(a, term)", 6),
    "term first": ("z = Sub(term, a)", 6),
    "gate": ("g = GlobalAveragePool(x) h = Conv(g, wg) s = Sigmoid(h) z = Mul(a, s)", 6),
    "twice itself": ("z = Add(a, a)", 6),
    "depthwise": ("c = Conv<group=6>(a, dw, b2) r = Relu(c) z = Identity(r)", 12),
    "grouped": ("c = Conv<group=2>(a, gw) z = Relu(c)", 12),
    "residual": ("c = Conv<pads=[1,1,1,1]>(a, w2, b2) s = Add(a, c) z = Relu(s)", 6),
    "residual of branches": ("c = Conv<pads=[1,1,1,1]>(a, w2) d = Conv<pads=[1,1,1,1]>(c, w2b) z = Add(d, a)", 12),
    "added to one": ("g = GlobalAveragePool(x) h = Conv(g, w1) z = Add(a, h)", 1),
    "unfolded normalization": ("r = Relu(a) z = BatchNormalization(r, bn_scale, bn_bias, bn_mean, bn_var)", 12),
}
REARRANGED = {
    "joined": ("c = Conv<pads=[1,1,1,1]>(x, wc) z = Concat<axis=1>(a, c) y = Conv(z, k12)", 12),
    "joined in space": ("c = Conv<pads=[1,1,1,1]>(x, wc) z = Concat<axis=2>(a, c)", 6),
    "split": ("z, u = Split<axis=1>(a, halves) s = Add(z, u) y = Conv(s, k3)", 3),
    "half of them": ("z = Slice(a, three, six, axis1) y = Conv(z, k3)", 6),
    "new channels of zeros": ("g = Pad(a, grow) y = Conv(g, k12)", 12),
    "space to depth": ("s = SpaceToDepth<blocksize=2>(a) y = Conv(s, k24)", 6),
    "depth to space": ("c = Conv(x, w24) s = DepthToSpace<blocksize=2>(c) z = Relu(s)", 6),
    "depth to space by columns": ('c = Conv(x, w24) s = DepthToSpace<blocksize=2, mode="CRD">(c) z = Relu(s)', 6),
    "transposed convolution": ("u = ConvTranspose<strides=[2,2]>(a, up) r = Relu(u) y = Conv(r, k5)", 11),
    "transposed, grouped": ("z = ConvTranspose<group=2, strides=[2,2]>(a, gup, b2)", 12),
    "transposed, depthwise": ("z = ConvTranspose<group=6, strides=[2,2]>(a, dup)", 12),
}
MATRICES = {
    "flattened": ("r = Relu(a) f = Flatten(r) y = Gemm(f, flat, fcb)", 6),
    "reshaped": ("r = Relu(a) f = Reshape(r, shape) y = MatMul(f, flat)", 6),
    "pooled and squeezed": ("g = GlobalAveragePool(a) f = Squeeze(g, spatial) y = Gemm(f, fc, fcb)", 6),
    "transposed weight": ("g = GlobalAveragePool(a) f = Flatten(g) y = Gemm<transB=1, alpha=0.5>(f, fct)", 6),
    "weighted bias": ("g = GlobalAveragePool(a) f = Flatten(g) y = Gemm<beta=2.0>(f, fc, fcb)", 6),
}
PINNED_BY = {
    "a graph output": "z = Relu(a)",
    "an operator that does not commute with factors": "s = Sigmoid(a) z = Identity(s)",
    "a product of two": "z = Mul(a, a)",
    "a sum with what is fed": "c = Pad(x, to6) z = Add(a, c)",
    "padding with another number": "z = Pad(a, pads, one)",
    "limits that exclude zero": "z = Clip(a, high)",
    "a sum of unknown rank": "s = Shape(a) e = Equal(s, s) t = Compress(s, e) u = Reshape(a, t) z = Add(term, u)",
    "a mean over channels": "m = ReduceMean<axes=[1]>(a) z = Sub(a, m)",
}


def equal_under_random_factors(model: onnx.ModelProto, feeds: Arrays, *, rtol: float = 1e-4) -> Flow:
    """Scale all groups at random; what the outputs were and what they are must agree."""
    prepared, before = prepare_proto(model)
    graph = prepared.model.graph
    flow = follow(graph)
    factors = np.exp(rng(3).uniform(-2, 2, flow.groups))
    factors[PINNED] = 1.0
    scale_layers(graph, flow, factors)
    rewrite_limits(graph, flow, factors, np.zeros(flow.groups), EXACT)
    after = ir.to_proto(prepared.model)
    onnx.checker.check_model(after)
    expected, got = run_onnx(before, feeds), run_onnx(after, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=rtol, atol=rtol * max(np.abs(array).max(), 1e-3))
    return flow


def image_model(text: str, results: str = "float[N,4,H,W] y") -> onnx.ModelProto:
    start = "" if "a" not in text.replace("(", " ").replace(",", " ").replace(")", " ").split() else FIRST
    body = " ".join([start, text, "" if "y = " in text else LAST])
    return make_model(f"{IMAGE} => ({results}) {{ {body} }}", used(WEIGHTS, body))


def images() -> dict[str, np.ndarray]:
    return {"x": normal(3, 3, 8, 8, seed=30)}


@pytest.mark.parametrize("case", [*PASSED, *REARRANGED, *MATRICES])
def test_channels_are_followed_through(case: str) -> None:
    text, free = (PASSED | REARRANGED | MATRICES)[case]
    model = image_model(text, "float[N,5] y" if case in MATRICES else "float[N,4,H,W] y")
    assert equal_under_random_factors(model, images()).groups - 1 == free


def test_channels_of_tokens_and_those_that_share_a_weight_or_a_bias() -> None:
    text = "(float[N,7,3] x) => (float[N,7,5] y) { a = MatMul(x, m1) t = Add(a, row) r = Relu(t) y = MatMul(r, m2) }"
    model = make_model(text, {name: WEIGHTS[name] for name in ("m1", "m2", "row")})
    flow = equal_under_random_factors(model, {"x": normal(2, 7, 3)})
    assert flow.groups - 1 == 8 and flow.channels["r"].shape == (1, 1, 8)
    # a shared weight takes no factors and a shared bias does
    weight = "r = Relu(a) c = Conv<pads=[1,1,1,1]>(r, w2, b) s = Relu(c) z = Conv<pads=[1,1,1,1]>(s, w2)"
    assert equal_under_random_factors(image_model(weight), images()).groups == 1
    bias = "r = Relu(a) z = Conv<pads=[1,1,1,1]>(r, w2, b)"
    assert equal_under_random_factors(image_model(bias), images()).groups - 1 == 12
    # normalizations take scales only if they may
    prepared, _ = prepare_proto(image_model(PASSED["unfolded normalization"][0]))
    assert follow(prepared.graph).groups - 1 == 12
    assert follow(prepared.graph, through_normalizations=False).groups == 1


@pytest.mark.parametrize("case", PINNED_BY)
def test_channels_are_pinned_by(case: str) -> None:
    results = "float[N,4,H,W] y, float[N,6,H,W] z" if case == "a graph output" else "float[N,4,H,W] y"
    model = image_model(PINNED_BY[case], results)
    assert not equal_under_random_factors(model, images()).channels["a"].any()


def test_a_limit_that_scales_as_one_stays_one() -> None:
    weights = {"w": normal(1, 3, 3, 3), "b": normal(1), "k": normal(4, 1, 1, 1)}
    limits = {name: WEIGHTS[name] for name in ("high", "under")}
    text = f"{IMAGE} => (float[N,4,8,8] y) {{ {FIRST} z = Clip(a, under, high) {LAST} }}"
    model = make_model(text, weights | limits)
    prepared, _ = prepare_proto(model)
    equal_under_random_factors(model, images())
    flow = follow(prepared.graph)
    rewrite_limits(prepared.graph, flow, np.array([1.0, 3.0]), np.zeros(2), EXACT)
    assert [node.op_type for node in prepared.graph] == ["Conv", "Clip", "Conv"]


@given(seed=st.integers(0, 10_000))
def test_random_networks_compute_the_same(seed: int) -> None:
    network = RandomNetwork(seed)
    feeds = {name: normal(2, 3, 8, 8, seed=seed % 7) for name in network.inputs}
    equal_under_random_factors(network.model, feeds, rtol=1e-3)
