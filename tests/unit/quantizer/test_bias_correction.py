"""Bias correction in closed form against what it promises: the mean output of a layer on the calibration data."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.unit.quantizer.toolbox import (
    Arrays,
    config,
    input_infos,
    make_model,
    normal,
    plan_for,
    quantize_file,
    run_onnx,
)
from worker.quantizer.data import ArrayDataset
from worker.quantizer.emit import emit
from worker.quantizer.equalization import bias_correction
from worker.quantizer.plan.parameters import fill_activations, fill_parameters
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.run import SilentRun
from worker.quantizer.runtime import to_bytes
from worker.quantizer.statistics.collect import Request, collect
from worker.quantizer.statistics.reducers import MinMax

CORRECTED = config(algorithms=[{"method": "bias_correction"}], weight={"granularity": "per_tensor"})


def corrected_plan(model: onnx.ModelProto, feeds: Arrays) -> tuple[ir.Graph, QuantizationPlan, int]:
    prepared, plan = plan_for(model, CORRECTED)
    means = bias_correction.requests(prepared.graph, plan)
    reducers = {tensor: MinMax() for tensor in plan.ranges_needed()}
    requests = [*(Request(tensor, reducer) for tensor, reducer in reducers.items()), *means]
    collect(prepared.model, requests, ArrayDataset(feeds), input_infos(model), limit=None, threads=1, run=SilentRun())
    fill_activations(plan, {tensor: reducer.result() for tensor, reducer in reducers.items()})
    fill_parameters(prepared.graph, plan)
    count = bias_correction.correct_biases(prepared.graph, plan, means)
    return prepared.graph, plan, count


def with_rounded_parameters(model: onnx.ModelProto, plan: QuantizationPlan) -> onnx.ModelProto:
    """The float model with the plan's dequantized weights and biases: all that correction can see."""
    rounded = onnx.ModelProto()
    rounded.CopyFrom(model)
    entries = [*plan.weights.values(), *plan.biases.values()]
    arrays = {
        entry.initializer: entry.quantization.dequantize(entry.integers) for entry in entries if entry.quantization
    }
    for k, tensor in enumerate(rounded.graph.initializer):
        if tensor.name in arrays:
            rounded.graph.initializer[k].CopyFrom(onnx.numpy_helper.from_array(arrays[tensor.name], tensor.name))
    return rounded


def channel_means(model: onnx.ModelProto, feeds: Arrays) -> np.ndarray:
    output = run_onnx(model, feeds)["y"].astype(np.float64)
    return output.mean(axis=tuple(k for k in range(output.ndim) if k != 1))


def uncorrected(plan: QuantizationPlan, bias: np.ndarray) -> None:
    for entry in plan.biases.values():
        entry.integers = entry.quantization.quantize(bias)


LAYERS = {
    "gemm": ("(float[N,12] x) => (float[N,8] y) { [it] y = Gemm(x, w, b) }", (12, 8), (64, 12)),
    "gemm transB": ("(float[N,12] x) => (float[N,8] y) { [it] y = Gemm<transB=1>(x, w, b) }", (8, 12), (64, 12)),
    # 1x1 kernels: every window has the mean of the whole
    "conv": ("(float[N,4,6,6] x) => (float[N,8,6,6] y) { [it] y = Conv(x, w, b) }", (8, 4, 1, 1), (16, 4, 6, 6)),
    "conv1d": ("(float[N,4,9] x) => (float[N,8,9] y) { [it] y = Conv(x, w, b) }", (8, 4, 1), (16, 4, 9)),
    "conv3d": (
        "(float[N,4,3,3,3] x) => (float[N,8,3,3,3] y) { [it] y = Conv(x, w, b) }",
        (8, 4, 1, 1, 1),
        (9, 4, 3, 3, 3),
    ),
    "grouped": (
        "(float[N,4,6,6] x) => (float[N,8,6,6] y) { [it] y = Conv<group=2>(x, w, b) }",
        (8, 2, 1, 1),
        (16, 4, 6, 6),
    ),
    "depthwise": (
        "(float[N,8,6,6] x) => (float[N,8,6,6] y) { [it] y = Conv<group=8>(x, w, b) }",
        (8, 1, 1, 1),
        (16, 8, 6, 6),
    ),
}


def layer(case: str) -> tuple[onnx.ModelProto, Arrays, np.ndarray]:
    text, weight, data = LAYERS[case]
    bias = normal(8, seed=7)
    values = normal(*data, seed=9)
    # every channel has a mean of its own, else there is nothing to correct
    values += np.linspace(-3, 5, data[1], dtype=np.float32).reshape(1, -1, *[1] * (len(data) - 2))
    return make_model(text, {"w": normal(*weight, seed=3), "b": bias}), {"x": values}, bias


@pytest.mark.parametrize("case", LAYERS)
def test_the_mean_output_of_a_layer_is_restored(case: str) -> None:
    model, feeds, bias = layer(case)
    _, plan, count = corrected_plan(model, feeds)
    assert count == 1
    expected = channel_means(model, feeds)
    corrected = np.abs(channel_means(with_rounded_parameters(model, plan), feeds) - expected)
    step = np.atleast_1d(plan.biases["it"].quantization.scale).max()
    assert corrected.max() <= step * 0.51 + 1e-5
    uncorrected(plan, bias)
    assert np.abs(channel_means(with_rounded_parameters(model, plan), feeds) - expected).max() > 10 * step


@pytest.mark.parametrize("group", [1, 2, 4])
def test_whole_kernels_are_summed_per_channel(group: int) -> None:
    """Constant channels: every window of an unpadded convolution sees exactly the mean."""
    weight = normal(8, 4 // group, 3, 3, seed=3)
    model = make_model(
        f"(float[N,4,6,6] x) => (float[N,8,4,4] y) {{ [it] y = Conv<group={group}>(x, w, b) }}",
        {"w": weight, "b": normal(8, seed=7)},
    )
    levels = np.array([3.0, -1.0, 0.5, 2.0], np.float32).reshape(1, 4, 1, 1)
    feeds = {"x": np.broadcast_to(levels, (4, 4, 6, 6)) * np.array([0.5, 1.5, 1, 1], np.float32).reshape(4, 1, 1, 1)}
    feeds = {"x": np.ascontiguousarray(feeds["x"], np.float32)}
    _, plan, _ = corrected_plan(model, feeds)
    got = channel_means(with_rounded_parameters(model, plan), feeds)
    step = np.atleast_1d(plan.biases["it"].quantization.scale).max()
    np.testing.assert_allclose(got, channel_means(model, feeds), rtol=0, atol=step * 0.51 + 1e-5)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_the_shift_is_the_weight_error_times_the_mean(group: int) -> None:
    """Brute force over every weight, for a padded and strided convolution too."""
    model = make_model(
        f"(float[N,4,7,7] x) => (float[N,8,4,4] y) {{ [it] y = Conv<group={group}, pads=[1,1,1,1], strides=[2,2]>(x, "
        f"w, b) }}",
        {"w": normal(8, 4 // group, 3, 3, seed=3), "b": normal(8)},
    )
    graph, plan, _ = corrected_plan(model, {"x": normal(4, 4, 7, 7)})
    mean = np.array([1.0, -2.0, 0.25, 4.0])
    entry = plan.weights["w"]
    lost = graph.initializers["w"].const_value.numpy() - entry.quantization.dequantize(entry.integers)
    expected = np.zeros(8)
    for out, inner, i, j in np.ndindex(*lost.shape):
        expected[out] += lost[out, inner, i, j] * mean[out // (8 // group) * (4 // group) + inner]
    node = next(node for node in graph if node.name == "it")
    np.testing.assert_allclose(bias_correction.mean_shift(node, plan, mean), expected, rtol=1e-5, atol=1e-7)


def test_both_readers_of_a_shared_weight_are_corrected_by_their_own_input() -> None:
    model = make_model(
        "(float[N,12] x) => (float[N,8] y, float[N,8] z) { s = Sin(x) [one] y = Gemm(x, w, b) [two] z = Gemm(s, w, c) "
        "}",
        {"w": normal(12, 8), "b": normal(8, seed=1), "c": normal(8, seed=2)},
    )
    feeds = {"x": normal(64, 12) + 2}
    _, plan, count = corrected_plan(model, feeds)
    assert count == 2
    expected, got = run_onnx(model, feeds), run_onnx(with_rounded_parameters(model, plan), feeds)
    for name in "yz":
        difference = np.abs(got[name].mean(axis=0) - expected[name].mean(axis=0))
        assert difference.max() < 0.01 * np.abs(expected[name]).max()


LEFT_ALONE = {
    "without a bias": "[it] y = MatMul(x, w)",
    "with a float bias": "[it] y = Gemm<alpha=0.5>(x, w, b)",
    "that transposes its input": "t = Transpose<perm=[1,0]>(x) [it] y = Gemm<transA=1>(t, w, b)",
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_nodes_are_left_alone(case: str) -> None:
    model = make_model(
        f"(float[N,12] x) => (float[N,8] y) {{ {LEFT_ALONE[case]} }}", {"w": normal(12, 8), "b": normal(8)}
    )
    _, _, count = corrected_plan(model, {"x": normal(16, 12)})
    assert count == 0


def test_the_corrected_plan_still_emits_and_helps() -> None:
    model, feeds, bias = layer("depthwise")
    prepared, _ = plan_for(model, CORRECTED)
    _, plan, _ = corrected_plan(model, feeds)
    expected = channel_means(model, feeds)

    def error() -> float:
        emitted = emit(ir.from_proto(ir.to_proto(prepared.model)), plan)
        return float(np.abs(channel_means(onnx.load_from_string(to_bytes(emitted)), feeds) - expected).max())

    after = error()
    uncorrected(plan, bias)
    assert after < error() / 3


def test_the_pipeline_runs_it_when_the_config_asks(tmp_path) -> None:
    model, feeds, _ = layer("conv")
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    corrected = quantize_file(tmp_path / "with", model, feeds, CORRECTED)
    plain = quantize_file(tmp_path / "without", model, feeds, config(weight={"granularity": "per_tensor"}))
    assert corrected.model != plain.model
    assert corrected.report.fidelity.sqnr_db > plain.report.fidelity.sqnr_db
