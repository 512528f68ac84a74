"""Which nodes and tensors are quantized: every rule of the plan on a model that shows it, with the reason users "
"read."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.unit.quantizer.toolbox import Arrays, config, make_model, normal, plan_for
from worker.quantizer.plan.types import QuantizationPlan, Role

CONV = {"w": normal(4, 3, 3, 3), "w2": normal(4, 4, 3, 3), "fc": normal(4, 5), "b": normal(4)}


def plan_of(text: str, weights: Arrays | None = None, opset: int = 17, **settings: object) -> QuantizationPlan:
    return plan_for(make_model(text, CONV if weights is None else weights, opset=opset), config(**settings))[1]


def reason(plan: QuantizationPlan, name: str) -> str:
    entry = plan.nodes[name]
    assert entry.role is None, f"{name} is quantized as {entry.role}"
    assert entry.reason is not None
    return entry.reason.words


def test_a_usual_network_is_quantized_whole() -> None:
    plan = plan_of(
        "(float[N,3,9,9] x) => (float[N,5] y) { [c1] a = Conv(x, w, b) [r1] r = Relu(a) [c2] c = Conv(r, w2) [add] d "
        "= Add(c, c) "
        "[pool] p = GlobalAveragePool(d) [flat] f = Flatten(p) [head] y = Gemm(f, fc) }"
    )
    assert {name: entry.role for name, entry in plan.nodes.items()} == {
        "c1": Role.LINEAR,
        "r1": Role.FUSED,
        "c2": Role.LINEAR,
        "add": Role.ARITHMETIC,
        "pool": Role.UNARY,
        "flat": Role.TRANSPARENT,
        "head": Role.LINEAR,
    }
    assert {tensor: entry.source for tensor, entry in plan.activations.items()} == {
        "x": "x",
        "r": "r",
        "c": "c",
        "d": "d",
        "p": "p",
        "f": "p",
    }
    assert set(plan.weights) == {"w", "w2", "fc"}
    assert set(plan.biases) == {"c1"}
    assert list(plan.sources()) == ["x", "r", "c", "d", "p"]


# Rule 1: candidates.

UNKNOWN = {
    "Softmax": ("Softmax(t)", "Softmax stays in float: its output needs more than 8 bits near 0"),
    "Tanh": ("Tanh(t)", "onnxruntime_cpu has no integer kernel for Tanh"),
    "LayerNormalization": (
        "LayerNormalization<axis=3>(t, g)",
        "normalization stays in float: onnxruntime_cpu has no integer kernel for it",
    ),
    "Constant operand": ("Mul(t, g)", "one operand is a constant: no integer kernel is faster than float here"),
    "Relu after another": ("Relu(u)", "no quantized node before it takes Relu in"),
    "Cast": ("Cast<to=6>(t)", "onnxruntime_cpu has no integer kernel for Cast"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_nodes_without_an_integer_kernel_say_why(case: str) -> None:
    call, expected = UNKNOWN[case]
    plan = plan_of(
        f"(float[N,3,9,9] x) => (float[N,4,7,7] v) {{ t = Conv(x, w) u = Tanh(t) [it] v = {call} }}",
        {**CONV, "g": normal(7)},
    )
    assert reason(plan, "it") == expected


def test_integers_stay_integers() -> None:
    plan = plan_of(
        "(int64[N,4] x) => (int64[N,4] y, float[N,5] z) { [it] y = Add(x, x) f = Cast<to=1>(x) z = MatMul(f, fc) }"
    )
    assert reason(plan, "it") == "its output is int64"


def test_double_precision_stays() -> None:
    plan = plan_of(
        "(double[N,4] x) => (double[N,5] y) { [it] y = MatMul(x, k) }", {"k": normal(4, 5).astype(np.float64)}
    )
    assert reason(plan, "it") == "its output is double"


def test_other_domains_stay() -> None:
    node = helper.make_node("Gelu", ["t"], ["y"], name="it", domain="com.microsoft")
    model = make_model("(float[N,4] x) => (float[N,5] y) { t = MatMul(x, fc) }", {"fc": CONV["fc"]})
    model.graph.node.append(node)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert reason(plan_for(model)[1], "it") == "operators of domain com.microsoft stay in float"


def test_a_weight_that_changes_is_left_alone_but_two_activations_may_be_multiplied() -> None:
    plan = plan_of("(float[N,3,9,9] x, float[4,3,3,3] k) => (float[N,4,7,7] y) { [it] y = Conv(x, k) }", {})
    assert reason(plan, "it") == "its weight is not constant"
    plan = plan_of("(float[2,3,4] x, float[2,4,5] k) => (float[2,3,5] y) { [it] y = MatMul(x, k) }", {})
    assert plan.nodes["it"].role is Role.LINEAR
    assert set(plan.activations) == {"x", "k"}
    assert not plan.weights


def test_a_constant_on_the_left_of_matmul_stays() -> None:
    plan = plan_of("(float[4,N] x) => (float[6,N] y) { [it] y = MatMul(k, x) }", {"k": normal(6, 4)})
    assert reason(plan, "it") == "its input is constant"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_stays(value: float) -> None:
    weight = CONV["w"].copy()
    weight[1, 1, 1, 1] = value
    plan = plan_of("(float[N,3,9,9] x) => (float[N,4,7,7] y) { [it] y = Conv(x, w) }", {"w": weight})
    assert reason(plan, "it") == "its weight is empty or holds NaN or Inf"


def between(call: str, **weights: np.ndarray) -> QuantizationPlan:
    """``call`` turns t, behind a convolution, into u, before another one."""
    return plan_of(
        f"(float[1,3,9,9] x, float lo, float[1] pv) => (float[A,B,C,D] y) {{ t = Conv(x, w) [it] u = {call} "
        "y = Conv(u, w2) }",
        {**CONV, **weights},
    )


TRANSPARENT = {
    "MaxPool": "MaxPool<kernel_shape=[2,2]>(t)",
    "AveragePool": "AveragePool<kernel_shape=[2,2]>(t)",
    "Transpose": "Transpose<perm=[0,1,3,2]>(t)",
    "Pad": "Pad(t, pads)",
    "Pad with zero": "Pad(t, pads, zero)",
    "Pad reflect": 'Pad<mode="reflect">(t, pads)',
    "Resize nearest": "Resize(t, , scales)",
    "Resize linear": 'Resize<mode="linear">(t, , scales)',
    "Slice": "Slice(t, one, many, axis)",
}
LIMITS = {
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "zero": np.float32(0),
    "five": np.float32(5),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "one": np.array([1]),
    "many": np.array([9]),
    "axis": np.array([2]),
}


@pytest.mark.parametrize("case", TRANSPARENT)
def test_nodes_that_move_data_share_the_grid_of_their_input(case: str) -> None:
    plan = between(TRANSPARENT[case], **LIMITS)
    assert plan.nodes["it"].role is Role.TRANSPARENT
    assert plan.activations["u"].source == "t"
    assert "u" not in plan.sources()


LEFT = {
    "Pad(t, pads, five)": "it pads with a value other than 0",
    "Pad(t, pads, lo)": "it pads with a value other than 0",
    'Resize<mode="cubic">(t, , scales)': "cubic interpolation leaves the range of its input",
    "Clip(t, lo)": "its limits are not constant",
}


@pytest.mark.parametrize("call", LEFT)
def test_nodes_that_would_leave_the_grid_stay(call: str) -> None:
    assert reason(between(call, **LIMITS), "it") == LEFT[call]


def test_data_movers_of_other_types_stay() -> None:
    plan = plan_of(
        "(float[N,3,9,9] x) => (float[N,4,7,7] y) { t = Conv(x, w) s = Shape(x) [it] u = Squeeze(s) "
        "v = Cast<to=1>(u) y = Add(t, v) }"
    )
    assert reason(plan, "it") == "its output is int64"


def test_every_output_of_a_split_shares_the_grid() -> None:
    plan = plan_of(
        "(float[1,3,9,9] x) => (float[1,4,5,5] y) { t = Conv(x, w) [it] p, q = Split<axis=1>(t, two) "
        "r = Concat<axis=1>(p, q) y = Conv(r, w2) }",
        {**CONV, "two": np.array([2, 2])},
    )
    assert [plan.activations[name].source for name in "pq"] == ["t", "t"]


# Rule 2: fusion.


@pytest.mark.parametrize("activation", ["Relu(t)", "Clip(t, low, high)"])
@pytest.mark.parametrize("before", ["Conv(x, w)", "ConvTranspose(x, wt)", "Add(s, s)"])
def test_activation_functions_are_fused_with_the_node_before(activation: str, before: str) -> None:
    plan = plan_of(
        f"(float[1,3,9,9] x) => (float[A,B,C,D] y) {{ s = Conv(x, w) t = {before} [it] u = {activation} y = Conv(u, "
        f"w2) }}",
        {**CONV, "wt": normal(3, 4, 3, 3), "low": np.float32(0), "high": np.float32(6)},
    )
    assert plan.nodes["it"].role is Role.FUSED
    assert "u" in plan.activations
    assert "t" not in plan.activations


def test_an_activation_whose_input_is_read_twice_is_not_fused() -> None:
    plan = plan_of("(float[N,3,9,9] x) => (float[N,4,7,7] y) { t = Conv(x, w) [it] u = Relu(t) y = Add(t, u) }")
    assert reason(plan, "it") == "its input is read elsewhere too, so the node before it cannot take it in"


def test_an_activation_whose_input_is_an_output_is_not_fused() -> None:
    plan = plan_of("(float[N,3,9,9] x) => (float[N,4,7,7] y, float[N,4,7,7] t) { t = Conv(x, w) [it] y = Relu(t) }")
    assert reason(plan, "it") == "its input is read elsewhere too, so the node before it cannot take it in"


def test_the_second_activation_in_a_row_is_not_fused() -> None:
    plan = plan_of(
        "(float[N,3,9,9] x) => (float[N,4,7,7] y) { t = Conv(x, w) [first] u = Relu(t) [it] y = Clip(u, , high) }",
        {**CONV, "high": np.float32(6)},
    )
    assert plan.nodes["first"].role is Role.FUSED
    assert reason(plan, "it") == "no quantized node before it takes Clip in"


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


# Rule 3: only between quantized nodes.


def test_what_nothing_quantized_feeds_stays() -> None:
    plan = plan_of(
        "(float[N,3,9,9] x) => (float[N,4,6,6] y) { [it] t = MaxPool<kernel_shape=[2,2]>(x) y = Conv(t, w) }"
    )
    assert reason(plan, "it") == "no quantized node feeds it"


def test_what_nothing_quantized_reads_stays_with_everything_before_it() -> None:
    plan = plan_of(
        "(float[N,3,9,9] x) => (float[N,4] y) { t = Conv(x, w) [first] u = LeakyRelu(t) [second] v = "
        "MaxPool<kernel_shape=[7,7]>(u) "
        "[third] s = Flatten(v) y = Softmax(s) }"
    )
    for name in ("first", "second", "third"):
        assert reason(plan, name) == "no quantized node reads its result"


def test_residual_streams_of_normalization_stay_in_float() -> None:
    plan = plan_of(
        "(float[2,4] x) => (float[2,4] y) { n = LayerNormalization<axis=1>(x, g) [fc1] a = MatMul(n, k) [it] s = "
        "Add(x, a) "
        "y = LayerNormalization<axis=1>(s, g) }",
        {"g": normal(4), "k": normal(4, 4)},
    )
    assert plan.nodes["fc1"].quantized
    assert reason(plan, "it") == "no quantized node reads its result"


def test_taking_back_one_decision_takes_back_those_that_hang_on_it() -> None:
    plan = plan_of(
        "(float[N,3,9,9] x) => (float[N,4,7,7] y) { t = Conv(x, w) [a] p = Sigmoid(t) [b] q = Mul(t, p) [c] r = "
        "Relu(q) y = Tanh(r) }"
    )
    assert [plan.nodes[name].quantized for name in "abc"] == [False, False, False]
    assert reason(plan, "b") == "no quantized node reads its result"
    assert reason(plan, "c") == "no quantized node feeds it"


def test_one_quantized_operand_is_enough() -> None:
    plan = plan_of(
        "(float[1,3,9,9] x) => (float[1,4,5,5] y) { t = Conv(x, w) s = Sin(t) [it] c = Add(t, s) y = Conv(c, w2) }"
    )
    assert plan.nodes["it"].role is Role.ARITHMETIC
    assert {"s", "t", "c"} <= set(plan.activations)


# Rule 4 is with the data movers above. Rule 5: scores.


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("(float[N,4] x) => (float[N,5] y) { y = Gemm(x, fc) }", True),
        ("(float[N,4] x) => (float[N,5] y) { y = MatMul(x, fc) }", True),
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


# Rule 6: towards float.

MOVERS = ["MaxPool<kernel_shape=[2,2]>(t)", "Transpose<perm=[0,2,3,1]>(t)", "Flatten(t)", "Slice(t, one, many, axis)"]


@pytest.mark.parametrize("call", MOVERS)
def test_nodes_that_move_integers_do_so_towards_float_too(call: str) -> None:
    rank = "A,B" if "Flatten" in call else "A,B,C,D"
    plan = plan_of(
        f"(float[N,3,9,9] x) => (float[{rank}] y) {{ t = Conv(x, w) [it] u = {call} y = Sin(u) }}", {**CONV, **LIMITS}
    )
    assert plan.nodes["it"].role is Role.TRANSPARENT
    assert plan.activations["u"].source == "t"


@pytest.mark.parametrize(
    "text",
    [
        # averages are no integers of the grid
        "(float[N,3,9,9] x) => (float[A,B,C,D] y) { t = Conv(x, w) [it] u = AveragePool<kernel_shape=[2,2]>(t) y = "
        "Sin(u) }",
        # the tensor before it is float, though integer nodes read it too
        "(float[N,3,9,9] x) => (float[A,B,C,D] y, float[A,B,C,D] z) { t = Sin(x) z = Conv(t, w) [it] u = Transpose(t) "
        "y = Sin(u) }",
        # scores return float
        "(float[N,4] x) => (float[A,B,C] y) { t = MatMul(x, fc) [it] u = Unsqueeze(t, one) y = Sin(u) }",
    ],
)
def test_other_movers_towards_float_stay(text: str) -> None:
    plan = plan_of(text, {**CONV, **LIMITS})
    assert reason(plan, "it") in ("no quantized node reads its result", "no quantized node feeds it")


# Sub-graphs.


def test_nodes_inside_subgraphs_stay() -> None:
    plan = plan_of(
        "(float[2,4] x, bool go) => (float[2,5] y) { y = If(go) <"
        "then_branch = a () => (float[2,5] p) { [inner] p = MatMul(x, fc) }, "
        "else_branch = b () => (float[2,5] q) { m = MatMul(x, fc) q = Neg(m) }> }"
    )
    assert reason(plan, "inner") == "nodes inside sub-graphs stay in float"
    assert plan.is_empty


def test_the_float_types_of_the_interface_do_not_matter() -> None:
    model = make_model("(float16[N,3,9,9] x) => (float16[N,4,7,7] y) { [it] y = Conv(x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(CONV["w"].astype(np.float16), "w"))
    plan = plan_for(model)[1]
    assert plan.nodes["it"].quantized
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
