"""Channels split in random networks: the float network computes what it did."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.unit.quantizer.equalization.benches import used
from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import make_model, normal, prepare_proto, run_onnx
from worker.quantizer.equalization.outliers.region import Region, find_region
from worker.quantizer.equalization.outliers.splitting import Split, apply_split, wanted_pieces
from worker.quantizer.operators.channel_axes import channel_axes

WEIGHTS = {
    "w": normal(6, 3, 3, 3, scale=0.4),
    "b": normal(6, seed=1),
    "slopes": normal(6, 1, 1, seed=2),
    "deep": normal(6, 1, 3, 3, seed=3),
    "v": normal(6, 6, 3, 3, seed=4, scale=0.4),
    "term": normal(1, 6, 1, 1, seed=5),
    "one": normal(1, seed=6),
    "k": normal(4, 6, 1, 1, seed=7),
    "m": normal(6, 6, seed=8),
    "n": normal(6, 4, seed=9),
    "flat": np.array([-1, 6]),
    "spatial": np.array([2, 3]),
}
FIRST = "a = Conv<pads=[1,1,1,1]>(x, w, b) "
# behind the first convolution
STACKS = {
    "prelu": "r = PRelu(a, slopes) y = Conv(r, k)",
    "leaky": "l = LeakyRelu<alpha=0.2>(a) r = Neg(l) y = Conv(r, k)",
    "depthwise": "c = Conv<group=6, pads=[1,1,1,1]>(a, deep, b) r = Relu(c) y = Conv(r, k)",
    "residual": "c = Conv<pads=[1,1,1,1]>(a, v, b) s = Add(a, c) r = Relu(s) y = Conv(r, k)",
    "minuend": "s = Sub(term, a) r = Relu(s) y = Conv(r, k)",
    "sum with one": "s = Add(a, one) r = MaxPool<kernel_shape=[2,2], strides=[2,2]>(s) y = Conv(r, k)",
    "transposed": "c = ConvTranspose<pads=[1,1,1,1]>(a, v, b) r = Relu(c) y = Conv(r, k)",
    "flattened": "g = GlobalAveragePool(a) f = Flatten(g) h = Gemm<transB=1, alpha=0.5>(f, m, b) r = Relu(h) "
    "y = Gemm(r, n)",
    "reshaped": "g = GlobalAveragePool(a) f = Reshape(g, flat) h = MatMul(f, m) r = Relu(h) y = Gemm(r, n)",
    "squeezed": "g = GlobalAveragePool(a) f = Squeeze(g, spatial) h = MatMul(f, m) r = Relu(h) y = MatMul(r, n)",
}


def check_splits(model: onnx.ModelProto, inputs: list[str], seed: int) -> int:
    """Splits channels wherever it can be done, and compares outputs; how many tensors were split."""
    prepared, exact = prepare_proto(model)
    feeds = {name: normal(4, 3, 8, 8, seed=seed + k) for k, name in enumerate(inputs)}
    split = 0
    for name, axis in [(value.name, axis) for value, axis in channel_axes(prepared.graph).items()]:
        graph = prepared.graph  # as it is by now: regions may touch
        value = next((value for node in graph for value in node.outputs if value.name == name), None)
        region = None if value is None else find_region(graph, value, axis)
        if isinstance(region, Region):
            apply_split(graph, region, Split.of(region.channels, {0: 2, region.channels - 1: 3}))
            split += 1
    want, got = run_onnx(exact, feeds), run_onnx(ir.to_proto(prepared.model), feeds)
    assert list(want) == list(got)
    for name, array in want.items():
        assert got[name].shape == array.shape
        np.testing.assert_allclose(got[name], array, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(array).max())))
    return split


@pytest.mark.parametrize("case", STACKS)
def test_a_network_computes_the_same_when_its_channels_are_split(case: str) -> None:
    text = FIRST + STACKS[case]
    result = "float[N,4,H,W] y" if "Conv(r, k)" in text else "float[N,4] y"
    assert check_splits(make_model(f"(float[N,3,8,8] x) => ({result}) {{ {text} }}", used(WEIGHTS, text)), ["x"], 0)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 25))])
def test_random_networks_do(seed: int) -> None:
    network = RandomNetwork(seed)
    check_splits(network.model, network.inputs, seed)


def test_the_widest_go_first_and_no_further_than_the_goal() -> None:
    spans = np.array([1.0, 40.0, 2.0, 10.0])
    assert wanted_pieces(spans, [1, 3], 10.0, 100) == {1: 4}
    assert wanted_pieces(spans, [1, 3], 5.0, 100) == {1: 8, 3: 2}
    assert wanted_pieces(spans, [1, 3], 1.0, 3) == {1: 4}
    assert wanted_pieces(spans, [1, 3], 1.0, 5) == {1: 5, 3: 2}
