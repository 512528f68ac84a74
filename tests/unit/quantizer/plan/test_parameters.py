"""Filling a plan with numbers: axes of weights, shared ones, biases, and what follows whatever grid moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from service.contracts.errors import EngineError
from tests.unit.quantizer.toolbox import Arrays, config, make_model, normal, plan_for, quantize_model, run_onnx, sqnr_db
from worker.quantizer.graph.values import node_name
from worker.quantizer.numerics.integer import PER_TENSOR, PerAxis
from worker.quantizer.plan.grids import fill_activations
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import PlanLog, QuantizationPlan
from worker.quantizer.statistics.observers import Range


def filled(
    text: str,
    weights: Arrays,
    ranges: dict[str, tuple[float, float]],
    plan_log: PlanLog | None = None,
    **settings: object,
) -> QuantizationPlan:
    prepared, plan = plan_for(make_model(text, weights), config(**settings))
    fill_activations(prepared.graph, plan, {name: Range(*pair) for name, pair in ranges.items()})
    (plan_log or PlanLog()).note(*Parameters(prepared.graph, plan).fill())
    return plan


CONV = "(float[N,3,9,9] x) => (float[N,4,7,7] y) { [it] y = Conv(x, w, b) }"
RANGES = {"x": (-1.0, 2.0), "y": (-3.0, 3.0)}


def test_weights_and_biases_are_rounded_per_output_channel() -> None:
    weight = normal(4, 3, 3, 3) * np.array([1, 10, 0.1, 100], np.float32).reshape(4, 1, 1, 1)
    bias = normal(4, scale=3)
    plan = filled(CONV, {"w": weight, "b": bias}, RANGES)
    entry = plan.weights["w"]
    largest = np.abs(weight).reshape(4, -1).max(axis=1)
    np.testing.assert_allclose(entry.quantization.scale, largest / 127, rtol=1e-6)
    assert entry.quantization.scale.dtype == np.float32
    assert (entry.quantization.zero_point == 0).all()
    assert entry.integers.dtype == np.int8
    assert (np.abs(entry.integers).reshape(4, -1).max(axis=1) == 127).all()
    error = np.abs(entry.quantization.dequantize(entry.integers) - weight).reshape(4, -1).max(axis=1)
    assert (error <= largest / 254 * 1.0001).all()
    made = plan.biases["it"]  # on the grid of input times weight
    expected = plan.activations["x"].quantization.scale.astype(np.float64) * entry.quantization.scale
    np.testing.assert_allclose(made.quantization.scale, expected, rtol=1e-7)
    assert (made.quantization.zero_point == 0).all()
    assert made.integers.dtype == np.int32
    np.testing.assert_array_equal(made.integers, np.rint(bias / made.quantization.scale.astype(np.float64)))


@pytest.mark.parametrize("group", [1, 2])
def test_the_bias_of_a_transposed_convolution_follows_its_groups(group: int) -> None:
    weight = normal(4, 6 // group, 3, 3) * np.linspace(0.5, 4, 6 // group, dtype=np.float32).reshape(1, -1, 1, 1)
    plan = filled(
        f"(float[N,4,9,9] x) => (float[N,6,11,11] y) {{ [it] y = ConvTranspose<group={group}>(x, w, b) }}",
        {"w": weight, "b": normal(6)},
        RANGES,
    )
    scale = plan.weights["w"].quantization.scale
    assert scale.shape == (6 // group,)
    expected = np.concatenate([scale] * group) * plan.activations["x"].quantization.scale
    np.testing.assert_allclose(plan.biases["it"].quantization.scale, expected, rtol=1e-6)


@pytest.mark.parametrize("dead", [slice(2, 3), slice(0, 4)])
def test_a_dead_channel_keeps_its_bias(dead: slice) -> None:
    weight = normal(4, 3, 3, 3)
    weight[dead] = 0
    model = make_model(CONV, {"w": weight, "b": np.array([0.1, -0.2, 0.77, 0.3], np.float32)})
    feeds = {"x": normal(4, 3, 9, 9)}
    _, plan, emitted = quantize_model(model, feeds)
    scale = plan.weights["w"].quantization.scale
    if dead == slice(2, 3):
        assert scale[2] == pytest.approx(np.median(scale[[0, 1, 3]]))
    found = run_onnx(emitted, feeds)["y"][:, 2]
    assert np.abs(found - 0.77).max() <= float(plan.activations["y"].quantization.scale) * 0.51


TINY = np.float32(1e-12)


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_a_weight_too_small_for_its_bias_gets_a_larger_scale_and_a_note(granularity: str) -> None:
    """b / (scale_x * scale_w) would not fit into int32 and wrap around or saturate: the output would be nonsense."""
    weight = normal(4, 3, 3, 3)
    weight[1] *= TINY
    if granularity == "per_tensor":
        weight *= TINY
    bias = np.array([0.5, -2.0, 1.0, 0.25], np.float32)
    model = make_model(CONV, {"w": weight, "b": bias})
    feeds = {"x": normal(8, 3, 9, 9)}
    settings = config(weight={"granularity": granularity})
    plan_log = PlanLog()
    _, plan, emitted = quantize_model(model, feeds, settings, plan_log)
    entry = plan.biases["it"]
    assert np.abs(entry.integers.astype(np.int64)).max() <= 2**29 * (1 + 1e-6)
    error = np.abs(entry.quantization.dequantize(entry.integers) - bias)
    assert (error <= np.maximum(entry.quantization.scale * 0.51, np.abs(bias) * 1e-6)).all()
    raised = 4 if granularity == "per_tensor" else 1
    assert plan_log.notes == [f"weight scales raised so that the int32 bias fits; node (channels): it ({raised})"]
    assert sqnr_db(run_onnx(model, feeds)["y"], run_onnx(emitted, feeds)["y"]) > 35


def test_the_guard_looks_at_every_reader_of_a_shared_weight() -> None:
    weight = normal(4, 3, 3, 3)
    weight[1] *= TINY
    small, large = np.zeros(4, np.float32), np.array([0, 3.0, 0, 0], np.float32)
    model = make_model(
        "(float[N,3,9,9] x) => (float[N,4,7,7] y, float[N,4,7,7] z) { [one] y = Conv(x, w, a) [two] z = Conv(x, w, b) "
        "}",
        {"w": weight, "a": small, "b": large},
    )
    feeds = {"x": normal(8, 3, 9, 9)}
    plan_log = PlanLog()
    _, plan, emitted = quantize_model(model, feeds, plan_log=plan_log)
    assert len(plan_log.notes) == 1
    for name in ("one", "two"):
        assert np.abs(plan.biases[name].integers.astype(np.int64)).max() <= 2**29 * (1 + 1e-6)
    expected, got = run_onnx(model, feeds), run_onnx(emitted, feeds)
    assert min(sqnr_db(expected[name], got[name]) for name in "yz") > 35


@pytest.mark.parametrize("found", [(np.nan, 1.0), (-np.inf, 1.0), (0.0, np.inf), (np.inf, -np.inf), None])
def test_a_range_that_is_not_finite_or_not_there_is_an_error(found: tuple[float, float] | None) -> None:
    ranges = {"x": (0.0, 1.0), **({} if found is None else {"y": found})}
    with pytest.raises(EngineError) as caught:
        filled(CONV, {"w": normal(4, 3, 3, 3), "b": normal(4)}, ranges)
    assert caught.value.where == {"tensor": "y"}
    assert "'y'" in caught.value.detail


SHARED = (
    "(float[N,3,9,9] x) => (float[N,4,7,7] y, float[N,4,7,7] z) { [one] y = Conv(x, w, a) [two] z = Conv(x, w, b) }"
)
WEIGHTS = {"w": normal(4, 3, 3, 3), "a": normal(4, seed=1), "b": normal(4, seed=2, scale=3)}
NAMES = {"one": "a", "two": "b"}


def home_of(**settings: object) -> tuple[dict[str, ir.Node], QuantizationPlan, Parameters]:
    prepared, plan, _ = quantize_model(make_model(SHARED, WEIGHTS), {"x": normal(8, 3, 9, 9)}, config(**settings))
    return {node_name(node): node for node in prepared.graph}, plan, Parameters(prepared.graph, plan)


def assert_on_product(plan: QuantizationPlan, nodes: dict[str, ir.Node], parameters: Parameters) -> None:
    """Both biases lie on input scale times weight scale, and are what they were."""
    scale = plan.activations["x"].quantization.scale * plan.weights["w"].quantization.scale
    for name, initializer in NAMES.items():
        bias = parameters.of(nodes[name], 2)
        np.testing.assert_allclose(bias.grid.scale, scale, rtol=1e-6)
        np.testing.assert_allclose(bias.present, WEIGHTS[initializer], atol=float(np.max(scale)))
        np.testing.assert_array_equal(bias.unrounded, WEIGHTS[initializer])


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_every_bias_follows_the_grids_that_one_node_or_a_target_moves(granularity: str) -> None:
    nodes, plan, parameters = home_of(weight={"granularity": granularity})
    grid = plan.weights["w"].quantization
    wide = replace(grid, scale=grid.scale * np.float32(1.7))
    parameters.put_integers(nodes["one"], 1, wide.quantize(WEIGHTS["w"]), wide)
    assert plan.weights["w"].quantization is wide
    assert_on_product(plan, nodes, parameters)
    source = plan.activations["x"].quantization
    moved = replace(wide, scale=wide.scale * 2)
    parameters.move(sources={"x": replace(source, scale=source.scale * 2)}, weights={"w": moved})
    np.testing.assert_array_equal(plan.weights["w"].integers, moved.quantize(WEIGHTS["w"]))
    assert_on_product(plan, nodes, parameters)


def test_a_corrected_bias_keeps_its_value_when_the_weight_moves() -> None:
    nodes, plan, parameters = home_of()
    corrected = np.linspace(-1, 1, 4)
    parameters.put(nodes["two"], 2, corrected)
    grid = plan.weights["w"].quantization
    parameters.move(weights={"w": replace(grid, scale=grid.scale * np.float32(0.5))})
    after = parameters.of(nodes["two"], 2)
    np.testing.assert_allclose(after.present, corrected, atol=2 * float(np.max(after.grid.scale)))
    np.testing.assert_array_equal(after.unrounded, after.present)
    np.testing.assert_array_equal(parameters.of(nodes["one"], 2).unrounded, WEIGHTS["a"])


def test_a_copy_of_the_plan_puts_parameters_back() -> None:
    nodes, plan, parameters = home_of()
    before, present = plan.copy(), parameters.of(nodes["one"], 1).present
    parameters.put(nodes["one"], 1, -WEIGHTS["w"], refit=True)
    parameters.put(nodes["one"], 2, np.zeros(4))
    assert not np.array_equal(parameters.of(nodes["one"], 1).present, present)
    parameters.restore(before)
    np.testing.assert_array_equal(parameters.of(nodes["one"], 1).present, present)
    assert_on_product(plan, nodes, parameters)


ALL_WEIGHTS = {"w": normal(4, 3, 3, 3), "w2": normal(4, 4, 3, 3), "fc": normal(4, 5), "b": normal(4)}


def planned(
    text: str, weights: Arrays | None = None, opset: int = 17, plan_log: PlanLog | None = None, **settings: object
) -> QuantizationPlan:
    model = make_model(text, ALL_WEIGHTS if weights is None else weights, opset=opset)
    return plan_for(model, config(**settings), plan_log)[1]


@pytest.mark.parametrize(
    ("call", "shape", "axis"),
    [
        ("Conv(i, k)", (6, 4, 3, 3), 0),
        ("Conv<group=2>(i, k)", (6, 2, 3, 3), 0),
        ("ConvTranspose(i, k)", (4, 6, 3, 3), 1),
        ("ConvTranspose<group=2>(i, k)", (4, 3, 3, 3), 1),
        ("ConvTranspose<group=4>(i, k)", (4, 1, 3, 3), 0),
        ("ConvTranspose<group=4>(i, k)", (4, 2, 3, 3), 0),
        ("Gemm(x, k)", (4, 6), 1),
        ("Gemm<transB=1>(x, k)", (6, 4), 0),
        ("MatMul(x, k)", (4, 6), 1),
        ("MatMul(x, k)", (3, 4, 6), None),
    ],
)
def test_the_channel_axis_of_weights(call: str, shape: tuple[int, ...], axis: int | None) -> None:
    rank = ",".join("ABCD"[: len(shape)])
    text = f"(float[2,4] x, float[1,4,9,9] i) => (float[{rank}] y) {{ y = {call} }}"
    for settings, wanted in (
        ({}, PER_TENSOR if axis is None else PerAxis(axis)),
        ({"weight": {"granularity": "per_tensor"}}, PER_TENSOR),
    ):
        assert planned(text, {"k": normal(*shape)}, **settings).weights["k"].granularity == wanted


@pytest.mark.parametrize("per_group", [1, 2])
def test_depthwise_transposed_channels_keep_scales_and_biases_of_their_own(per_group: int) -> None:
    weight = normal(4, per_group, 3, 3) * np.float32([1e-3, 1, 30, 500]).reshape(4, 1, 1, 1)
    bias = normal(4 * per_group, scale=0.01)
    model = make_model(
        "(float[1,4,9,9] x) => (float[A,B,C,D] y) { t = ConvTranspose<group=4>(x, k, b) y = Identity(t) }",
        {"k": weight, "b": bias},
    )
    feeds = {"x": normal(1, 4, 9, 9)}
    wanted = config(include=[{"op_type": "ConvTranspose"}], activation={"dtype": "int16"})
    _, plan, quantized = quantize_model(model, feeds, wanted)
    grid, entry = plan.weights["k"].quantization, next(iter(plan.biases.values()))
    assert grid.scale.shape == (4,)
    for group in range(4):
        assert sqnr_db(weight[group], grid.fake(weight)[group]) > 30
    np.testing.assert_allclose(
        entry.quantization.scale, np.repeat(grid.scale, per_group) * plan.activations["x"].quantization.scale
    )
    assert sqnr_db(run_onnx(model, feeds)["y"], run_onnx(quantized, feeds)["y"]) > 30


@pytest.mark.parametrize(("second", "shared"), [("Gemm(s, k)", True), ("Gemm<transB=1>(s, k)", False)])
def test_a_shared_weight_is_planned_once_and_along_one_axis(second: str, shared: bool) -> None:
    plan_log = PlanLog()
    text = f"(float[2,5] x) => (float[2,5] y, float[2,5] z) {{ y = Gemm(x, k) s = Sin(x) z = {second} }}"
    plan = planned(text, {"k": normal(5, 5)}, plan_log=plan_log)
    assert list(plan.weights) == ["k"]
    assert plan.weights["k"].granularity == (PerAxis(1) if shared else PER_TENSOR)
    assert ["'k' is read along different axes" in note for note in plan_log.notes] == [True] * (not shared)


BIASES = {
    "Gemm(x, fc, v)": None, "Gemm(x, fc, row)": None, "Gemm<alpha=0.5>(x, fc, v)": "alpha or beta",
    "Gemm<beta=2.0>(x, fc, v)": "alpha or beta", "Gemm(x, fc, one)": "shape [1]",
    "Gemm(x, fc, column)": "shape [5, 1]", "Gemm(x, fc, full)": "shape [5, 5]", "Gemm(x, fc, given)": "not constant",
    "Gemm(x, fc, bad)": "NaN or Inf",
}  # fmt: skip


@pytest.mark.parametrize("call", BIASES)
def test_biases_that_cannot_be_int32_say_why(call: str) -> None:
    plan = planned(
        f"(float[5,4] x, float[5] given) => (float[5,5] y) {{ [it] y = {call} }}",
        {
            **ALL_WEIGHTS,
            "v": normal(5),
            "row": normal(1, 5),
            "one": normal(1),
            "column": normal(5, 1),
            "full": normal(5, 5),
            "bad": np.full(5, np.nan, np.float32),
        },
    )
    assert plan.nodes["it"].quantized
    reason = plan.biases["it"].reason
    assert (reason is None) == (BIASES[call] is None)
    assert reason is None or BIASES[call] in reason.words
