"""Which nodes and tensors are quantized: every rule of the plan on a model that shows it, with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from service.contracts.algorithms import SmoothQuant
from service.contracts.graph_view import NodeInspection
from tests.unit.quantizer.equalization.benches import Bench
from tests.unit.quantizer.toolbox import Arrays, config, make_model, normal, plan_for
from worker.quantizer.graph.serialized import copy_of
from worker.quantizer.modes.planning import inspect_nodes
from worker.quantizer.plan.build import build_plan
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.preparation.prepare import Prepared

CONV = {"w": normal(4, 3, 3, 3), "w2": normal(4, 4, 3, 3), "fc": normal(4, 5), "b": normal(4)}


def plan_of(text: str, weights: Arrays | None = None, opset: int = 17, **settings: object) -> QuantizationPlan:
    return plan_for(make_model(text, CONV if weights is None else weights, opset=opset), config(**settings))[1]


def reason(plan: QuantizationPlan, name: str) -> str:
    entry = plan.nodes[name]
    assert entry.role is None, f"{name} is quantized as {entry.role}"
    assert entry.reason is not None
    return entry.reason.words


WEIGHTS = {
    **CONV, "g": normal(7), "g4": normal(4), "sq": normal(4, 4), "left": normal(6, 4),
    "double": normal(4, 5).astype(np.float64), "high": np.float32(6), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "zero": np.float32(0), "five": np.float32(5), "scales": np.array([1, 1, 2, 2], np.float32), "one": np.array([1]),
    "two": np.array([2, 2]), "many": np.array([9]), "axis": np.array([2]),
}  # fmt: skip
LAST = "(float[N,3,9,9] x) => (float[N,4,7,7] v) {{ t = Conv(x, w) u = Tanh(t) [it] v = {} }}"
BETWEEN = "(float[1,3,9,9] x, float lo) => (float[A,B,C,D] y) {{ t = Conv(x, w) [it] u = {} y = Conv(u, w2) }}"
IMAGE = "(float[N,3,9,9] x) => (float[N,4,7,7] y)"
READ_TWICE = "its input is read elsewhere too, so the node before it cannot take it in"
STAYS = [
    # rule 1: candidates
    (LAST.format("Tanh(t)"), "onnxruntime_cpu has no integer kernel for Tanh"),
    (LAST.format("Mul(t, g)"), "one operand is a constant"),
    ("(int64[N,4] x) => (int64[N,4] y) { [it] y = Add(x, x) }", "its output is int64"),
    (f"{IMAGE} {{ t = Conv(x, w) s = Shape(x) [it] u = Squeeze(s) v = Cast<to=1>(u) y = Add(t, v) }}", "is int64"),
    ("(double[N,4] x) => (double[N,5] y) { [it] y = MatMul(x, double) }", "its output is double"),
    ("(float[4,N] x) => (float[6,N] y) { [it] y = MatMul(left, x) }", "its input is constant"),
    # rule 2: fusion
    (LAST.format("Relu(u)"), "no quantized node before it takes Relu in"),
    (f"{IMAGE} {{ t = Conv(x, w) [it] u = Relu(t) y = Add(t, u) }}", READ_TWICE),
    ("(float[N,3,9,9] x) => (float[N,4,7,7] y, float[N,4,7,7] t) { t = Conv(x, w) [it] y = Relu(t) }", READ_TWICE),
    (f"{IMAGE} {{ t = Conv(x, w) u = Relu(t) [it] y = Clip(u, , high) }}", "no quantized node before it takes Clip in"),
    # rule 3: only between quantized nodes
    ("(float[N,3,9,9] x) => (float[N,4,6,6] y) { [it] t = MaxPool<kernel_shape=[2,2]>(x) y = Conv(t, w) }", "feeds it"),
    (
        "(float[2,4] x) => (float[2,4] y) { n = LayerNormalization<axis=1>(x, g4) a = MatMul(n, sq) [it] s = Add(x, a) "
        "y = LayerNormalization<axis=1>(s, g4) }",
        "no quantized node reads its result",
    ),
    # rule 4: what would leave the grid
    (BETWEEN.format("Pad(t, pads, five)"), "it pads with a value other than 0"),
    (BETWEEN.format("Pad(t, pads, lo)"), "it pads with a value other than 0"),
    (BETWEEN.format('Resize<mode="cubic">(t, , scales)'), "cubic interpolation leaves the range of its input"),
    (BETWEEN.format("Clip(t, lo)"), "its limits are not constant"),
    # rule 6: towards float. Averages are no integers of the grid; a tensor is float, though integer nodes read it too;
    # scores return float.
    (
        "(float[N,3,9,9] x) => (float[A,B,C,D] y) { t = Conv(x, w) [it] u = AveragePool<kernel_shape=[2,2]>(t) "
        "y = Sin(u) }",
        "no quantized node reads its result",
    ),
    (
        "(float[N,3,9,9] x) => (float[A,B,C,D] y, float[A,B,C,D] z) { t = Sin(x) z = Conv(t, w) [it] u = Transpose(t) "
        "y = Sin(u) }",
        "no quantized node",
    ),
    (
        "(float[N,4] x) => (float[A,B,C] y) { t = MatMul(x, fc) [it] u = Unsqueeze(t, one) y = Sin(u) }",
        "no quantized node",
    ),
]


@pytest.mark.parametrize(("text", "expected"), STAYS)
def test_nodes_that_stay_in_float_say_why(text: str, expected: str) -> None:
    assert expected in reason(plan_of(text, WEIGHTS), "it")


UNREAD, UNFED = "no quantized node reads its result", "no quantized node feeds it"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "(float[N,3,9,9] x) => (float[N,4] y) { t = Conv(x, w) [a] u = LeakyRelu(t) "
            "[b] v = MaxPool<kernel_shape=[7,7]>(u) [c] s = Flatten(v) y = Softmax(s) }",
            {"a": UNREAD, "b": UNREAD, "c": UNREAD},
        ),
        (
            f"{IMAGE} {{ t = Conv(x, w) [a] p = Sigmoid(t) [b] q = Mul(t, p) [c] r = Relu(q) y = Tanh(r) }}",
            {"a": UNREAD, "b": UNREAD, "c": UNFED},
        ),
        (
            "(float[2,4] x, bool go) => (float[2,5] y) { y = If(go) <"
            "then_branch = a () => (float[2,5] p) { [inner] p = MatMul(x, fc) }, "
            "else_branch = b () => (float[2,5] q) { m = MatMul(x, fc) q = Neg(m) }> }",
            {"inner": "nodes inside sub-graphs stay in float"},
        ),
    ],
)
def test_what_hangs_on_nodes_in_float_stays_with_them(text: str, expected: dict[str, str]) -> None:
    plan = plan_of(text)
    assert {name: reason(plan, name) for name in expected} == expected
    assert plan.is_empty == ("inner" in expected)


def test_other_domains_stay() -> None:
    node = helper.make_node("Gelu", ["t"], ["y"], name="it", domain="com.microsoft")
    model = make_model("(float[N,4] x) => (float[N,5] y) { t = MatMul(x, fc) }", {"fc": CONV["fc"]})
    model.graph.node.append(node)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert "domain com.microsoft" in reason(plan_for(model)[1], "it")


TOWARDS = "(float[N,3,9,9] x) => (float[{0}] y) {{ t = Conv(x, w) [it] u = {1} y = Sin(u) }}"
SPLIT = "(float[1,3,9,9] x) => (float[1,4,5,5] y) { t = Conv(x, w) [it] q, u = Split<axis=1>(t, two) r = "


@pytest.mark.parametrize(
    "text",
    [
        BETWEEN.format("MaxPool<kernel_shape=[2,2]>(t)"),
        BETWEEN.format("AveragePool<kernel_shape=[2,2]>(t)"),
        BETWEEN.format("Transpose<perm=[0,1,3,2]>(t)"),
        BETWEEN.format("Pad(t, pads)"),
        BETWEEN.format("Pad(t, pads, zero)"),
        BETWEEN.format('Pad<mode="reflect">(t, pads)'),
        BETWEEN.format("Resize(t, , scales)"),
        BETWEEN.format('Resize<mode="linear">(t, , scales)'),
        BETWEEN.format("Slice(t, one, many, axis)"),
        TOWARDS.format("A,B,C,D", "MaxPool<kernel_shape=[2,2]>(t)"),
        TOWARDS.format("A,B,C,D", "Transpose<perm=[0,2,3,1]>(t)"),
        f"{SPLIT} Concat<axis=1>(q, u) y = Conv(r, w2) }}",
    ],
)
def test_nodes_that_move_data_share_the_grid_of_their_input(text: str) -> None:
    plan = plan_of(text, WEIGHTS)
    assert plan.nodes["it"].role is Role.TRANSPARENT
    assert {plan.activations[name].source for name in "qu" if name in plan.activations} == {"t"}
    assert "u" in plan.activations and "u" not in plan.sources()


FUSED = "(float[1,3,9,9] x) => (float[A,B,C,D] y) {{ s = Conv(x, w) t = {} [it] u = {} y = Conv(u, w2) }}"


@pytest.mark.parametrize(
    ("text", "role", "on_integers", "inside"),
    [
        (FUSED.format("Conv(x, w)", "Relu(t)"), Role.FUSED, {"x", "u"}, "t"),
        (FUSED.format("ConvTranspose(x, wt)", "Clip(t, zero, high)"), Role.FUSED, {"u"}, "t"),
        (FUSED.format("Add(s, s)", "Relu(t)"), Role.FUSED, {"s", "u"}, "t"),
        # an average over all positions has a grid of its own
        (BETWEEN.format("GlobalAveragePool(t)"), Role.UNARY, {"t", "u"}, ""),
        # one quantized operand is enough
        (FUSED.format("Sin(s)", "Add(t, s)"), Role.ARITHMETIC, {"s", "t", "u"}, ""),
        # two activations may be multiplied
        (
            "(float[2,3,4] x, float[2,4,5] k) => (float[2,3,5] y) { [it] y = MatMul(x, k) }",
            Role.LINEAR,
            {"x", "k"},
            "y",
        ),
    ],
)
def test_roles_of_nodes_and_what_is_on_integers(text: str, role: Role, on_integers: set[str], inside: str) -> None:
    plan = plan_of(text, {**WEIGHTS, "wt": normal(3, 4, 3, 3)})
    assert plan.nodes["it"].role is role
    assert on_integers <= set(plan.activations)
    assert inside not in plan.activations


def test_a_sub_graph_reader_of_the_same_name_is_no_fused_activation() -> None:
    model = make_model(
        "(float[N,3,9,9] x, bool go) => (float[N,4,7,7] y, float[N,4,7,7] z) { t = Conv(x, w) [relu] y = Relu(t) "
        "[other] u = Conv(x, w) z = If(go) <then_branch = a () => (float[N,4,7,7] p) { [relu] p = Relu(u) }, "
        "else_branch = b () => (float[N,4,7,7] q) { q = Neg(u) }> }",
        {"w": CONV["w"]},
    )
    prepared, plan = plan_for(model)
    assert "u" in plan.activations
    assert len(plan.nodes) == len(list(prepared.graph.all_nodes()))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("(float[N,4] x) => (float[N,5] y) { y = Gemm(x, fc) }", True),
        ("(float[N,4] x) => (float[N,5] y) { t = MatMul(x, fc) y = Softmax(t) }", True),
        ("(float[N,3,3,3] x) => (float[N,4,1,1] y) { y = Conv(x, w) }", True),
        ("(float[N,3,3,3] x) => (float[N,4] z) { y = Conv(x, w) z = Flatten(y) }", True),
        ("(float[N,3,9,9] x) => (float[N,4,7,7] y) { y = Conv(x, w) }", False),
        ("(float[N,4] x) => (float[N,5] z) { y = Gemm(x, fc) r = Reshape(y, s) z = MatMul(r, sq) }", False),
    ],
)
def test_scores_keep_their_precision(text: str, kept: bool) -> None:
    plan = plan_of(text, {**CONV, "s": np.array([-1, 5]), "sq": normal(5, 5)})
    scores = "t" if "Softmax" in text else "y"
    assert (scores not in plan.activations) == kept


SQUARE = {"w": normal(4, 4), "bad": np.full((4, 4), np.nan, np.float32), "scale": normal(4), "shift": normal(4)}


def inspected(call: str, **settings: object) -> NodeInspection:
    result = "int64[2]" if call.startswith("Shape") else "float[N,4]"
    text = f"(float[N,4] x, float[4,4] given, bool[N,4] c) => ({result} y) {{ [it] y = {call} }}"
    model = make_model(text, SQUARE)
    nodes, _ = inspect_nodes(ir.from_proto(model), config(**settings))
    return next(node for node in nodes if node.name == "it")


@pytest.mark.parametrize(
    ("call", "code", "hint", "by_design"),
    [
        ("Where(c, x, x)", "no-integer-kernel", "Replace the operator", False),
        ("Shape(x)", "shape-arithmetic", "it computes shapes", True),
        ("LayerNormalization(x, scale, shift)", "normalization", "Use BatchNormalization", False),
        ("Softmax(x)", "softmax", "Nothing", True),
        ("Gemm(x, given)", "weight-not-constant", "Fold the weight", False),
        ("MatMul(x, bad)", "weight-not-finite", "training fault", False),
        ("Exp(x)", "wide-result", None, False),
        ("Flatten(x)", "not-fed-by-quantized", "Nothing: the network around it is in float", True),
        ("MatMul(x, w)", None, None, False),
    ],
)
def test_a_node_in_float_has_a_code_and_a_hint(call: str, code: str | None, hint: str | None, by_design: bool) -> None:
    found = inspected(call)
    assert (found.reason_code, found.by_design, found.quantized) == (code, by_design, code is None)
    assert (found.reason is None) == (code is None)
    assert (hint is None and found.hint is None) or (hint is not None and hint in (found.hint or ""))


def test_what_the_user_leaves_out_is_told_from_what_cannot_be() -> None:
    for call, settings, code in (
        ("MatMul(x, w)", {"exclude": [{"node": "it"}]}, "excluded"),
        ("Gemm(x, w)", {"include": [{"op_type": "Gemm"}]}, None),
        ("MatMul(x, w)", {"mode": "dynamic"}, None),
        ("Relu(x)", {"mode": "dynamic"}, "not-dynamic"),
        ("Relu(x)", {"mode": "weights_only"}, "not-linear"),
    ):
        assert inspected(call, **settings).reason_code == code


def decisions(prepared: Prepared, **settings: Any) -> dict[str, tuple[Role | None, str | None]]:
    plan = build_plan(prepared.graph, config(**settings), prepared.facts)
    return {name: (entry.role, entry.reason) for name, entry in plan.nodes.items()}


def test_a_factor_inside_a_node_is_known_after_serialization() -> None:
    settings = {"preset": "xint8", "target": "amd_npu_cnn"}
    model = make_model(
        "(float[N,3,7,7] x) => (float[N,4] y) { [c] a = Conv(x, w) [pool] p = GlobalAveragePool(a) "
        "[f] b = Flatten(p) [d] y = Gemm(b, v) }",
        {"w": normal(8, 3, 1, 1), "v": normal(8, 4)},
    )
    prepared, plan = plan_for(model, config(**settings))
    factor = next(name for name, entry in plan.nodes.items() if entry.op_type == "Mul")
    assert plan.nodes[factor].role is Role.FUSED
    assert decisions(replace(prepared, model=copy_of(prepared.model)), **settings)[factor] == (Role.FUSED, None)


def test_nodes_that_algorithms_put_in_stay_in_float_after_serialization() -> None:
    # Two readers of the input and nothing before it that could take a scale in: SmoothQuant puts in a Mul.
    model = make_model("(float[N,6] x) => (float[N,4] y) { [m] y = MatMul(x, w) }", {"w": normal(6, 4)})
    feeds = {"x": normal(64, 6) * np.array([40, 1, 1, 1, 1, 0.1], np.float32)}
    bench = Bench(model, feeds, SmoothQuant(alpha=0.5))
    changed = bench.apply().draft
    assert changed is not None
    added = next(name for name, entry in changed.plan.nodes.items() if entry.op_type == "Mul")
    assert changed.plan.nodes[added].role is None
    again = decisions(replace(changed.prepared, model=copy_of(changed.prepared.model)))
    assert again[added] == (None, changed.plan.nodes[added].reason)
    assert again["m"][0] is Role.LINEAR


@pytest.mark.parametrize(("target", "quantized"), [("qnn", True), ("amd_npu_cnn", False)])
def test_only_the_npu_asks_for_its_own_hard_sigmoid(target: str, quantized: bool) -> None:
    model = make_model(
        "(float[N,3,8,8] x) => (float[N,4,6,6] y) { [a] c = Conv(x, w) [h] s = HardSigmoid<alpha=0.2,beta=0.5>(c) "
        "[b] y = Conv(s, v) }",
        {"w": normal(8, 3, 1, 1), "v": normal(4, 8, 3, 3)},
    )
    preset = "xint8" if target == "amd_npu_cnn" else "plain"
    _, plan = plan_for(model, config(preset=preset, target=target))
    assert plan.nodes["h"].quantized is quantized
