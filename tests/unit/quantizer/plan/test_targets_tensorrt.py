"""TensorRT: what its parser takes, and no Q/DQ pair where it would split a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import Arrays, config, make_model, normal, quantize_model, run_onnx, sqnr_db
from worker.quantizer.graph.values import node_name
from worker.quantizer.ops.linear import LINEAR
from worker.quantizer.plan.types import PlanLog, QuantizationPlan, Role

WEIGHTS = {
    "w": normal(4, 3, 3, 3, scale=0.4), "w2": normal(4, 4, 3, 3, scale=0.3), "w3": normal(4, 4, 1, 1, scale=0.6),
    "w8": normal(4, 8, 1, 1, scale=0.4), "b": normal(4), "half": np.float32(0.5), "one": np.float32(1),
    "root": np.float32(2**0.5),
}  # fmt: skip
IMAGES = {"x": normal(16, 3, 9, 9)}
SAME = "<pads=[1,1,1,1]>"


def tensorrt(
    text: str, weights: Arrays | None = None, plan_log: PlanLog | None = None, **settings: Any
) -> tuple[QuantizationPlan, onnx.ModelProto]:
    """Plan and emitted model, which is near the float model."""
    model = make_model(text, WEIGHTS if weights is None else weights)
    _, plan, emitted = quantize_model(model, IMAGES, config(target="tensorrt", **settings), plan_log)
    onnx.checker.check_model(emitted, full_check=True)
    got = run_onnx(emitted, IMAGES, optimized=False)
    for name, expected in run_onnx(model, IMAGES, optimized=False).items():
        assert sqnr_db(expected, got[name]) > 20
    return plan, emitted


def pairs(model: onnx.ModelProto) -> set[str]:
    """Tensors of the float model that a QuantizeLinear reads."""
    return {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(k, marks=pytest.mark.long) for k in range(3, 25))])
def test_random_networks_keep_to_what_the_parser_takes(seed: int) -> None:
    random = RandomNetwork(seed)
    feeds = {key: normal(6, 3, 8, 8, seed=seed + k) for k, key in enumerate(random.inputs)}
    prepared, plan, emitted = quantize_model(random.model, feeds, config(target="tensorrt"))
    restored = {node.output[0] for node in emitted.graph.node if node.op_type == "DequantizeLinear"}
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in emitted.graph.initializer}
    for node in emitted.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert arrays[node.input[2]].dtype == np.int8
            assert not arrays[node.input[2]].any()
    weighted = [node for node in emitted.graph.node if node.op_type in LINEAR and plan.nodes[node.name].quantized]
    for node in weighted:
        assert set(node.input[:2]) <= restored  # both operands come as integers
        assert not set(node.input[2:]) & restored  # the bias does not
    for weight in plan.weights.values():
        assert weight.quantization.scale.ndim <= 1
    for node in prepared.graph:
        # behind a layer, a pair stands only where a quantized node reads it, and not before a fused function
        value = node.outputs[0]
        if node.op_type in LINEAR and plan.nodes[node_name(node)].quantized and value.name in plan.activations:
            found = [plan.nodes[node_name(usage.node)] for usage in value.uses()]
            assert any(entry.quantized for entry in found)
            assert not any(entry.role is Role.FUSED for entry in found)


def test_the_add_of_a_residual_block_is_fused_with_its_convolution() -> None:
    plan_log = PlanLog()
    plan, emitted = tensorrt(
        f"(float[N,3,9,9] x) => (float[N,4,7,7] y) {{ s = Conv(x, w, b) r = Relu(s) [main] c = Conv{SAME}(r, w2, b) "
        f"[join] a = Add(c, r) o = Relu(a) y = Conv{SAME}(o, w2) }}",
        plan_log=plan_log,
    )
    (join,) = [node for node in emitted.graph.node if node.op_type == "Add"]
    (skip,) = [node for node in emitted.graph.node if node.output[0] == join.input[1]]
    assert join.input[0] == "c"  # straight from the convolution
    assert skip.op_type == "DequantizeLinear"
    assert plan.nodes["join"].quantized
    (behind,) = [node for node in emitted.graph.node if join.output[0] in node.input]
    assert behind.op_type in ("Relu", "QuantizeLinear")  # int8 out; the Relu may be what saturation gives anyway
    told = [(d.where, d.what) for d in plan_log.decisions if d.rule == "fuse_epilogues"]
    assert told == [("c", "no Q/DQ pair")]


RESIDUAL = f"s = Conv(x, w) c = Conv{SAME}(s, w2)"


@pytest.mark.parametrize(
    ("body", "expected", "options"),
    [
        # a shape that is not known, as in exports whose skip branch is padded by computed amounts
        ("h = Shape(s) z = Sub(h, h) e = Concat<axis=0>(z, z) p = Pad(s, e) a = Add(c, p)", {"x", "s", "p", "a"}, {}),
        # a projection on the skip branch is stored as integers
        ("p = Conv(s, w3) a = Add(c, p)", {"x", "s", "p", "a"}, {}),
        # a block with SiLU is fused whole
        ("g = Sigmoid(c) m = Mul(c, g) a = Add(s, m)", {"x", "s", "a"}, {}),
        ("a = Add(c, s)", {"x", "s", "a"}, {}),
        ("a = Add(c, s)", {"x", "s", "c", "a"}, {"fuse_epilogues": False}),
    ],
)
def test_pairs_of_residual_blocks(body: str, expected: set[str], options: dict[str, bool]) -> None:
    text = f"(float[N,3,9,9] x) => (float[N,4,7,7] y) {{ {RESIDUAL} {body} y = Conv{SAME}(a, w2) }}"
    assert pairs(tensorrt(text, target_options=options)[1]) == expected


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        # read by another layer as well
        (
            f"c = Conv{SAME}(s, w2) a = Add(c, s) d = Conv{SAME}(c, w2) e = Concat<axis=1>(a, d) y = Conv(e, w8)",
            {"c", "s"},
        ),
        # broadcast: one position of the convolution's for all of the other's
        ("g = GlobalAveragePool(s) c = Conv(g, w3) a = Add(c, s) y = Conv(a, w3)", {"c", "s"}),
        # moved on its way: computed by another kernel
        (f"c = Conv{SAME}(s, w2) m = Transpose<perm=[0,1,3,2]>(c) a = Add(m, s) y = Conv(a, w3)", {"c", "s"}),
        # a gate computed by other layers
        ("p = GlobalAveragePool(s) q = Conv(p, w3) g = Sigmoid(q) a = Mul(s, g) y = Conv(a, w3)", {"s", "g"}),
        # an output as well
        (f"c = Conv{SAME}(s, w2) a = Add(c, s) y = Conv(a, w3)", {"c"}),
    ],
)
def test_epilogues_take_in_nothing_else(text: str, kept: set[str]) -> None:
    more = ", float[N,4,7,7] c" if kept == {"c"} else ""
    plan, _ = tensorrt(f"(float[N,3,9,9] x) => (float[N,4,7,7] y{more}) {{ s = Conv(x, w) {text} }}")
    assert kept <= set(plan.activations)


@pytest.mark.parametrize(
    "function",
    [
        "g = Sigmoid(c) a = Mul(c, g)",
        "g = HardSigmoid<alpha=0.1666667,beta=0.5>(c) a = Mul(g, c)",
        "d = Div(c, root) f = Erf(d) g = Add(f, one) h = Mul(c, g) a = Mul(h, half)",
        "p = Softplus(c) g = Tanh(p) a = Mul(c, g)",
        "a = HardSwish(c)",
        "a = Tanh(c)",
    ],
)
def test_no_pair_stands_within_an_activation_function(function: str) -> None:
    _, emitted = tensorrt(
        f"(float[N,3,9,9] x) => (float[N,4,7,7] y) {{ s = Conv(x, w, b) c = Conv{SAME}(s, w2) {function} "
        "y = Conv(a, w3) }"
    )
    assert pairs(emitted) == {"x", "s", "a"}


def test_layers_return_float_where_only_float_nodes_read_them() -> None:
    plan, emitted = tensorrt(
        f"(float[N,3,9,9] x) => (float[N,4,7,7] y, float[N,49,4] t) {{ s = Conv(x, w) [score] c = Conv{SAME}(s, w2) "
        f"y = Sigmoid(c) [box] d = Conv{SAME}(s, w2) [flat] f = Reshape(d, shape) "
        "[turn] t = Transpose<perm=[0,2,1]>(f) }",
        {**WEIGHTS, "shape": np.array([0, 4, 49])},
    )
    assert pairs(emitted) == {"x", "s"}
    assert all(plan.nodes[name].quantized for name in ("score", "box"))
    assert not any(plan.nodes[name].quantized for name in ("flat", "turn"))
    text = "c = Conv(s, w3) d = Conv(s, w4) e = Concat<axis=1>(c, d) y = Conv(e, w8)"
    text = f"(float[N,3,9,9] x) => (float[N,4,7,7] y) {{ s = Conv(x, w) {text} }}"
    plan, _ = tensorrt(text, {**WEIGHTS, "w4": 3 * WEIGHTS["w3"]})  # operands of a Concat share a scale
    assert len({float(plan.activations[name].quantization.scale) for name in "cde"}) == 1


def test_8_bit_floats_are_e4m3() -> None:
    text = f"(float[N,3,9,9] x) => (float[N,4,7,7] y) {{ s = Conv(x, w) y = Conv{SAME}(s, w2) }}"
    model = make_model(text, WEIGHTS, opset=21)
    types = {"activation": {"dtype": "float8_e5m2"}, "weight": {"dtype": "float8_e5m2"}}
    plan_log = PlanLog()
    _, plan, emitted = quantize_model(model, IMAGES, config(target="tensorrt", **types), plan_log)
    assert {entry.spec.dtype for entry in (*plan.activations.values(), *plan.weights.values())} == {"float8_e4m3fn"}
    assert {d.where for d in plan_log.decisions if d.rule == "float8_e4m3"} == {"x", "s", "w", "w2"}
    assert sqnr_db(run_onnx(model, IMAGES)["y"], run_onnx(emitted, IMAGES, optimized=False)["y"]) > 20


def test_int4_weights_stay_and_are_symmetric() -> None:
    model = make_model("(float[N,32] x) => (float[N,5] y) { y = MatMul(x, k) }", {"k": normal(32, 5)}, opset=21)
    blocks = {"dtype": "uint4", "symmetric": False, "granularity": "per_block", "block_size": 16}
    _, plan, _ = quantize_model(model, {"x": normal(16, 32)}, config(target="tensorrt", weight=blocks))
    assert plan.weights["k"].quantization.dtype == "int4"
    assert not plan.weights["k"].quantization.zero_point.any()
