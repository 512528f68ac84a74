"""XINT8 for AMD's NPU: replaced operators, aligned positions and shifts, judged by the independent checker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.config import parse_config
from tests.support.each import each
from tests.support.npu_checker import check_npu_model
from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import (
    Arrays,
    config,
    make_model,
    normal,
    op_types,
    plan_for,
    prepare_proto,
    quantize_file,
    quantize_model,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.plan.targets import move_grids
from worker.quantizer.plan.targets.amd_npu import pooling_factor
from worker.quantizer.plan.types import PlanLog, QuantizationPlan, Role

CONV = {"w": normal(4, 3, 3, 3, scale=0.4), "w2": normal(4, 4, 3, 3, scale=0.3), "b": normal(4)}
IMAGES = {"x": normal(16, 3, 9, 9)}


def left(plan: QuantizationPlan) -> tuple[str, ...]:
    return tuple(name for name, entry in plan.nodes.items() if not entry.quantized)


def npu(
    text: str, weights: Arrays = CONV, feeds: Arrays = IMAGES, *, keeps_rules: bool = True, **settings: Any
) -> tuple[QuantizationPlan, onnx.ModelProto, PlanLog]:
    plan_log = PlanLog()
    model = make_model(text, weights)
    _, plan, emitted = quantize_model(model, feeds, config(target="amd_npu_cnn", **settings), plan_log)
    onnx.checker.check_model(emitted, full_check=True)
    assert bool(check_npu_model(emitted, excluded=left(plan))) is not keeps_rules
    return plan, emitted, plan_log


def where(plan_log: PlanLog, rule: str) -> set[str]:
    return {decision.where for decision in plan_log.decisions if decision.rule == rule}


def position(plan: QuantizationPlan, tensor: str) -> int:
    return -int(np.log2(plan.activations[tensor].quantization.scale))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 150), marks=pytest.mark.long)], ids=["some", "all"])
def test_random_networks_keep_every_rule(seeds: range) -> None:
    for seed in seeds:
        network = RandomNetwork(seed)
        feeds = {name: normal(6, 3, 8, 8, seed=seed + k) for k, name in enumerate(network.inputs)}
        plan_log = PlanLog()
        _, plan, emitted = quantize_model(network.model, feeds, config(target="amd_npu_cnn"), plan_log)
        onnx.checker.check_model(emitted, full_check=True)
        conflicts = {decision.where for decision in plan_log.decisions if decision.conflict}
        violations = [v for v in check_npu_model(emitted, excluded=left(plan)) if v.node not in conflicts]
        assert not violations, (seed, violations)
        for name, array in run_onnx(emitted, feeds).items():
            assert np.isfinite(array).all(), (seed, name)


@pytest.mark.parametrize(
    "call",
    [
        "Relu(t)",
        "LeakyRelu<alpha=0.1>(t)",
        "PRelu(t, slope)",
        "Clip(t, zero, six)",
        "Clip(t, zero, one)",
        "Clip(t, zero, four)",
    ],
)
def test_no_pair_stands_between_a_convolution_and_what_it_takes_in(call: str) -> None:
    limits = {"zero": np.float32(0), "one": np.float32(1), "four": np.float32(4), "six": np.float32(6)}
    plan, *_ = npu(
        f"(float[N,3,9,9] x) => (float[N,4,5,5] y) {{ t = Conv(x, w, b) [it] u = {call} y = Conv(u, w2) }}",
        {**CONV, **limits, "slope": np.full((4, 1, 1), 0.2, np.float32)},
    )
    fused = "four" not in call
    assert plan.nodes["it"].role is (Role.FUSED if fused else Role.UNARY)
    assert ("t" in plan.activations) is not fused
    assert not left(plan)


@given(st.integers(1, 40), st.integers(1, 40))
def test_pooling_factors_are_the_nearest_that_the_hardware_has(height: int, width: int) -> None:
    area, factor = height * width, pooling_factor(height, width)
    assert [pooling_factor(k, k) for k in (1, 2, 4, 8)] == [1.0] * 4
    table = {(3, 3): 63 / 64, (5, 5): 250 / 256, (6, 6): 252 / 256, (7, 7): 1029 / 1024, (14, 14): 4116 / 4096}
    if (height, width) in table:
        assert factor == table[height, width]
    elif area > 255:
        assert factor == 1.0
    else:
        highest = int(np.ceil(np.log2(area))) + 7
        tried = [abs(round(2**n / area) / 2**n - 1 / area) for n in range(highest)]
        assert abs(factor / area - 1 / area) == pytest.approx(min(tried), abs=1e-15)


POOLED = "(float[N,3,9,9] x) => (float[N,4,C,D] y) {{ t = Conv(x, w) u = {} y = Conv(u, one) }}"


@pytest.mark.parametrize(
    ("call", "factor"),
    [
        ("AveragePool<kernel_shape=[3,3]>(t)", 63 / 64),
        ("AveragePool<kernel_shape=[2,2]>(t)", None),
        ("GlobalAveragePool(t)", 1029 / 1024),
        ("ReduceMean<axes=[2,3]>(t)", 1029 / 1024),
        ("ReduceMean<axes=[-1,-2]>(t)", 1029 / 1024),
        ("ReduceMean<axes=[1]>(t)", None),
    ],
)
def test_averages_are_computed_as_the_hardware_divides(call: str, factor: float | None) -> None:
    channels = 1 if "axes=[1]" in call else 4
    weights = {**CONV, "one": normal(4, channels, 1, 1)}
    model = make_model(POOLED.format(call), weights)
    plan_log = PlanLog()
    prepared, _ = plan_for(model, config(target="amd_npu_cnn"), plan_log)
    made = [decision for decision in plan_log.decisions if decision.rule.startswith("dpu_")]
    assert bool(made) == (factor is not None)
    if factor is None:
        return
    assert made[0].what == f"times {factor:.6g}"
    # what is simulated computes the exact average times the factor
    exact, simulated = prepare_proto(model)[1], ir.to_proto(prepared.model)
    for graph in (exact.graph, simulated.graph):
        graph.output.append(onnx.ValueInfoProto(name="u"))
    np.testing.assert_allclose(
        run_onnx(simulated, IMAGES)["u"], run_onnx(exact, IMAGES)["u"] * factor, rtol=1e-4, atol=1e-6
    )


GATED = (
    "(float[N,3,9,9] x) => (float[N,4,5,5] y) { t = Conv(x, w, b) [gate] s = Sigmoid(t) [swish] m = Mul(t, s) y = "
    "Conv(m, w2) }"
)


def test_sigmoid_is_replaced_and_reported() -> None:
    plan, emitted, plan_log = npu(GATED)
    assert "HardSigmoid" in op_types(emitted) and "Sigmoid" not in op_types(emitted)
    assert where(plan_log, "sigmoid_to_hard_sigmoid") == where(plan_log, "dpu_hard_sigmoid") == {"gate"}
    assert not left(plan)


@pytest.mark.slow
@each(("text", "code"), [(GATED, "functions-replaced"), (GATED.replace("[gate] s = Sigmoid", "s = Relu"), "")])
def test_what_a_replaced_function_costs_is_found(text: str, code: str, tmp_path: Path) -> None:
    settings = parse_config({"preset": "npu_int8", "algorithms": [], "evaluation": {"latency_runs": 1}})
    report = quantize_file(tmp_path, make_model(text, {**CONV, "w2": normal(4, 4, 3, 3)}), IMAGES, settings).report
    codes = [found.code for found in report.findings if found.code.startswith("functions-replaced")]
    assert [found[: len(code)] for found in codes] == ([code] if code else [])


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (GATED, {"target_options": {"sigmoid_to_hard_sigmoid": False}}),
        (GATED, {"exclude": [{"op_type": "Sigmoid"}]}),
        (GATED, {"exclude": [{"node": "gate"}]}),
        ("(float[N,3,9,9] x) => (float[N,4,7,7] y) { t = Conv(x, w, b) [gate] y = Sigmoid(t) }", {}),
    ],
    ids=["switched off", "excluded by type", "excluded by name", "makes scores"],
)
def test_a_sigmoid_that_is_not_replaced_stays_in_float(text: str, settings: dict[str, Any]) -> None:
    plan, emitted, plan_log = npu(text, **settings)
    assert "Sigmoid" in op_types(emitted)
    assert not where(plan_log, "sigmoid_to_hard_sigmoid")
    assert not plan.nodes["gate"].quantized
    assert "t" in plan.activations


def test_hard_swish_is_split_into_what_computes_the_same() -> None:
    text = "(float[N,3,9,9] x) => (float[N,4,7,7] y) { t = Conv(x, w, b) [it] y = HardSwish(t) }"
    model, plan_log = make_model(text, CONV), PlanLog()
    off = config(target="amd_npu_cnn", target_options={"dpu_hard_sigmoid": False})
    prepared, plan = plan_for(model, off, plan_log)
    made = run_onnx(ir.to_proto(prepared.model), IMAGES)["y"]
    np.testing.assert_allclose(made, run_onnx(model, IMAGES)["y"], rtol=1e-5, atol=1e-6)
    assert where(plan_log, "split_hard_swish") == {"it"}
    assert plan.nodes["it"].quantized
    assert not left(npu(text)[0])


def test_divisions_become_products_and_slopes_are_rounded_to_256ths() -> None:
    text = "t = Conv(x, w, b) r = LeakyRelu<alpha=0.1>(t) [it] u = Div(r, six) y = Conv(u, w2)"
    text = f"(float[N,3,9,9] x) => (float[N,4,5,5] y) {{ {text} }}"
    weights = {**CONV, "six": np.float32(6)}
    plan, emitted, plan_log = npu(text, weights)
    assert where(plan_log, "div_to_mul") == {"it"}
    (leaky,) = [node for node in emitted.graph.node if node.op_type == "LeakyRelu"]
    assert (leaky.attribute[0].f, left(plan)) == (26 / 256, ())
    assert sqnr_db(run_onnx(make_model(text, weights), IMAGES)["y"], run_onnx(emitted, IMAGES)["y"]) > 15


def test_what_moves_is_quantized_anew() -> None:
    """Operands of a Concat lie on one position; and weights so small that the shift of the products is too long."""
    weights = {**CONV, "big": np.full((1, 1, 7, 7), 90.0, np.float32), "w3": normal(2, 5, 1, 1)}
    text = "t = Conv(x, w, b) [join] c = Concat<axis=1>(t, big) y = Conv(c, w3)"
    text = f"(float[1,3,9,9] x) => (float[1,2,7,7] y) {{ {text} }}"
    plan, _, plan_log = npu(text, weights, {"x": normal(1, 3, 9, 9)})
    assert position(plan, "t") == position(plan, "c") == 0
    moved = plan.weights["big"]
    np.testing.assert_array_equal(moved.quantization.dequantize(moved.integers), weights["big"])
    assert "t" in where(plan_log, "align_concat")
    weights = {"w": normal(4, 3, 3, 3, scale=1e-6), "b": np.full(4, 3.0, np.float32)}
    plan, _, plan_log = npu("(float[N,3,9,9] x) => (float[N,4,7,7] y) { y = Conv(x, w, b) }", weights)
    moved = plan.weights["w"]
    assert "w" in where(plan_log, "shift_cut") | where(plan_log, "shift_bias")
    made, step = moved.quantization.dequantize(moved.integers), float(moved.quantization.scale)
    np.testing.assert_allclose(made, weights["w"], atol=step / 2)
    assert not left(plan)


RULES = {
    "align_concat": "[join] y = Concat<axis=1>(t, big)", "shift_read": "r = Relu(t) y = Add(r, tiny)",
    "shift_cut": "r = Relu(t) y = Conv(r, thin, b)", "align_pool": "y = AveragePool<kernel_shape=[3,3]>(t)",
    "int8_bias": "y = Relu(t)", "xint8": "y = Relu(t)",
}  # fmt: skip


@pytest.mark.parametrize("option", RULES)
def test_without_its_option_a_rule_is_not_kept(option: str) -> None:
    weights = {**CONV, "big": np.full((1, 1, 7, 7), 90.0, np.float32), "tiny": np.full((4, 1, 1), 1e-6, np.float32)}
    weights |= {"thin": normal(4, 4, 1, 1, scale=1e-6)}
    feeds = {"x": normal(1, 3, 9, 9)}
    text = f"(float[1,3,9,9] x) => (float[1,A,B,C] y) {{ t = Conv(x, w, b) {RULES[option]} }}"
    assert not left(npu(text, weights, feeds)[0])
    # the limit of the bias would keep that of the cut as well
    off = {option: False, **({"shift_bias": False} if option == "shift_cut" else {})}
    plan, *_ = npu(text, weights, feeds, target_options=off, keeps_rules=option == "int8_bias")
    if option == "int8_bias":
        assert {bias.quantization.dtype for bias in plan.biases.values()} == {"int32"}
    if option == "align_pool":
        assert [e.role for e in plan.nodes.values() if e.op_type == "AveragePool"] == [Role.UNARY]


def test_limits_that_contradict_each_other_are_reported() -> None:
    # 300 * x has a position below that of x, but the two are joined
    model = make_model(
        "(float[1,3,9,9] x) => (float[1,8,7,7] y) { t = Conv(x, w, b) u = Mul(t, big) y = Concat<axis=1>(t, u) }",
        {**CONV, "big": np.full((4, 1, 1), 300.0, np.float32)},
    )
    settings = config(target="amd_npu_cnn")
    plan_log = PlanLog()
    prepared, plan, emitted = quantize_model(model, {"x": normal(1, 3, 9, 9)}, settings, plan_log)
    (conflict,) = [decision for decision in plan_log.decisions if decision.conflict]
    assert (conflict.rule, conflict.what) == ("shift_write", "not kept: it contradicts the limits around it")
    (violation,) = check_npu_model(emitted)
    assert (violation.rule, violation.node) == (conflict.rule, conflict.where)
    # looking again finds the same once more, and moves nothing
    before = [entry.quantization for entry in plan.activations.values()]
    assert [found.where for found in move_grids(prepared.graph, plan, settings, plan_log)] == [conflict.where]
    assert sum(decision.conflict for decision in plan_log.decisions) == 1
    assert [entry.quantization for entry in plan.activations.values()] == before
    # nothing else has suffered
    assert position(plan, "t") == position(plan, "u") == position(plan, "y") > -8


@pytest.mark.parametrize("living", [0, 3])
def test_dead_channels_do_no_harm(living: int) -> None:
    weights = {"w": normal(4, 3, 3, 3), "b": normal(4)}
    weights["w"][living:] = 0
    text = "(float[N,3,9,9] x) => (float[N,4,7,7] y) { y = Conv(x, w, b) }"
    plan, emitted, _ = npu(text, weights)
    assert not left(plan)
    expected = run_onnx(make_model(text, weights), IMAGES)["y"]
    assert sqnr_db(expected, run_onnx(emitted, IMAGES)["y"]) > 10
    types = {"activation": {"dtype": "bfp16"}, "weight": {"dtype": "bfp16"}}  # are left as they are
    plan_log = PlanLog()
    plan = plan_for(make_model(text, weights), config(target="amd_npu_cnn", **types), plan_log)[1]
    assert {entry.spec.dtype for entry in (*plan.activations.values(), *plan.weights.values())} == {"bfp16"}
    assert not where(plan_log, "xint8")


def test_normalizations_written_out_stay_in_float() -> None:
    text = (
        "(float[N,3,9,9] x) => (float[N,4,7,7] y) { t = Conv(x, w, b) m = ReduceMean<axes=[1]>(t) d = Sub(t, m) p = "
        "Pow(d, two) v = ReduceMean<axes=[1]>(p) [eps] e = Add(v, tiny) r = Sqrt(e) y = Div(d, r) }"
    )
    weights = {**CONV, "two": np.float32(2), "tiny": np.float32(1e-5)}
    model = make_model(text, weights, opset=17)
    settings = config(target="amd_npu_cnn", preparation={"fuse_layer_norm": False})
    _, plan, emitted = quantize_model(model, IMAGES, settings)
    assert "only feeds Sqrt" in str(plan.nodes["eps"].reason)
    assert sqnr_db(run_onnx(model, IMAGES)["y"], run_onnx(emitted, IMAGES)["y"]) > 20
