"""What the emitted graph computes: a numpy simulation of the integers, and activations that saturation stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.unit.quantizer.toolbox import (
    Arrays,
    config,
    make_model,
    normal,
    op_types,
    prepare_proto,
    quantize_model,
    run_onnx,
)
from worker.quantizer.emit import emit
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import QuantizationPlan

GRIDS = [("uint8", False), ("uint8", True), ("int8", False), ("int8", True)]
Sums = Callable[[np.ndarray, np.ndarray], np.ndarray]


def convolve(x: np.ndarray, w: np.ndarray, group: int) -> np.ndarray:
    """Valid correlation of integers [n, c, h, w] in int64, the slow way."""
    rows, columns = x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1
    result = np.zeros((x.shape[0], w.shape[0], rows, columns), np.int64)
    for out, i, j in np.ndindex(result.shape[1:]):
        first = out // (w.shape[0] // group) * w.shape[1]
        window = x[:, first : first + w.shape[1], i : i + w.shape[2], j : j + w.shape[3]]
        result[:, out, i, j] = (window * w[out]).sum(axis=(1, 2, 3))
    return result


def rows_times(x: np.ndarray, w: np.ndarray, *, transposed: bool) -> np.ndarray:
    return x @ (w.T if transposed else w)


def centered(grid: IntegerGrid, values: np.ndarray) -> np.ndarray:
    return grid.quantize(values).astype(np.int64) - grid.zero_point.astype(np.int64)


def simulate(plan: QuantizationPlan, name: str, accumulated: np.ndarray, output: str) -> np.ndarray:
    """int32 sums -> the node's real output, by the plan's numbers alone."""
    bias = plan.biases[name]
    shape = (1, -1) + (1,) * (accumulated.ndim - 2)
    assert np.abs(accumulated).max() < 2**31
    total = accumulated + bias.integers.astype(np.int64).reshape(shape)
    real = (total * np.atleast_1d(bias.quantization.scale).astype(np.float64).reshape(shape)).astype(np.float32)
    if output not in plan.activations:
        return real
    grid = plan.activations[output].quantization
    return grid.dequantize(grid.quantize(real))


def assert_simulates(model: onnx.ModelProto, expected: np.ndarray, feeds: Arrays, step: float) -> None:
    """Equal but for values that float32 sums put on the other side of a rounding edge: one step, one in a hundred."""
    got = run_onnx(model, feeds, optimized=False)["y"]
    difference = np.abs(got - expected)
    assert difference.max() <= step * 1.001 + 1e-5 * np.abs(expected).max()
    assert (difference > 1e-5 * np.abs(expected).max()).mean() <= 0.01


def assert_integers_say(
    model: onnx.ModelProto, feeds: Arrays, sums_of: Sums, grid: tuple[str, bool], fine: str
) -> None:
    """``sums_of`` makes the int64 sums of centered inputs and integer weights."""
    settings = config(activation={"dtype": grid[0], "symmetric": grid[1]}, weight={"granularity": fine})
    _, plan, emitted = quantize_model(model, feeds, settings)
    sums = sums_of(
        centered(plan.activations["x"].quantization, feeds["x"]), plan.weights["w"].integers.astype(np.int64)
    )
    step = float(plan.activations["y"].quantization.scale) if "y" in plan.activations else 0.0
    assert_simulates(emitted, simulate(plan, "it", sums, "y"), feeds, step)


PER_OUTPUT = np.geomspace(0.1, 10, 8, dtype=np.float32)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("fine", ["per_channel", "per_tensor"])
def test_products_compute_what_the_integers_say(grid: tuple[str, bool], fine: str) -> None:
    for group in (1, 2, 4):
        text = f"(float[N,4,6,6] x) => (float[N,8,4,4] y) {{ [it] y = Conv<group={group}>(x, w, b) }}"
        weight = normal(8, 4 // group, 3, 3) * PER_OUTPUT.reshape(8, 1, 1, 1)
        model, sums = make_model(text, {"w": weight, "b": normal(8)}), partial(convolve, group=group)
        assert_integers_say(model, {"x": normal(3, 4, 6, 6)}, sums, grid, fine)
    weight = normal(8, 12) * PER_OUTPUT.reshape(8, 1)
    for trans_b, held in ((0, weight.T), (1, weight)):
        text = f"(float[N,12] x) => (float[N,8] y) {{ [it] y = Gemm<transB={trans_b}>(x, w, b) }}"
        sums = partial(rows_times, transposed=trans_b == 1)
        assert_integers_say(make_model(text, {"w": held, "b": normal(8)}), {"x": normal(20, 12)}, sums, grid, fine)


# Relu and Clip in front of a QuantizeLinear that saturates at the same places anyway.

CLIPS = {  # activation, calibration range of what stands before it
    "Relu(t)": (-3.0, 3.0),
    "Clip(t, zero, six)": (-3.0, 9.0),
    "Clip(t, zero, six) unreached": (-3.0, 4.0),
    "Clip(t, low, six)": (-9.0, 9.0),
    "Clip(t, low, six) unreached": (-2.0, 3.0),
    "Clip(t, minus_six, six)": (-9.0, 9.0),
    "Clip(t, minus_six, six) lopsided": (-9.0, 3.0),
    "Clip(t, , six)": (-5.0, 9.0),
    "Clip(t, zero)": (-5.0, 9.0),
    "Clip(t, one, six)": (-5.0, 9.0),
}
LIMITS = {"zero": 0.0, "six": 6.0, "low": -1.3, "minus_six": -6.0, "one": 1.0}


def clipped_model(case: str) -> onnx.ModelProto:
    """A convolution that passes x through, the activation, and a node that reads it on integers."""
    weights = {name: np.float32(value) for name, value in LIMITS.items()}
    weights |= {"w": np.ones((1, 1, 1, 1), np.float32), "w2": normal(3, 1, 1, 1), "b": np.zeros(1, np.float32)}
    call = case.removesuffix(" unreached").removesuffix(" lopsided")
    return make_model(
        f"(float[N,1,A,B] x) => (float[N,3,C,D] y) {{ t = Conv(x, w, b) [act] u = {call} y = Conv(u, w2) }}", weights
    )


def q_of(values: np.ndarray, grid: IntegerGrid) -> np.ndarray:
    """The runtime's own QuantizeLinear."""
    model = make_model(
        "(float[N] x) => (uint8[N] y) { y = QuantizeLinear(x, s, z) }", {"s": grid.scale, "z": grid.zero_point}
    )
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8 if grid.dtype == "uint8" else TensorProto.INT8
    return run_onnx(model, {"x": values}, optimized=False)["y"]


@pytest.mark.parametrize(("dtype", "symmetric"), GRIDS)
@pytest.mark.parametrize("case", CLIPS)
def test_an_activation_is_dropped_exactly_when_saturation_stands_for_it(case: str, dtype: str, symmetric: bool) -> None:
    low, high = CLIPS[case]
    feeds = {"x": np.linspace(low, high, 4 * 64, dtype=np.float32).reshape(4, 1, 8, 8)}
    settings = config(activation={"dtype": dtype, "symmetric": symmetric})
    _, plan, emitted = quantize_model(clipped_model(case), feeds, settings)
    grid = plan.activations["u"].quantization
    everywhere = np.concatenate([np.linspace(-20, 20, 200_001), [-1e30, 1e30, -np.inf, np.inf]]).astype(np.float32)
    activation = clipped_model(case).graph.node[1]
    limits = [LIMITS.get(name) for name in [*activation.input[1:], "", ""][:2]]
    lower = 0.0 if activation.op_type == "Relu" else limits[0]
    bounded = np.clip(everywhere, -np.inf if lower is None else lower, np.inf if limits[1] is None else limits[1])
    implied = bool((q_of(bounded.astype(np.float32), grid) == q_of(everywhere, grid)).all())
    assert (activation.op_type not in op_types(emitted)) == implied


@pytest.mark.parametrize("dtype", ["uint4", "int4"])
@pytest.mark.parametrize("case", CLIPS)
def test_onnxruntime_takes_limits_before_four_bits(case: str, dtype: str) -> None:
    """Emitted for the range that it saw, and fed with what lies beyond: every value keeps within the limits."""
    low, high = CLIPS[case]
    feeds = {"x": np.linspace(low, high, 4 * 64, dtype=np.float32).reshape(4, 1, 8, 8)}
    model = clipped_model(case)
    _, plan, emitted = quantize_model(model, feeds, config(activation={"dtype": dtype}))
    grid = plan.activations["u"].quantization
    wide = replace(grid, scale=np.asarray(grid.scale * 3, np.float32))  # the grid reaches beyond the limits
    plan.activations["u"].quantization = wide
    prepared, _ = prepare_proto(model)
    again = onnx.load_from_string(to_bytes(emit(prepared.model, plan).model))
    for made in (emitted, again):
        harsh = {"x": feeds["x"] * 10}
        exact = run_onnx(made, harsh, optimized=False)["y"]
        np.testing.assert_allclose(run_onnx(made, harsh)["y"], exact, rtol=1e-5, atol=1e-5)
    upper = case.startswith("Clip") and case != "Clip(t, zero)"
    assert ("Min" in op_types(again)) == upper


POOL = "r = Relu(t) p = MaxPool<kernel_shape=[3,3], strides=[2,2]>(r)"


@pytest.mark.parametrize(
    ("dtype", "shape", "after"),
    [
        ("uint8", "N,4,7,7", "y = Relu(t)"),
        ("uint4", "N,4,7,7", "y = Relu(t)"),
        ("uint4", "N,4,7,7", "y = Clip(t, zero, six)"),
        ("uint4", "N,4,2,2", f"{POOL} y = Conv(p, v)"),
        ("int4", "N,5", f"{POOL} f = Reshape(p, s) y = MatMul(f, g)"),
    ],
)
def test_limits_at_the_end_of_a_graph_and_before_pools_are_kept(dtype: str, shape: str, after: str) -> None:
    """Also where onnxruntime has no kernel for so few bits."""
    weights = {"w": normal(4, 3, 3, 3), "v": normal(4, 4, 2, 2), "g": normal(36, 5), "s": np.array([0, -1])}
    model = make_model(
        f"(float[N,3,9,9] x) => (float[{shape}] y) {{ t = Conv(x, w) {after} }}",
        {**weights, "zero": np.float32(0), "six": np.float32(6)},
    )
    feeds = {"x": normal(4, 3, 9, 9)}
    emitted = quantize_model(model, feeds, config(activation={"dtype": dtype}))[2]
    feeds["x"] *= 1 if "p" in after.split() else 3
    exact = run_onnx(emitted, feeds, optimized=False)["y"]
    np.testing.assert_allclose(run_onnx(emitted, feeds)["y"], exact, rtol=1e-4, atol=1e-4)
    assert "p = " in after or exact.min() == 0.0 < exact.max()


@pytest.mark.parametrize("limits", ["zero, hi", "lo, six", "lo, hi", ", hi"])
@pytest.mark.parametrize("dtype", ["uint8", "uint4", "int4"])
def test_limits_that_are_known_at_run_time_alone_are_kept(dtype: str, limits: str) -> None:
    model = make_model(
        "(float[N,1,4,4] x) => (float[N,4,4,4] y, float[N,4,4,4] u, float hi, float lo) { "
        "hi = ReduceMean<keepdims=0>(x) m = ReduceMin<keepdims=0>(x) lo = Div(m, six) t = Conv(x, w) "
        f"u = Clip(t, {limits}) y = Conv(u, v) }}",
        {"w": 3 * normal(4, 1, 1, 1), "v": normal(4, 4, 1, 1), "zero": np.float32(0), "six": np.float32(6)},
    )
    _, plan, emitted = quantize_model(model, {"x": 3 + 2 * normal(8, 1, 4, 4)}, config(activation={"dtype": dtype}))
    step = float(plan.activations["u"].quantization.scale)
    feeds = {"x": 1 + 0.1 * normal(8, 1, 4, 4)}  # other limits than in calibration
    for optimized in (True, False):
        _, u, hi, lo = run_onnx(emitted, feeds, optimized=optimized).values()
        assert u.max() <= (hi if "hi" in limits else 6) + step / 2
        assert u.min() >= (lo if "lo" in limits else 0 if "zero" in limits else -np.inf) - step / 2
