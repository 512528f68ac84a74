"""The emitted graph: standard ONNX, the interface untouched, integers stored, every reader fed the right tensor."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from service.contracts.errors import EngineError
from tests.unit.quantizer.toolbox import (
    Arrays,
    batchnorm_text,
    batchnorm_weights,
    config,
    make_model,
    normal,
    op_types,
    plan_for,
    quantize_model,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.emit import PRODUCER, emit

CONV = {"w": normal(4, 3, 3, 3, scale=0.3), "w2": normal(4, 4, 3, 3, scale=0.3), "b": normal(4), "k": normal(4, 5)}


def interface(model: onnx.ModelProto) -> list[list[tuple[str, bytes]]]:
    return [[(v.name, v.type.SerializeToString()) for v in part] for part in (model.graph.input, model.graph.output)]


def emitted(
    text: str, feeds: Arrays, weights: Arrays | None = None, *, at_least_db: float = 25.0, **settings: object
) -> onnx.ModelProto:
    """Quantize, check what must hold for every emitted model, and return it."""
    model = make_model(text, CONV if weights is None else weights)
    _, plan, found = quantize_model(model, feeds, config(**settings))
    assert not plan.is_empty
    onnx.checker.check_model(found, full_check=True)
    assert {node.domain for node in found.graph.node} <= {"", "ai.onnx"}
    assert interface(found) == interface(model)
    assert found.producer_name == PRODUCER
    names = [node.name for node in found.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    expected = run_onnx(model, feeds, optimized=False)
    for optimized in (False, True):
        got = run_onnx(found, feeds, optimized=optimized)
        for name, array in expected.items():
            assert got[name].dtype == array.dtype
            assert got[name].shape == array.shape
            if array.dtype.kind == "f":
                assert sqnr_db(array, got[name]) > at_least_db, name
    return found


IMAGES = {"x": normal(8, 3, 9, 9)}
ACTIVATIONS = [("uint8", False), ("uint8", True), ("int8", False), ("int8", True)]


@pytest.mark.parametrize(
    ("dtype", "symmetric", "granularity"),
    [
        ("uint8", False, "per_channel"),
        ("uint8", True, "per_tensor"),
        ("int8", False, "per_tensor"),
        ("int8", True, "per_channel"),
    ],
)
def test_types_of_the_config_are_the_types_of_the_graph(dtype: str, symmetric: bool, granularity: str) -> None:
    found = emitted(
        "(float[N,3,9,9] x) => (float[N,4,5,5] y) { t = Conv(x, w, b) r = Relu(t) y = Conv(r, w2) }",
        IMAGES,
        activation={"dtype": dtype, "symmetric": symmetric},
        weight={"granularity": granularity},
    )
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in found.graph.initializer}
    quantizers = [node for node in found.graph.node if node.op_type == "QuantizeLinear"]
    assert quantizers
    for node in quantizers:
        assert stored[node.input[2]].dtype == np.dtype(dtype)
        assert stored[node.input[1]].shape == ()
        assert int(stored[node.input[2]]) == {"uint8": 128, "int8": 0}[dtype] or not symmetric
    assert stored["w_quantized"].dtype == np.int8
    assert stored["b_quantized"].dtype == np.int32
    assert stored["w_scale"].shape == ((4,) if granularity == "per_channel" else ())
    assert "w" not in stored
    assert not any(array.dtype == np.float32 and array.size > 4 for array in stored.values())


def test_the_file_shrinks_to_a_quarter_and_an_unfilled_plan_makes_none() -> None:
    model = make_model(
        "(float[N,64,5,5] x) => (float[N,256,3,3] y) { y = Conv(x, w, b) }",
        {"w": normal(256, 64, 3, 3, scale=0.05), "b": normal(256)},
    )
    found = quantize_model(model, {"x": normal(2, 64, 5, 5)})[2]
    assert 3.85 < model.ByteSize() / found.ByteSize() < 4.0
    prepared, plan = plan_for(model)
    with pytest.raises(EngineError, match="planned but not filled"):
        emit(prepared.model, plan)


@pytest.mark.parametrize(("more", "read"), [("", "t_DequantizeLinear_Output"), ("float[N,4,7,7] t, ", "t")])
def test_every_reader_is_fed_the_right_tensor(more: str, read: str) -> None:
    """Float readers of an integer node's result read it dequantized, so that the runtime can run that node whole."""
    found = emitted(
        f"(float[N,3,9,9] x) => (float[N,4,7,7] s, float[N,3,9,9] i, {more}float[N,4,7,7] r, "
        "float[N,4,5,5] y) { i = Cos(x) t = Conv(x, w, b) s = Sin(t) u = Mul(t, t) r = Relu(u) "
        "p = Conv(r, w2) q = Conv<dilations=[2,2],pads=[1,1,1,1]>(r, w2) y = Add(p, q) }",
        IMAGES,
        at_least_db=20,
    )
    nodes = list(found.graph.node)
    floats = {node.op_type: node.input[0] for node in nodes if node.op_type in ("Sin", "Cos")}
    assert floats == {"Sin": read, "Cos": "x"}
    convolutions = [node.input[0] for node in nodes if node.op_type == "Conv"]
    assert convolutions[0] == "x_DequantizeLinear_Output"
    # outputs keep their names, and several integer readers share one pair
    assert next(node.op_type for node in nodes if "r" in node.output) == "DequantizeLinear"
    assert convolutions[1] == convolutions[2]
    assert len([node for node in nodes if node.name == "r_QuantizeLinear"]) == 1


def test_a_split_shares_its_grid_and_drops_pairs_nobody_reads() -> None:
    found = emitted(
        "(float[N,3,9,9] x) => (float[N,4,5,5] y) { t = Conv(x, w, b) p, q, r = Split<axis=1>(t, parts) "
        "s = Concat<axis=1>(p, q, p) y = Conv(s, w2) }",
        IMAGES,
        {**CONV, "parts": np.array([1, 2, 1])},
    )
    pairs = {node.name: node for node in found.graph.node if node.op_type == "QuantizeLinear"}
    assert pairs["p_QuantizeLinear"].input[1] == pairs["q_QuantizeLinear"].input[1] == "t_scale"
    assert "r_QuantizeLinear" not in pairs


def test_a_subgraph_reads_the_dequantized_outer_tensor() -> None:
    text = (
        "(float[8,3,9,9] x, bool[8] go) => (float[8,4,7,7] z, float[8,4,5,5] y) { t = Conv(x, w, b) f = Slice(go, "
        "zero, one) "
        "s = Squeeze(f) z = If(s) <then_branch = a () => (float[8,4,7,7] p) { p = Sin(t) }, "
        "else_branch = c () => (float[8,4,7,7] q) { q = Neg(t) }> y = Conv(t, w2) }"
    )
    weights = {**CONV, "zero": np.array([0]), "one": np.array([1])}
    for go in (True, False):
        found = emitted(text, {**IMAGES, "go": np.full(8, go)}, weights, at_least_db=20)
    branches = [attribute.g for node in found.graph.node if node.op_type == "If" for attribute in node.attribute]
    assert {node.input[0] for graph in branches for node in graph.node} == {"t_DequantizeLinear_Output"}


def test_weights_stand_where_they_are_read() -> None:
    found = emitted(
        "(float[5,4] x) => (float[5,5] y, float[4,5] z, float[5,5] g) "
        "{ y = MatMul(x, k) z = Sin(k2) g = Gemm<alpha=0.5, beta=2.0>(x, k, v) }",
        {"x": normal(5, 4)},
        {**CONV, "k2": normal(4, 5), "v": normal(5)},
    )
    types = {tensor.name: tensor.data_type for tensor in found.graph.initializer}
    assert "k" not in types and types["v"] == TensorProto.FLOAT  # such a bias stays float
    shared = emitted(
        "(float[4,4] x) => (float[4,5] y, float[4,5] z) { y = MatMul(x, k) t = Softmax(y) z = Mul(t, k) }",
        {"x": normal(4, 4)},
    )
    assert {"k", "k_quantized"} <= {tensor.name for tensor in shared.graph.initializer}
    found = emitted(
        "(float[4,6,8] a, float[4,8,5] c) => (float[4,6,5] y) { y = MatMul(a, c) }",
        {"a": normal(4, 6, 8), "c": normal(4, 8, 5, seed=1)},
        {},
    )
    assert op_types(found).count("QuantizeLinear") == 2
    assert not any(tensor.data_type == TensorProto.INT8 for tensor in found.graph.initializer)

    found = emitted(
        "(float[N,3,9,9] x) => (float[N,4,7,7] y) { s = Conv(x, w, b) u = Sin(x) t = Conv(u, w, b) y = Add(s, t) }",
        IMAGES,
    )
    stored = [tensor.data_type for tensor in found.graph.initializer if tensor.name.endswith("_quantized")]
    # a shared weight is stored once, and the same bias on the grids of two inputs
    assert sorted(stored) == [TensorProto.INT8, TensorProto.INT32, TensorProto.INT32]


def test_names_that_are_taken_are_not_taken_again() -> None:
    found = emitted(
        "(float[N,3,9,9] x, float[N,3,9,9] x_scale, float[N,3,9,9] x_DequantizeLinear_Output) => (float[N,4,7,7] "
        "w_quantized) "
        "{ b_scale = Add(x_scale, x_DequantizeLinear_Output) [x_QuantizeLinear] t = Conv(x, w, b) s = Conv(b_scale, w) "
        "w_quantized = Add(t, s) }",
        {"x": IMAGES["x"], "x_scale": IMAGES["x"], "x_DequantizeLinear_Output": IMAGES["x"]},
    )
    names = [name for node in found.graph.node for name in node.output] + [t.name for t in found.graph.initializer]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("rank", "group"), [(1, 1), (1, 4), (2, 2), (2, 4), (3, 1), (3, 2)])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_convolutions_of_every_rank_and_grouping(op: str, group: int, rank: int) -> None:
    spatial = [6] * rank
    weights = {"w": normal(4, 4 // group, *[3] * rank, scale=0.3), **batchnorm_weights(4)}
    dims = ",".join("6" * rank)
    emitted(
        f"(float[N,4,{dims}] x) => (float[N,C,{','.join('HWD'[:rank])}] y) {{ t = {op}<group={group}>(x, w) "
        f"{batchnorm_text('t', 'y')} }}",
        {"x": normal(4, 4, *spatial)},
        weights,
    )


@pytest.mark.parametrize("opset", [17, 21])
def test_movers_in_front_of_float_nodes_run_in_every_opset(opset: int) -> None:
    """onnxruntime refuses int8 graphs of opset 21 in which it has to move a DequantizeLinear behind them itself."""
    model = make_model(
        "(float[N,3,9,9] x) => (float[N,7,4,7] y, float[N,4,6,6] z) { t = Conv(x, w, b) "
        "u = Transpose<perm=[0,2,1,3]>(t) y = Softmax(u) z = MaxPool<kernel_shape=[2,2]>(t) }",
        {"w": CONV["w"], "b": CONV["b"]},
        opset=opset,
    )
    expected = run_onnx(model, IMAGES)
    for dtype, symmetric in ACTIVATIONS:
        found = quantize_model(model, IMAGES, config(activation={"dtype": dtype, "symmetric": symmetric}))[2]
        for optimized in (False, True):
            got = run_onnx(found, IMAGES, optimized=optimized)
            assert min(sqnr_db(expected[name], got[name]) for name in "yz") > 25
