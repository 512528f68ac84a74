"""Outlier channels: found, treated in each way, without changing what the float network computes."""

from __future__ import annotations

import cProfile
import pstats
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from benchmarks.growth import products
from service.contracts.algorithms import CrossLayerEqualization, OutlierChannels
from service.contracts.config import parse_config
from tests.unit.quantizer.equalization.benches import Bench, emitted, gain_db, used
from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import Arrays, config, make_model, normal, prepare_proto, quantize_file, run_onnx
from worker.quantizer.equalization import outlier_channels
from worker.quantizer.equalization.channel_graph import ChannelGraph, ChannelRegion
from worker.quantizer.equalization.outlier_channels import (
    LEFT_TO_EQUALIZATION,
    NO_OUTLIERS,
    ChannelSplit,
    apply_split,
    wanted_pieces,
)
from worker.quantizer.graph.values import Names, constant
from worker.quantizer.modes.registry import step_of
from worker.quantizer.ops.channels import channel_axes
from worker.quantizer.refine.channels import find_outliers
from worker.quantizer.refine.step import Toolkit

C, WILD = 12, 5
TREATMENTS = ("split", "input_scale", "higher_bits", "auto")


def planted(weights: dict[str, np.ndarray], by: float, *, rows: str, bias: str, columns: str) -> dict[str, np.ndarray]:
    """Channel WILD times ``by`` where it is made, divided where it is read: rows lie on axis 0, columns on axis 1."""
    made = {name: array.copy() for name, array in weights.items()}
    made[rows][WILD] *= by
    made[bias][WILD] *= by
    made[columns][:, WILD] /= by
    return made


IMAGES = {"x": normal(24, 3, 8, 8, seed=7)}
LAST = {"k": normal(6, C, 1, 1, seed=2), "e": normal(6, seed=3)}
WHOLE = {"rows": "w", "bias": "b", "columns": "k"}


def convolutions(by: float = 100.0, act: str = "Relu(a)", **more: np.ndarray) -> tuple[onnx.ModelProto, Arrays]:
    text = (
        f"(float[N,3,8,8] x) => (float[N,6,4,4] y) {{ [one] a = Conv<pads=[1,1,1,1]>(x, w, b) [act] r = {act} "
        "[pool] p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) [two] y = Conv(p, k, e) }"
    )
    weights = {"w": normal(C, 3, 3, 3, scale=0.3), "b": normal(C, seed=1, scale=0.3), **LAST}
    return make_model(text, planted(weights, by, **WHOLE) | more), IMAGES


def wide_rows(rows: slice | int, **options: Any) -> tuple[onnx.ModelProto, Arrays]:
    """Of the first weight alone, so that nothing behind it makes up for it."""
    weight = normal(C, 3, 3, 3, scale=0.3)
    weight[rows] *= 100
    return convolutions(1.0, w=weight, **options)


def depthwise(by: float = 100.0) -> tuple[onnx.ModelProto, Arrays]:
    text = (
        f"(float[N,3,8,8] x) => (float[N,6,8,8] y) {{ [one] a = Conv(x, w, b) [act] r = Relu(a) "
        f"[mid] c = Conv<group={C}, pads=[1,1,1,1]>(r, d, f) [act2] s = Relu(c) [two] y = Conv(s, k, e) }}"
    )
    weights = {"w": normal(C, 3, 1, 1), "b": normal(C, seed=1, scale=0.3), **LAST}
    made = planted(weights, by, **WHOLE)
    made |= {"d": normal(C, 1, 3, 3, seed=4, scale=0.5), "f": normal(C, seed=5, scale=0.2)}
    made["f"][WILD] *= by
    return make_model(text, made), IMAGES


def residual(by: float = 100.0) -> tuple[onnx.ModelProto, Arrays]:
    """Both operands of an addition have the channel, and both readers of its result."""
    text = (
        "(float[N,3,8,8] x) => (float[N,6,8,8] y) { [one] a = Conv(x, w, b) [act] r = Relu(a) "
        "[mid] c = Conv<pads=[1,1,1,1]>(r, d, f) [add] t = Add(r, c) [act2] s = Relu(t) [two] y = Conv(s, k, e) }"
    )
    weights = {"w": normal(C, 3, 1, 1), "b": normal(C, seed=1, scale=0.3), **LAST}
    inner = {"d": normal(C, C, 3, 3, seed=4, scale=0.1), "f": normal(C, seed=5, scale=0.2)}
    made = planted(weights, by, **WHOLE) | planted(inner, by, rows="d", bias="f", columns="d")
    return make_model(text, made), IMAGES


def gemms(by: float = 100.0) -> tuple[onnx.ModelProto, Arrays]:
    text = (
        "(float[N,8] x) => (float[N,6] y) { [one] a = Gemm<transB=1>(x, w, b) [act] r = Relu(a) "
        "[two] y = Gemm<transB=1>(r, k, e) }"
    )
    weights = {"w": normal(C, 8), "b": normal(C, seed=1), "k": normal(6, C, seed=2), "e": normal(6, seed=3)}
    return make_model(text, planted(weights, by, **WHOLE)), {"x": normal(64, 8, seed=7)}


def transformer(by: float = 100.0) -> tuple[onnx.ModelProto, Arrays]:
    """LayerNormalization -> MatMul -> Gelu's like -> MatMul -> residual; the normalization makes the wild channel."""
    text = (
        f"(float[N,5,{C}] x) => (float[N,5,{C}] y) {{ [norm] n = LayerNormalization<axis=-1>(x, g, h) "
        "[up] u = MatMul(n, w) [bias] v = Add(u, b) [act] r = Relu(v) [down] d = MatMul(r, k) [add] y = Add(d, x) }"
    )
    weights = {
        "g": 1 + normal(C, seed=1, scale=0.1),
        "h": normal(C, seed=2, scale=0.1),
        "w": normal(C, 16, seed=3, scale=0.3),
        "b": normal(16, seed=4),
        "k": normal(16, C, seed=5, scale=0.3),
    }
    for name, factor in (("g", by), ("h", by), ("w", 1 / by)):
        weights[name][WILD] *= factor
    return make_model(text, weights), {"x": normal(24, 5, C, seed=7)}


CASES = {made.__name__: made for made in (convolutions, depthwise, residual, gemms, transformer)}


def bench(name: str, *, by: float = 100.0, **settings: Any) -> Bench:
    model, feeds = CASES[name](by)
    spec = OutlierChannels(**{"growth": 2.0, **settings.pop("spec", {})})
    return Bench(model, feeds, spec, config(**settings), held_back=0)


@pytest.mark.parametrize("name", CASES)
def test_the_wild_channel_is_found_and_named_and_nothing_without_one(name: str) -> None:
    draft = bench(name).draft
    found = find_outliers(draft.graph, draft.plan, 32.0)
    assert found
    assert all(one.channels == (WILD,) and one.ratio > 32 for one in found)
    assert {one.kind for one in found} == {"activation"}
    change = bench(name, by=1.0).apply()
    assert change.draft is None and change.reason == NO_OUTLIERS()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("treatment", TREATMENTS)
def test_a_treatment_keeps_the_function_and_brings_much_back(name: str, treatment: str) -> None:
    # the wild channel's weights are tiny beside the others of their row: only a scale brings them more steps
    weight = {} if treatment in ("auto", "input_scale") else {"weight": {"dtype": "int16"}}
    case = bench(name, spec={"treatment": treatment}, **weight)
    change = case.apply()
    if (name, treatment) == ("transformer", "split"):
        assert change.draft is None and "LayerNormalization" in change.summary
        return
    assert change.draft is not None, change.summary
    assert gain_db(case, change.draft) > 10


def test_where_outliers_are_looked_for() -> None:
    case = bench("convolutions", outlier_ratio=None)
    assert not case.draft.plan.spans
    assert case.apply().reason == NO_OUTLIERS()
    # a broad distribution has no outliers
    draft = Bench(*wide_rows(slice(C // 3)), OutlierChannels()).draft
    assert not find_outliers(draft.graph, draft.plan, 32.0)
    # a wild weight of one scale is found and treated
    case = bench("convolutions", weight={"granularity": "per_tensor"})
    kinds = [(one.kind, one.node) for one in find_outliers(case.draft.graph, case.draft.plan, 32.0)]
    assert kinds == [("activation", "act"), ("weight", "one")]
    change = case.apply()
    assert not find_outliers(change.draft.graph, change.draft.plan, 32.0)


def test_a_split_layer_has_the_weights_of_its_parts() -> None:
    case = bench("convolutions", spec={"treatment": "split", "growth": 0.25})
    change = case.apply()
    assert "1 channels split into 4" in change.summary
    assert change.draft.emitted_bytes() == case.apply().draft.emitted_bytes()
    before, after = ({node.name: node for node in draft.graph} for draft in (case.draft, change.draft))
    w, k, v, m = (constant(nodes[name].inputs[1]) for nodes in (before, after) for name in ("one", "two"))
    assert v.shape[0] == m.shape[1] == C + 3
    for channel in (WILD, C, C + 1, C + 2):
        np.testing.assert_allclose(v[channel], w[WILD] / 4, rtol=1e-6)
        np.testing.assert_array_equal(m[:, channel], k[:, WILD])


def test_higher_bits_stay_when_the_network_is_planned_anew_and_a_target_of_8_bits_takes_none() -> None:
    case = bench("convolutions", spec={"treatment": "higher_bits"})
    change = case.apply()
    again = case.toolkit.recalibrate(change.draft, change.draft.prepared)
    assert {entry.tensor: entry.spec.dtype for entry in again.plan.activations.values()}["r"] == "uint16"
    types = {tensor.name: tensor.data_type for tensor in emitted(again).graph.initializer}
    assert onnx.TensorProto.UINT16 in types.values()
    change = bench("convolutions", spec={"treatment": "higher_bits"}, preset="xint8").apply()
    assert change.draft is None
    assert "has to be int8 on target amd_npu_cnn" in change.summary


@pytest.mark.parametrize(
    ("text", "weights", "told"),
    [
        (
            "Clip(a, zero, six)",
            {"zero": np.float32(0), "six": np.float32(600)},
            "limits the channels that would be split",
        ),
        ("Sigmoid(a)", {}, "Sigmoid"),
        ("Mul(a, a)", {}, "Mul"),
        ("BatchNormalization(a, s, t, t, s)", {"s": np.ones(C, np.float32), "t": np.zeros(C, np.float32)}, None),
    ],
)
def test_what_cannot_be_split_is_told(text: str, weights: dict[str, np.ndarray], told: str | None) -> None:
    """Values that a function maps otherwise cannot be cut into parts; a folded normalization is none of them."""
    settings = config(weight={"granularity": "per_tensor"})
    change = Bench(*wide_rows(WILD, act=text, **weights), OutlierChannels(treatment="split"), settings).apply()
    if told is None:
        assert change.draft is not None
    else:
        assert change.draft is None and change.reason is not None
        assert change.reason.code == "outliers-left-alone"
        assert told in change.summary


QUICK = {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}


@pytest.mark.slow
@pytest.mark.parametrize("treatment", ["auto", "higher_bits"])
def test_others_may_follow(treatment: str, tmp_path: Path) -> None:
    model, feeds = residual()
    others = ("cross_layer_equalization", "smooth_quant", "bias_correction", "adaround")
    first = {"method": "outlier_channels", "treatment": treatment, "growth": 2.0, "accept": "always"}
    steps = [first, *({"method": method} for method in others)]
    settings = parse_config({"preset": "plain", "algorithms": steps, "evaluation": QUICK})
    report = quantize_file(tmp_path, model, feeds, settings).report
    before = quantize_file(tmp_path, model, feeds, config(evaluation=QUICK)).report
    assert [found.method for found in report.algorithms] == ["outlier_channels", *others]
    assert report.algorithms[0].kept
    assert report.fidelity.sqnr_db > before.fidelity.sqnr_db + 10
    if treatment == "higher_bits":
        assert any(row.activation_dtype == "uint16" for row in report.layers)


def test_the_report_names_them(tmp_path: Path) -> None:
    model, feeds = convolutions()
    settings = config(weight={"granularity": "per_tensor"}, evaluation=QUICK)
    report = quantize_file(tmp_path, model, feeds, settings).report
    found = {finding.code: finding for finding in report.findings}
    activation, weight = found["outlier-channels"], found["outlier-weight-channels"]
    assert activation.severity == weight.severity == "info"
    assert activation.where["channels"] == weight.where["channels"] == str(WILD)
    assert (activation.where["tensor"], weight.where["tensor"], weight.where["node"]) == ("r", "w", "one")
    assert float(activation.where["ratio"]) > 32
    healthy = quantize_file(tmp_path, convolutions(1.0)[0], feeds, settings).report
    assert not [finding for finding in healthy.findings if finding.code.startswith("outlier")]


def test_weights_are_left_to_the_equalization_that_follows() -> None:
    case = Bench(*wide_rows(WILD), OutlierChannels(), config(weight={"granularity": "per_tensor"}))
    plan = case.draft.plan.copy()
    plan.spans = {}  # as if the data did not wake the channel
    draft = replace(case.draft, plan=plan)
    following = replace(case.toolkit, to_come=[step_of(CrossLayerEqualization())])
    assert case.step.apply(draft, following).reason == LEFT_TO_EQUALIZATION()
    assert case.step.apply(draft, case.toolkit).draft is not None


WEIGHTS = {
    "w": normal(6, 3, 3, 3, scale=0.4), "b": normal(6, seed=1), "slopes": normal(6, 1, 1, seed=2),
    "deep": normal(6, 1, 3, 3, seed=3), "v": normal(6, 6, 3, 3, seed=4, scale=0.4),
    "term": normal(1, 6, 1, 1, seed=5), "one": normal(1, seed=6), "k": normal(4, 6, 1, 1, seed=7),
    "m": normal(6, 6, seed=8), "n": normal(6, 4, seed=9), "flat": np.array([-1, 6]), "spatial": np.array([2, 3]),
}  # fmt: skip
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
        region = None if value is None else ChannelGraph(graph).region(value, axis)
        if isinstance(region, ChannelRegion):
            apply_split(graph, region, ChannelSplit.of(region.channels, {0: 2, region.channels - 1: 3}), Names(graph))
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


@pytest.mark.parametrize("treatment", ["input_scale", "split"])
def test_work_grows_with_the_number_of_outliers(treatment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toolkit, "recalibrate", lambda _, draft, *__: draft)
    calls = []
    for blocks in (10, 20, 40):
        model = products(4 * blocks, wide=1000.0)
        case = Bench(model, {"x": normal(4, 4, 4)}, OutlierChannels(treatment=treatment), config())
        found = find_outliers(case.draft.graph, case.draft.plan, 32.0)
        with cProfile.Profile() as watch:
            treated = outlier_channels.TREATMENTS[treatment](case.step.spec, case.draft, found, case.toolkit)
        assert len(treated.told) > blocks / 2
        calls.append(pstats.Stats(watch).total_calls)
    assert calls[2] - calls[1] < 2.2 * (calls[1] - calls[0])
