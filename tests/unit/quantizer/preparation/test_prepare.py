"""Preparation: whatever a model looks like when it comes, it computes the same afterwards, in a known form."""

from __future__ import annotations

import re
import sys
from types import FrameType

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from service.contracts.errors import AlreadyQuantizedError, UnsupportedModelError
from tests.unit.quantizer.preparation.preparing import assert_equal_outputs
from tests.unit.quantizer.toolbox import (
    Arrays,
    batchnorm_text,
    batchnorm_weights,
    make_model,
    normal,
    op_types,
    prepare_proto,
    run_onnx,
    step,
)
from worker.quantizer.preparation.prepare import WANTED_OPSET, prepare


def opset_of(model: onnx.ModelProto) -> int:
    return next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


def assert_same(model: onnx.ModelProto, feeds: Arrays, tolerance: float = 1e-5) -> onnx.ModelProto:
    """Outputs, and the interface: names, types and order of inputs and outputs."""
    _, prepared = prepare_proto(model)
    assert_equal_outputs(model, prepared, feeds, tolerance)
    weights = {tensor.name for tensor in model.graph.initializer}
    wanted = [(v.name, v.type.tensor_type.elem_type) for v in model.graph.input if v.name not in weights]
    assert [(v.name, v.type.tensor_type.elem_type) for v in prepared.graph.input] == wanted
    return prepared


def old_model(opset: int) -> onnx.ModelProto:
    """What old exporters write: attributes that later became inputs, and a bias that Add broadcasts."""
    weights = {"w": normal(4, 3, 3, 3), "b": normal(4), **batchnorm_weights(4)}
    return make_model(
        "(float[2,3,8,8] x) => (float[2,5] y) { [conv] t = Conv<pads=[1,1,1,1]>(x, w, b) "
        "u = BatchNormalization(t, bn_scale, bn_bias, bn_mean, bn_var) v = Relu(u) "
        "p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(v) "
        f"q = {'Clip<min=0.1, max=2.0>(p)' if opset < 11 else 'Relu(p)'} "
        "d = Dropout(q) f = Flatten(d) m = MatMul(f, fc_w) a = Add(m, fc_b) "
        f"y = Softmax{'' if opset < 13 else '<axis=1>'}(a) }}",
        {**weights, "fc_w": normal(64, 5, scale=0.1), "fc_b": normal(5)},
        opset=opset,
    )


@pytest.mark.parametrize("opset", [7, 8, 10, 12, 13, 16])
def test_old_opsets_are_lifted(opset: int) -> None:
    model = old_model(opset)
    prepared = assert_same(model, {"x": normal(2, 3, 8, 8)})
    assert opset_of(prepared) == WANTED_OPSET
    kinds = op_types(prepared)
    assert not {"BatchNormalization", "Dropout"} & set(kinds)
    assert kinds.count("Gemm") == 1
    assert prepared.graph.node[0].name == "conv"
    steps = {found.name: found for found in prepare_proto(model)[0].steps}
    assert steps["lift_opset"].applied and steps["fold_affine"].applied
    assert f"opset {opset}" in steps["lift_opset"].detail
    assert len(steps) == len(prepare_proto(model)[0].steps)  # every pass reports
    assert all(found.detail and found.applied == (found.reason_code is None) for found in steps.values())


@pytest.mark.parametrize("opset", [17, 18, 22])
def test_new_opsets_stay_and_other_domains_have_none(opset: int) -> None:
    model = make_model("(float[N,4] x) => (float[N,6] y) { y = Gemm(x, w) }", {"w": normal(4, 6)}, opset=opset)
    assert opset_of(assert_same(model, {"x": normal(2, 4)})) == opset
    model = make_model(
        "(float[N,2] x) => (float[N,1] y) "
        "{ y = ai.onnx.ml.LinearRegressor<coefficients=[1.0, 2.0], intercepts=[0.5]>(x) }"
    )
    model.opset_import[0].CopyFrom(helper.make_opsetid("ai.onnx.ml", 1))
    assert_same(model, {"x": normal(3, 2)})


def test_an_old_operator_that_cannot_be_lifted_is_refused_with_a_way_out() -> None:
    model = make_model("(float[1,1,4,4] x) => (float[1,1,6,6] y) { y = Pad<paddings=[0,0,1,1,0,0,1,1]>(x) }", opset=1)
    with pytest.raises(UnsupportedModelError, match="could not be converted to 17: No Adapter") as caught:
        prepare_proto(model)
    assert "/project/" not in caught.value.detail
    assert "opset 13 or later" in str(caught.value.hint)


def test_ir_version_3_initializers_that_are_inputs_become_constants() -> None:
    weights = {"w": normal(4, 3, 3, 3), **batchnorm_weights(4)}
    text = f"(float[1,3,8,8] x) => (float[1,4,6,6] y) {{ t = Conv(x, w) {batchnorm_text('t', 'y')} }}"
    model = make_model(text, weights, opset=8, ir_version=3)
    for name, array in weights.items():
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
    onnx.checker.check_model(model)
    prepared = assert_same(model, {"x": normal(1, 3, 8, 8)})
    assert op_types(prepared) == ["Conv"]
    assert [value.name for value in prepared.graph.input] == ["x"]
    model.graph.node[1].output.extend(["", "", "", ""])  # as old exporters omit what is optional
    assert op_types(prepare_proto(model)[1]) == ["Conv"]


VALUES = ", ".join(f"{value:.3f}" for value in normal(12))
# Else the branch that is never taken would keep dead nodes alive, and its readers stand in the way of folding.
NEVER = (
    "(float[1,3,8,8] x) => (float[1,4,6,6] y) {{ t = Conv(x, kernel) d = If({}) <"
    f"then_branch = a () => (float[1,4,6,6] p) {{{{ {batchnorm_text('t', 'p')} }}}}, "
    "else_branch = b () => (float[1,4,6,6] q) {{ [neg] q = Neg(t) }}> s = Sin(t) [extra] z = Cos(s) y = Relu(d) }}"
)
CASES = {
    "constant nodes": (
        f"(float[2,4] x) => (float[2,3] y) {{ w = Constant<value = float[4,3] {{{VALUES}}}>() "
        "two = Constant<value_float=2.0>() t = MatMul(x, w) y = Mul(t, two) }",
        "MatMul Mul",
    ),
    "constant expressions": (
        "(float[2,4] x) => (float[2,2,2] y) { s = Shape(r) u = Identity(s) y = Reshape(x, u) }",
        "Reshape",
    ),
    "dead nodes": ("(float[2,4] x) => (float[2,4] y) { y = Relu(x) a = Sigmoid(x) b = Tanh(a) }", "Relu"),
    "the branch that is taken": (NEVER.format("yes"), "Conv Relu"),
    "the other one": (NEVER.format("no"), "Conv Neg Relu"),
    "identities at the interface": (
        "(float[2,4] x) => (float[2,4] same, float[2,3] y, float[2,3] twin) "
        "{ same = Identity(x) t = MatMul(x, k) y = Identity(t) twin = Identity(y) }",
        None,
    ),
    "halves within a float32 model": (
        "(float[2,4] x) => (float[2,3] y, int64[2] i) { h = Cast<to=10>(x) t = MatMul(h, half) y = Cast<to=1>(t) "
        "i = ArgMax<axis=1, keepdims=0>(t) }",
        None,
    ),
    "a half that is input and output": (
        "(float16[2,4] x) => (float16[2,4] z, float16[2,3] y) { y = MatMul(x, half) z = Identity(x) }",
        None,
    ),
    "halves in branches": (
        "(float16[2,4] x, bool go) => (float16[2,3] y) { y = If(go) <"
        "then_branch = a () => (float16[2,3] p) { p = MatMul(x, half) }, "
        "else_branch = b () => (float16[2,3] q) { t = MatMul(x, half) q = Neg(t) }> }",
        None,
    ),
    "halves named by attributes": (
        "(float16[3,3] x) => (float16[3,3] y) { s = Shape(x) c = ConstantOfShape<value = float16[1] {16384}>(s) "
        "e = EyeLike<dtype=10>(x) t = Mul(x, c) y = Add(t, e) }",
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_constants_branches_and_halves_are_made_plain(case: str) -> None:
    text, wanted = CASES[case]
    weights = {"k": normal(4, 3), "half": normal(4, 3).astype(np.float16), "r": np.zeros((2, 2, 2), np.float32)}
    weights |= {"kernel": normal(4, 3, 3, 3), "yes": np.array(True), "no": np.array(False), **batchnorm_weights(4)}
    model = make_model(text, {name: array for name, array in weights.items() if re.search(rf"\b{name}\b", text)})
    shape = [axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim]
    x = normal(*shape).astype(np.float16 if "float16[" in text.split(")")[0] else np.float32)
    for go in (True, False):
        feeds = {"x": x, "go": np.array(go)} if "go)" in text else {"x": x}
        prepared = assert_same(model, feeds, tolerance=0.01 if "hal" in case else 1e-5)
    assert wanted is None or op_types(prepared) == wanted.split()
    assert TensorProto.FLOAT16 not in {tensor.data_type for tensor in prepared.graph.initializer}


def test_nothing_is_said_to_be_removed_where_nothing_is_dead() -> None:
    model = make_model("(float[2] x) => (float[2] y) { h = Relu(x) y = Neg(h) }")
    assert not step(prepare_proto(model)[0], "remove_dead_code").applied


def in_a_function(body: str, inner: str) -> onnx.ModelProto:
    header = '<ir_version: 9, opset_import: ["" : 17, "local" : 1]>'
    domain = '<opset_import: ["" : 17], domain: "local">'
    return onnx.parser.parse_model(f"{header} g {body} {domain} block (a, k) => (c) {{ {inner} }}")


def test_functions_are_inlined() -> None:
    model = in_a_function(
        "(float[N,3,8,8] x) => (float[N,4,6,6] y) { t = local.block(x, w) y = Relu(t) }",
        "b = Conv(a, k) c = Sigmoid(b)",
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 3, 3, 3), "w"))
    prepared = assert_same(model, {"x": normal(2, 3, 8, 8)})
    assert op_types(prepared) == ["Conv", "Sigmoid", "Relu"]
    assert not prepared.functions
    assert step(prepare_proto(model)[0], "inline_functions").applied
    inner = "q, s, z = DynamicQuantizeLinear(a) c = DequantizeLinear(q, s, z)"
    with pytest.raises(AlreadyQuantizedError):
        prepare_proto(in_a_function("(float[4] x) => (float[4] y) { y = local.block(x, x) }", inner))


def test_float16_models_compute_in_float32_and_keep_their_interface() -> None:
    weights = {"w": normal(4, 3, 3, 3), **batchnorm_weights(4)}
    model = make_model(
        "(float16[N,3,8,8] x) => (float16[N,4,6,6] y, float16[N,4,6,6] z) { t = Conv(x, w) "
        f"{batchnorm_text('t', 'y')} z = Relu(y) }}",
        {name: array.astype(np.float16) for name, array in weights.items()},
    )
    prepared = assert_same(model, {"x": normal(2, 3, 8, 8).astype(np.float16)}, tolerance=0.01)
    assert TensorProto.FLOAT16 not in {tensor.data_type for tensor in prepared.graph.initializer}
    assert op_types(prepared).count("Cast") == 3
    assert "BatchNormalization" not in op_types(prepared)


def test_negative_dimensions_become_dynamic() -> None:
    model = make_model("(float[1,4] x) => (float[1,6] y) { t = Gemm(x, w) y = Relu(t) }", {"w": normal(4, 6)}, opset=11)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    prepared, proto = prepare_proto(model)
    assert step(prepared, "repair_shapes").detail == "2 shapes with negative dimensions made dynamic"
    assert not proto.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value")
    assert run_onnx(proto, {"x": normal(3, 4)})["y"].shape == (3, 6)


def test_quantized_models_are_refused_by_node() -> None:
    weights = {"s": np.float32(0.1), "z": np.uint8(0), "k": np.ones((4, 4), np.uint8)}
    for op, call in (("QuantizeLinear", "QuantizeLinear(x, s, z)"), ("MatMulInteger", "MatMulInteger(i, k)")):
        text = f"i = Cast<to=2>(x) [q] t = {call} y = Cast<to=1>(t)"
        model = make_model(f"(float[2,4] x) => (float[2,4] y) {{ {text} }}", weights)
        with pytest.raises(AlreadyQuantizedError) as caught:
            prepare_proto(model)
        assert caught.value.where == {"node": "q", "op_type": op}
        assert caught.value.hint
        model.graph.node[1].ClearField("name")
        with pytest.raises(AlreadyQuantizedError, match="output 't'"):
            prepare_proto(model)


def test_nodes_of_one_name_and_of_none_get_names_of_their_own() -> None:
    model = make_model(
        "(float[2,4] x, bool go) => (float[2,4] y) { a = Relu(x) [twin] b = Sigmoid(a) c = Tanh(b) d = If(go) <"
        "then_branch = t () => (float[2,4] p) { [twin] p = Relu(c) }, "
        "else_branch = e () => (float[2,4] q) { [twin] q = Tanh(c) }> [last] y = Sigmoid(d) }"
    )
    for go in (True, False):
        assert_same(model, {"x": normal(2, 4), "go": np.array(go)})
    model.graph.node[2].name = "twin"  # onnxruntime refuses this, onnx does not
    names = [node.name for node in prepare_proto(model)[0].graph.all_nodes()]
    assert all(names) and len(set(names)) == len(names)
    assert (names[1], names[-1]) == ("twin", "last")


def test_an_omitted_output_stays_omitted() -> None:
    model = make_model(
        "(float[3,1,4] x) => (float[1,1,5] h, float[1,1,4,3] m) { e, h = LSTM<hidden_size=5>(x, w, r) "
        "i = Reshape(x, s) m, k = MaxPool<kernel_shape=[1,1]>(i) }",
        {"w": normal(1, 20, 4), "r": normal(1, 20, 5), "s": np.array([1, 1, 4, 3])},
    )
    model.graph.node[0].output[0] = ""
    model.graph.node[2].output[1] = ""
    prepared = assert_same(model, {"x": normal(3, 1, 4)})
    assert [[bool(name) for name in node.output] for node in prepared.graph.node] == [[False, True], [True], [True]]


LOOP = (
    "(float[1,4] x, int64 n) => (float[1,4] y) { [before] t = Relu(x) y = Loop(n, , t) <"
    "body = b (int64 i, bool keep, float[1,4] s) => (bool go, float[1,4] u) "
    "{ go = Identity(keep) m = MatMul(s, w) k = Mul(m, two) v = Add(k, t) u = Tanh(v) }> }"
)


@pytest.mark.parametrize(("opset", "dtype"), [(11, "float"), (17, "float"), (17, "float16")])
def test_loops_stay_right(opset: int, dtype: str) -> None:
    kind = np.float16 if dtype == "float16" else np.float32
    weights = {"w": normal(4, 4).astype(kind), "two": kind(2.0)}
    model = make_model(LOOP.replace("float[", f"{dtype}["), weights, opset=opset)
    for count in (0, 1, 3):
        feeds = {"x": normal(1, 4).astype(kind), "n": np.array(count)}
        prepared = assert_same(model, feeds, tolerance=0.02 if dtype == "float16" else 1e-5)
    body = next(node for node in prepared.graph.node if node.op_type == "Loop").attribute[0].g
    assert {"MatMul", "Mul", "Add", "Tanh"} <= {node.op_type for node in body.node}


@pytest.mark.slow
def test_preparation_is_linear_in_the_number_of_nodes() -> None:
    """Four times the nodes take about four times the calls; a quadratic pass would take sixteen times."""
    assert calls(200) < 5 * calls(50)


def calls(nodes: int) -> int:
    """Made in preparing a chain of Conv, BatchNormalization and Relu that all read the same weights."""
    norms = [batchnorm_text(f"a{k}", f"b{k}").replace("[bn]", f"[n{k}]") for k in range(nodes)]
    chain = " ".join(f"[c{k}] a{k} = Conv(r{k}, w) {norm} r{k + 1} = Relu(b{k})" for k, norm in enumerate(norms))
    text = f"(float[N,2,4,4] r0) => (float[N,2,4,4] r{nodes}) {{ {chain} }}"
    model = ir.from_proto(make_model(text, {"w": normal(2, 2, 1, 1), **batchnorm_weights(2)}, opset=13))
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        prepared = prepare(model)
    finally:
        sys.setprofile(None)
    assert step(prepared, "fold_affine").detail.startswith(f"{nodes} nodes folded")
    return count


def test_how_often_expand_repeats_is_told_by_the_reshape_behind_it() -> None:
    model = make_model(
        "(float[N,4,1,3] x) => (float[N,8,3] y) { s = Shape(x) m = Max(s, copies) e = Expand(x, m) "
        "b = Shape<start=0,end=1>(x) t = Concat<axis=0>(b, rest) y = Reshape(e, t) }",
        {"copies": np.array([1, 1, 2, 1], np.int64), "rest": np.array([8, 3], np.int64)},
    )
    prepared, _ = prepare_proto(model)
    (expand,) = [node for node in prepared.graph if node.op_type == "Expand"]
    assert list(expand.outputs[0].shape)[1:] == [4, 2, 3]
    feeds = {"x": normal(2, 4, 1, 3)}
    np.testing.assert_array_equal(run_onnx(ir.to_proto(prepared.model), feeds)["y"], run_onnx(model, feeds)["y"])
