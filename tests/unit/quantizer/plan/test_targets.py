"""The targets: what each makes of a network, which rules can be switched, and what is reported."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import onnx
import pytest

from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.targets import TARGET_DESCRIPTIONS, TARGET_OPTIONS, TargetName, target_options
from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import config, data, make_model, network, normal, plan_for, quantize_model, run_onnx
from tests.unit.quantizer.toolbox import sqnr_db as sqnr
from worker.quantizer.plan.targets import TARGETS
from worker.quantizer.plan.types import PlanLog, QuantizationPlan, Role
from worker.quantizer.report.words import decision_notes
from worker.quantizer.runtime.host import cpu_notes, saturates_pairs

CONV = {"w": normal(4, 3, 3, 3, scale=0.4), "w2": normal(4, 4, 3, 3, scale=0.3), "b": normal(4)}
IMAGES = {"x": normal(16, 3, 9, 9)}


def quantized(
    text: str, target: str, weights: Any = None, plan_log: PlanLog | None = None, **settings: Any
) -> tuple[QuantizationPlan, onnx.ModelProto]:
    model = make_model(text, CONV if weights is None else weights)
    _, plan, emitted = quantize_model(model, IMAGES, config(target=target, **settings), plan_log)
    return plan, emitted


def pairs(model: onnx.ModelProto) -> list[tuple[np.ndarray, np.ndarray]]:
    """Scale and zero point of every Q/DQ node."""
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    return [(arrays[node.input[1]], arrays[node.input[2]]) for node in found]


# Have tests of their own on random networks: pipeline/test_random_networks.py, test_targets_npu.py.
HAVE_RANDOM_NETWORKS = {"onnxruntime_cpu", "amd_npu_cnn"}


def test_targets_of_the_contract_are_those_of_the_engine() -> None:
    assert set(get_args(TargetName)) == set(TARGET_OPTIONS) == set(TARGET_DESCRIPTIONS) == set(TARGETS)
    for name, target in TARGETS.items():
        assert target.name == name
        assert {option.name for option in TARGET_OPTIONS[name]} == {rule for r in target.rules for rule in r.names}


def test_options_keep_their_defaults_and_unknown_ones_are_refused() -> None:
    options = target_options("onnxruntime_cpu", {"float_heads": False})
    assert options == {"float_heads": False, "float_functions": True, "x86_without_vnni": False}
    with pytest.raises(InvalidConfigError, match="did you mean 'align_concat'") as caught:
        parse_config({"target": "amd_npu_cnn", "target_options": {"align-concats": True}}, pointer="/config")
    assert [problem.pointer for problem in caught.value.errors] == ["/config/target_options/align-concats"]
    with pytest.raises(InvalidConfigError, match="it belongs to amd_npu_cnn"):
        parse_config({"target": "tensorrt", "target_options": {"dpu_average_pool": False}})


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_gives_a_model_that_runs_and_stays_near(name: str) -> None:
    model, feeds = network(), {"x": data()["x"]}
    expected = run_onnx(model, feeds)["scores"]
    _, plan, emitted = quantize_model(model, feeds, config(target=name))
    onnx.checker.check_model(emitted, full_check=True)
    assert sqnr(expected, run_onnx(emitted, feeds, optimized=False)["scores"]) > 20
    assert all(entry.quantized or entry.reason for entry in plan.nodes.values())
    assert any(entry.quantized for entry in plan.nodes.values())


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 25), marks=pytest.mark.long)], ids=["two", "all"])
@pytest.mark.parametrize("name", sorted(set(TARGETS) - HAVE_RANDOM_NETWORKS))
def test_random_networks_run_on_every_target(name: str, seeds: range) -> None:
    for seed in seeds:
        random = RandomNetwork(seed)
        feeds = {key: normal(6, 3, 8, 8, seed=seed + k) for k, key in enumerate(random.inputs)}
        expected = run_onnx(random.model, feeds, optimized=False)
        _, plan, emitted = quantize_model(random.model, feeds, config(target=name))
        onnx.checker.check_model(emitted, full_check=True)
        got = run_onnx(emitted, feeds, optimized=False)
        assert list(got) == list(expected)
        assert all(np.isfinite(array).all() for array in got.values()), seed
        assert all(entry.quantized or entry.reason for entry in plan.nodes.values()), seed


# onnxruntime on a CPU.


def test_weights_keep_to_seven_bits_without_vnni() -> None:
    text = "(float[N,3,9,9] x) => (float[N,4,7,7] y) { y = Conv(x, w, b) }"
    for asked, largest in ((True, 64), (False, 127)):
        plan_log = PlanLog()
        plan, _ = quantized(text, "onnxruntime_cpu", plan_log=plan_log, target_options={"x86_without_vnni": asked})
        assert np.abs(plan.weights["w"].integers).max() == largest
        assert [(d.rule, d.where) for d in plan_log.decisions] == [("x86_without_vnni", "w")] * asked


def test_cpus_without_vnni_are_known_and_told_where_it_matters() -> None:
    assert saturates_pairs("flags : sse2 avx2")
    for flags in ("avx2 avx512f avx512_vnni", "avx2 avx_vnni", "asimddp i8mm", ""):
        assert not saturates_pairs(f"flags : {flags}")
    assert "no VNNI" in cpu_notes(config(), saturates=True)[0]
    assert "weight.reduce_range" in cpu_notes(config(preset="int8_dynamic"), saturates=True)[0]
    assert not cpu_notes(config(), saturates=False)
    rule, spec = {"target_options": {"x86_without_vnni": True}}, {"weight": {"reduce_range": True}}
    for spared in (rule, spec, {"target": "tensorrt"}):
        assert not cpu_notes(config(**spared), saturates=True)


HEAD = (
    "(float[N,3,9,9] x) => (float[N,4,7,7] s, float[N,4,5,5] boxes) { [stem] t = Conv(x, w) [score] u = Conv<pads=[1,1,"
    "1,1]>(t, w2) s = Sigmoid(u) [box] boxes = Conv(t, w2) }"
)


def test_what_makes_scores_stays_in_float() -> None:
    plan_log = PlanLog()
    plan, _ = quantized(HEAD, "onnxruntime_cpu", plan_log=plan_log)
    assert "it makes scores" in str(plan.nodes["score"].reason)
    assert plan.nodes["stem"].quantized and plan.nodes["box"].quantized
    assert [(d.rule, d.where) for d in plan_log.decisions] == [("float_heads", "score")]
    plan, _ = quantized(HEAD, "onnxruntime_cpu", target_options={"float_heads": False})
    assert plan.nodes["score"].quantized
    for end in ("y = Mul(u, s)", "m = Mul(u, s) y = Conv<pads=[1,1,1,1]>(m, w2)"):  # a swish at the end, and a gate
        text = "(float[N,3,9,9] x) => (float[N,4,7,7] y) { t = Conv(x, w) [it] u = Conv<pads=[1,1,1,1]>(t, w2) "
        plan_log = PlanLog()
        plan, _ = quantized(f"{text} s = Sigmoid(u) {end} }}", "onnxruntime_cpu", plan_log=plan_log)
        assert plan.nodes["it"].quantized and not plan_log.decisions


@pytest.mark.parametrize("target", ["qnn", "amd_npu_cnn"])
def test_scores_beside_boxes_are_not_joined_in_integers(target: str) -> None:
    text = (
        "(float[N,3,9,9] x) => (float[N,8,7,7] y) { t = Conv(x, w) [gate] s = Sigmoid(t) [big] v = Mul(t, hundred) "
        "[join] y = Concat<axis=1>(s, v) }"
    )
    weights = {**CONV, "hundred": np.float32(100)}
    plan, emitted = quantized(text, target, weights)
    assert "scores within [0, 1]" in str(plan.nodes["join"].reason)
    expected = run_onnx(make_model(text, weights), IMAGES)["y"][:, :4]
    assert sqnr(expected, run_onnx(emitted, IMAGES, optimized=False)["y"][:, :4]) > 15
    plan, emitted = quantized(text, target, weights, target_options={"float_heads": False})
    assert plan.nodes["join"].quantized


@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime_gpu"])
def test_gpus_get_int8_around_zero_and_float_biases(target: str) -> None:
    text = "(float[N,3,9,9] x) => (float[N,4,7,7] y) { t = Conv(x, w, b) y = Relu(t) }"
    plan, emitted = quantized(text, target, float_dtype="float32")
    for _, zero_point in pairs(emitted):
        assert zero_point.dtype == np.int8
        assert not zero_point.any()
    (conv,) = [node for node in emitted.graph.node if node.op_type == "Conv"]
    assert conv.input[2] == "b"
    assert "biases in float" in str(plan.biases[conv.name].reason)
    assert plan.weights["w"].quantization.scale.shape == (4,)
    options, plan_log = {"symmetric_int8": False, "float_bias": False}, PlanLog()
    plan, _ = quantized(text, target, plan_log=plan_log, target_options=options, float_dtype="float32")
    assert plan.activations["x"].spec.dtype == "uint8"
    assert plan.biases[conv.name].integers is not None
    assert not {d.rule for d in plan_log.decisions} & set(options)


def test_qnn_takes_whole_networks_with_their_constants() -> None:
    plan, emitted = quantized(
        "(float[N,3,9,9] x) => (float[N,4,7,7] y) { [head] h = Add(x, three) t = Conv(h, w) [term] u = Max(four, t) "
        "[soft] y = Softmax<axis=1>(u) }",
        "qnn",
        {**CONV, "three": normal(3, 1, 1), "four": normal(4, 1, 1)},
    )
    assert all(entry.quantized for entry in plan.nodes.values())
    assert {"three", "four", "w"} == set(plan.weights)
    term = next(node for node in emitted.graph.node if node.op_type == "Max")
    assert list(term.input) == ["four_DequantizeLinear_Output", "t_DequantizeLinear_Output"]
    assert emitted.graph.output[0].name == "y"
    # it wants unsigned activations, and products of one scale
    text = "(float[N,3,9,9] x) => (float[N,3,9,5] y) { y = MatMul(x, k) }"
    plan, _ = quantized(text, "qnn", {"k": normal(9, 5)}, activation={"dtype": "int16", "symmetric": True})
    assert plan.activations["x"].spec.dtype == "uint16"
    grid = plan.weights["k"].quantization
    assert (grid.scale.shape, grid.dtype) == ((), "int8")


@pytest.mark.parametrize(("op", "dtype", "scale", "zero_point"), [
    ("Sigmoid", "uint16", 2**-16, 0),
    ("Tanh", "uint16", 2**-15, 2**15),
    ("Sigmoid", "int16", 2**-15, 0),
    ("Tanh", "int16", 2**-15, 0),
])  # fmt: skip
def test_qnn_fixes_the_grids_of_sigmoid_and_tanh(op: str, dtype: str, scale: float, zero_point: int) -> None:
    plan_log = PlanLog()
    text = f"(float[N,3,9,9] x) => (float[N,4,5,5] y) {{ t = Conv(x, w) u = {op}(t) y = Conv(u, w2, b) }}"
    settings = {"activation": {"dtype": dtype}, "target_options": {"unsigned_activations": False}}
    plan, emitted = quantized(text, "qnn", plan_log=plan_log, **settings)
    grid = plan.activations["u"].quantization
    assert (float(grid.scale), int(grid.zero_point), grid.dtype) == (scale, zero_point, dtype)
    # the int32 bias behind it lies on the product of the scales as they are now
    bias, weight = next(iter(plan.biases.values())), plan.weights["w2"]
    np.testing.assert_allclose(bias.quantization.scale, scale * weight.quantization.scale, rtol=1e-6)
    made = bias.quantization.dequantize(bias.integers)
    np.testing.assert_allclose(made, CONV["b"], atol=bias.quantization.scale.max())
    assert {"u"} == {d.where for d in plan_log.decisions if d.rule == "fixed_sigmoid_tanh"}
    onnx.checker.check_model(emitted, full_check=True)


def test_operands_of_a_concat_share_a_grid_that_covers_them_all() -> None:
    text = (
        "(float[N,3,9,9] x) => (float[N,4,5,5] y, float[N,4,5,5] z) { a = Conv(x, w) b1 = Mul(a, a) [join] c = "
        "Concat<axis=1>(a, b1) [join2] d = Concat<axis=1>(b1, a) y = Conv(c, w3) z = Conv(d, w3) }"
    )
    weights = {**CONV, "w3": normal(4, 8, 3, 3)}
    ends = {}
    for aligned in (True, False):
        plan, _ = quantized(text, "openvino", weights, target_options={"align_concat": aligned})
        grids = [plan.activations[name].quantization for name in ("a", "b1", "c", "d")]
        ends[aligned] = np.stack([grid.dequantize(np.array([0, 255], np.uint8)) for grid in grids])
    assert len(np.unique(ends[True], axis=0)) == 1 < len(np.unique(ends[False], axis=0))
    assert ends[True][0] == pytest.approx([ends[False][:, 0].min(), ends[False][:, 1].max()], rel=0.02)


def test_decisions_are_told_once_per_rule_with_the_first_places() -> None:
    chain = " ".join(f"t{k} = Conv<pads=[1,1,1,1]>(t{k - 1}, w2, b)" for k in range(1, 5))
    model = make_model(f"(float[N,4,9,9] t0) => (float[N,4,1,1] y) {{ {chain} y = GlobalAveragePool(t4) }}", CONV)
    plan_log = PlanLog()
    plan_for(model, config(target="tensorrt", float_dtype="float32"), plan_log)
    (bias,) = [note for note in decision_notes(plan_log.decisions) if "float_bias" in note]
    assert bias.startswith("target rule float_bias changed 4: ")
    assert "and 1 more; " in bias


def test_only_products_of_constants_for_transformers() -> None:
    text = "[both] y = MatMul(x, k) [one] z = MatMul(x, m)"
    text = f"(float[2,3,4] x, float[2,4,5] k) => (float[2,3,5] y, float[2,3,6] z) {{ {text} }}"
    for options, quantized_too in (({}, False), ({"matmul_constant_b_only": False}, True)):
        settings = config(target="amd_npu_transformer", target_options=options)
        plan = plan_for(make_model(text, {"m": normal(4, 6)}), settings)[1]
        assert plan.nodes["both"].quantized is quantized_too
        assert plan.nodes["one"].role is Role.LINEAR
