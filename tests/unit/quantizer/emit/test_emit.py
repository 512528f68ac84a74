"""The emitted graph: standard ONNX or operators for few bits, integers stored, readers fed right, nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto

from service.contracts.config import parse_config
from service.contracts.errors import EngineError, InvalidConfigError
from tests.support.encoder import encoder, texts
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
    write_npz,
)
from worker.quantizer.emit import PRODUCER, emit
from worker.quantizer.emit.between import tidied
from worker.quantizer.graph import sizes
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun

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


ROWS, WIDTH, OUT = 50, 96, 40


def language_model() -> onnx.ModelProto:
    """A table, and two products: of a width that blocks divide, and of one that they do not."""
    random = np.random.default_rng(1)
    shapes = {"table": (ROWS, WIDTH), "first": (WIDTH, OUT), "second": (OUT, 7)}
    return make_model(
        "(int64[n, t] ids) => (float[n, t, 7] y) "
        "{ x = Gather(table, ids) h = MatMul(x, first) r = Relu(h) y = MatMul(r, second) }",
        {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
        opset=21,
        ir_version=10,
    )


def blocks_of(dtype: str, **more: Any) -> dict[str, Any]:
    symmetric = not dtype.startswith("u")
    return {"dtype": dtype, "symmetric": symmetric, "granularity": "per_block", "block_size": 32, **more}


IDS = np.random.default_rng(2).integers(0, ROWS, (6, 5))


def stored_small(folder: Path, spec: dict[str, Any]) -> tuple[Result, np.ndarray]:
    folder.mkdir(exist_ok=True)
    config = parse_config({"preset": "plain", "mode": "weights_only", "weight": spec})
    onnx.save(language_model(), folder / "model.onnx")
    data = write_npz(folder / "data.npz", ids=IDS)
    found = quantize(folder / "model.onnx", config, data, None, run=SilentRun(), threads=1)
    return found, ort.InferenceSession(found.model).run(None, {"ids": IDS})[0]


@pytest.mark.parametrize(
    ("dtype", "scale"), [("uint4", "float32"), ("int4", "float16"), ("uint8", "float16"), ("int8", "float32")]
)
def test_both_forms_compute_the_same(tmp_path: Path, dtype: str, scale: str) -> None:
    standard, expected = stored_small(tmp_path / "standard", blocks_of(dtype, scale=scale))
    # level 1 computes in float32, as the standard form does at the lowest level of optimization
    fused, result = stored_small(
        tmp_path / "fused", blocks_of(dtype, scale=scale, kernel="matmul_nbits", accuracy_level=1)
    )
    graph = onnx.load_from_string(fused.model).graph
    assert [node.op_type for node in graph.node if node.domain == "com.microsoft"] == [
        "GatherBlockQuantized",
        "MatMulNBits",
        "MatMulNBits",
    ]
    assert {node.output[0] for node in graph.node} >= {"x", "h", "r", "y"}
    assert not any(node.domain for node in onnx.load_from_string(standard.model).graph.node)
    np.testing.assert_allclose(result, expected, rtol=2e-2, atol=2e-2 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("mode", "spec", "says"),
    [
        ("weights_only", blocks_of("int4", kernel="matmul_nbits", block_size=24), "blocks of 16, 32, 64"),
        ("weights_only", blocks_of("int8", kernel="matmul_nbits") | {"granularity": "per_channel"}, "4 or 8 bits with"),
        ("weights_only", blocks_of("int16", kernel="matmul_nbits"), "4 or 8 bits with granularity"),
        ("static", blocks_of("int4", kernel="matmul_nbits"), "choose mode weights_only"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(mode: str, spec: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        parse_config({"preset": "plain", "mode": mode, "weight": spec})


@pytest.mark.parametrize("kernel", ["auto", "matmul_nbits"])
def test_the_report_has_figures_of_both_forms(tmp_path: Path, kernel: str) -> None:
    result, after = stored_small(tmp_path, blocks_of("int4", kernel=kernel, accuracy_level=4))
    found = result.report.kernels
    assert found is not None and found.products == 2 and found.reason is None
    standard, fused = found.forms
    assert [(form.form, form.accuracy_level) for form in found.forms] == [("standard", None), ("matmul_nbits", 4)]
    assert (standard.emitted, fused.emitted) == (kernel != "matmul_nbits", kernel == "matmul_nbits")
    emitted = fused if fused.emitted else standard
    assert result.report.latency is not None and emitted.ratio == result.report.latency.ratio
    # what is told of the emitted form is what its file gives
    (before,) = ort.InferenceSession(tmp_path / "model.onnx").run(None, {"ids": IDS})
    sqnr_db = 10 * np.log10((before**2).sum() / ((before - after) ** 2).sum())
    assert emitted.sqnr_db == pytest.approx(sqnr_db, abs=0.1)


@pytest.mark.parametrize(
    ("spec", "code"),
    [(blocks_of("int4"), "too-large-for-both-forms"), ({"dtype": "int8", "granularity": "per_channel"}, None)],
)
def test_forms_are_compared_only_where_there_are_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], code: str | None
) -> None:
    monkeypatch.setattr(sizes, "PACKED_BYTES", 1000)
    found = stored_small(tmp_path, spec)[0].report.kernels
    assert (None if found is None else found.reason_code) == code
    assert found is None or (found.forms == () and "too large" in str(found.reason))


def tidy(model: onnx.ModelProto) -> onnx.ModelProto:
    before = model.SerializeToString()
    held = ir.from_proto(onnx.load_from_string(before))
    found = onnx.load_from_string(to_bytes(tidied(held)))
    onnx.checker.check_model(found)
    assert to_bytes(held) == to_bytes(ir.from_proto(onnx.load_from_string(before)))  # the original stays as it is
    return found


def test_an_encoder_computes_the_same_bits() -> None:
    model = encoder(layers=2, hidden=16, heads=2, tokens=50, positions=12, head="copied")
    for node in model.graph.node:  # each Gelu and Softmax reads constants of its own
        for k, name in enumerate(node.input):
            if name in ("sqrt2", "half", "root", "split"):
                twin = next(tensor for tensor in model.graph.initializer if tensor.name == name)
                copy = model.graph.initializer.add()
                copy.CopyFrom(twin)
                copy.name = node.input[k] = f"{name}_of_{node.name}"
    found, feeds = tidy(model), texts(5, 9, tokens=50)
    for optimized in (True, False):
        before = run_onnx(model, feeds, optimized=optimized)["result"]
        np.testing.assert_array_equal(run_onnx(found, feeds, optimized=optimized)["result"], before)
    # one of each constant is left, and one of both Shape nodes that read the same is
    used = {name for node in found.graph.node for name in node.input}
    assert len([tensor for tensor in found.graph.initializer if tensor.name in used]) == len(found.graph.initializer)
    assert len(found.graph.initializer) < len(model.graph.initializer) - 10
    assert len(found.graph.value_info) == 0


def test_equal_constants_small_and_large_are_held_once() -> None:
    large, small = normal(40, 40), normal(40)
    held = {"a": large, "b": large.copy(), "c": small, "d": small.copy(), "e": large.T.copy()}
    text = (
        "(float[N,40] x) => (float[N,40] y) { s = MatMul(x, a) t = MatMul(s, b) u = Add(t, c) v = Add(u, d) "
        "y = MatMul(v, e) }"
    )
    model = make_model(text, held)
    found, feeds = tidy(model), {"x": normal(3, 40, seed=2)}
    assert sorted(list(tensor.dims) for tensor in found.graph.initializer) == [[40], [40, 40], [40, 40]]
    assert len(found.SerializeToString()) < 2 * large.nbytes + 2000
    np.testing.assert_array_equal(run_onnx(found, feeds)["y"], run_onnx(model, feeds)["y"])


def test_constants_that_only_look_alike_are_kept_apart() -> None:
    zeros = np.zeros(4, np.float32)
    held = {"a": zeros, "b": -zeros, "c": np.zeros(4, np.int32), "d": zeros.reshape(4, 1)}
    text = (
        "(float[1] x) => (float[4] y, float[4] z, int32[4] w, float[4,1] v) "
        "{ y = Div(x, a) z = Div(x, b) w = Identity(c) v = Identity(d) }"
    )
    model = make_model(text, held)
    before, after = (run_onnx(one, {"x": np.ones(1, np.float32)}) for one in (model, tidy(model)))
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    assert before["y"][0] == np.inf and before["z"][0] == -np.inf


def test_equal_nodes_stand_once_and_outputs_keep_their_names() -> None:
    text = (
        "(float[N,4] x) => (float[N,4] y, float[N,4] z, float[N,4] s, float[N,4] d) { y = Exp(x) z = Exp(x) "
        "a = Tanh(x) b = Tanh(x) s = Sub(a, b) r = RandomUniformLike(x) q = RandomUniformLike(x) d = Sub(r, q) }"
    )
    model = make_model(text)
    found, feeds = tidy(model), {"x": normal(3, 4)}
    assert op_types(found).count("Tanh") == 1
    assert op_types(found).count("RandomUniformLike") == 2  # what is drawn twice is drawn twice
    made, expected = run_onnx(found, feeds), run_onnx(model, feeds)
    for name in "yzs":
        np.testing.assert_array_equal(made[name], expected[name])
    assert np.abs(made["d"]).min() > 0
