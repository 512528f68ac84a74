"""Channels split in random networks: the float network computes what it did."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import make_model, normal, prepare_proto, rng, run_onnx
from worker.quantizer.equalization.outliers.region import Region, find_region
from worker.quantizer.equalization.outliers.splitting import Split, apply_split, wanted_pieces
from worker.quantizer.operators.channel_axes import channel_axes


def random_stack(seed: int) -> onnx.ModelProto:
    """Convolutions with what may stand between them, residual joins among that, then a classifier."""
    draw, weights, text = rng(seed), {}, ""
    channels, size, source, count = 3, 8, "x", 0

    def name(array: np.ndarray) -> str:
        weights[f"c{len(weights)}"] = array
        return f"c{len(weights) - 1}"

    def add(operator: str) -> str:
        nonlocal text, count
        count += 1
        text += f"[n{count}] t{count} = {operator} "
        return f"t{count}"

    def noise(*shape: int) -> str:
        return name((draw.standard_normal(shape) * 0.4).astype(np.float32))

    for _ in range(3):
        out = int(draw.integers(3, 7))
        bias = f", {noise(out)}" if draw.random() < 0.7 else ""
        if draw.random() < 0.3:
            source = add(f"ConvTranspose<pads=[1,1,1,1]>({source}, {noise(channels, out, 3, 3)}{bias})")
        else:
            source = add(f"Conv<pads=[1,1,1,1]>({source}, {noise(out, channels, 3, 3)}{bias})")
        channels = out
        for kind in draw.choice(9, int(draw.integers(1, 5))):
            if kind == 0:
                source = add(f"Relu({source})")
            elif kind == 1:
                source = add(f"LeakyRelu<alpha=0.2>({source})")
            elif kind == 2:
                source = add(f"PRelu({source}, {noise(channels, 1, 1)})")
            elif kind == 3:
                source = add(f"Conv<group={channels}, pads=[1,1,1,1]>({source}, {noise(channels, 1, 3, 3)})")
            elif kind == 4:
                join = add(f"Conv<pads=[1,1,1,1]>({source}, {noise(channels, channels, 3, 3)}, {noise(channels)})")
                source = add(f"Add({source}, {join})")
            elif kind == 5:
                source = add(f"{('Add', 'Sub')[seed % 2]}({noise(1, channels, 1, 1)}, {source})")
            elif kind == 6 and size > 2:
                source, size = add(f"MaxPool<kernel_shape=[2,2], strides=[2,2]>({source})"), size // 2
            elif kind == 7:
                source = add(f"Neg({source})")
            elif kind == 8:
                source = add(f"Add({source}, {noise(1)})")
    source = add(f"GlobalAveragePool({source})")
    if seed % 3 == 0:
        source = add(f"Flatten({source})")
    elif seed % 3 == 1:
        source = add(f"Reshape({source}, {name(np.array([-1, channels]))})")
    else:
        source = add(f"Squeeze({source}, {name(np.array([2, 3]))})")
    hidden = 5
    if seed % 2:
        source = add(f"Gemm<transB=1, alpha=0.5>({source}, {noise(hidden, channels)}, {noise(hidden)})")
    else:
        source = add(f"MatMul({source}, {noise(channels, hidden)})")
    source = add(f"Relu({source})")
    text += f"[last] y = Gemm({source}, {noise(hidden, 4)}, {noise(4)})"
    return make_model(f"(float[N,3,8,8] x) => (float[N,4] y) {{ {text} }}", weights)


@pytest.mark.parametrize("network", ["stack", "random"])
@pytest.mark.parametrize(
    "seed", [seed if seed < 6 else pytest.param(seed, marks=pytest.mark.long) for seed in range(25)]
)
def test_any_network_computes_the_same_when_its_channels_are_split(network: str, seed: int) -> None:
    built = RandomNetwork(seed) if network == "random" else None
    model, inputs = (random_stack(seed), ["x"]) if built is None else (built.model, built.inputs)
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
    assert network == "random" or split >= 2


def test_the_widest_go_first_and_no_further_than_the_goal() -> None:
    spans = np.array([1.0, 40.0, 2.0, 10.0])
    assert wanted_pieces(spans, [1, 3], 10.0, 100) == {1: 4}
    assert wanted_pieces(spans, [1, 3], 5.0, 100) == {1: 8, 3: 2}
    assert wanted_pieces(spans, [1, 3], 1.0, 3) == {1: 4}
    assert wanted_pieces(spans, [1, 3], 1.0, 5) == {1: 5, 3: 2}
