"""Integer operators undone one by one, held against onnxruntime's own kernels, or refused by the name of the node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization import QuantType

from service.contracts.compatibility import is_quantized_op
from service.contracts.errors import AlreadyQuantizedError
from service.contracts.reason import declared
from tests.unit.quantizer.preparation.undoing import by_onnxruntime, initializers, microsoft, undo
from tests.unit.quantizer.toolbox import Arrays, make_model, normal, op_types, rng, run_onnx, sqnr_db
from worker.quantizer.preparation.prepare import undo_quantization

FINE = 1 / 256
GRID: Arrays = {"s": np.float32(FINE * 8), "z": np.uint8(128), "s2": np.float32(FINE * 16), "z2": np.uint8(100)}


def assert_near(model: onnx.ModelProto, back: onnx.ModelProto, feeds: Arrays, steps: float) -> None:
    """The undone model gives what the quantized one gives, but for its rounding."""
    expected, got = run_onnx(model, feeds, optimized=False), run_onnx(back, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, atol=steps * FINE, rtol=0)


X = "[q] i = QuantizeLinear(x, s, z)"
Y = "[dq] y = DequantizeLinear(o, s2, z2)"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("o = MS.QLinearAdd(i, s, z, k, s, z, s2, z2)", ["Add"]),
        ("o = MS.QLinearMul(i, s, z, k, s, z, s2, z2)", ["Mul"]),
        ("o = MS.QLinearConcat<axis=1>(s2, z2, i, s, z, k, s, z)", ["Concat"]),
        (
            "o = MS.QLinearAveragePool<kernel_shape=[2,2], pads=[0,0,1,1], count_include_pad=1>(i, s, z, s2, z2)",
            ["AveragePool"],
        ),
        ("o = MS.QLinearGlobalAveragePool<channels_last=0>(i, s, z, s2, z2)", ["GlobalAveragePool"]),
        ("o = MS.QLinearSigmoid(i, s, z, s2, z2)", ["Sigmoid"]),
        ("o = MS.QLinearLeakyRelu<alpha=0.2>(i, s, z, s2, z2)", ["LeakyRelu"]),
        ("o = MS.QLinearSoftmax<axis=1, opset=13>(i, s, z, s2, z2)", ["Softmax"]),
        ("o = MS.QLinearWhere(c, i, s, z, k, s, z, s2, z2)", ["Where"]),
        ("o = QLinearConv<pads=[1,1,1,1]>(i, s, z, w, ws, wz, s2, z2, b)", ["Conv"]),
        ("o = QLinearMatMul(i, s, z, m, ms, mz, s2, z2)", ["MatMul"]),
    ],
    ids=lambda found: found[0] if isinstance(found, list) else "",
)
def test_one_operator_on_integers(body: str, wanted: list[str]) -> None:
    weights = GRID | {
        "k": rng(1).integers(80, 180, (1, 3, 4, 4)).astype(np.uint8),
        "c": rng(2).random((1, 3, 4, 4)) > 0.5,
        "w": rng(3).integers(-20, 20, (2, 3, 3, 3)).astype(np.int8),
        "ws": np.float32([0.01, 0.02]),
        "wz": np.zeros(2, np.int8),
        "b": np.int32([300, -200]),
        "m": rng(4).integers(100, 150, (4, 4)).astype(np.uint8),
        "ms": np.float32(0.02),
        "mz": np.uint8(120),
    }
    model = microsoft(f"(float[1,3,4,4] x) => (float[a,b,c1,d] y) {{ {X} [op] {body} {Y} }}", weights)
    outcome, back = undo(model)
    assert op_types(back) == wanted
    assert [node.name for node in back.graph.node] == ["op"]
    assert back.graph.node[0].output == ["y"]
    assert f"1 QLinear{wanted[0]}" in outcome.said
    assert_near(model, back, {"x": normal(1, 3, 4, 4)}, steps=24)


@pytest.mark.parametrize(("turned", "quantized_result"), [(0, True), (1, False)])
def test_gemm_with_scales_by_column(turned: int, quantized_result: bool) -> None:
    weights = GRID | {
        "w": rng(1).integers(-30, 30, (5, 6) if turned else (6, 5)).astype(np.int8),
        "ws": rng(2).uniform(0.01, 0.02, 5).astype(np.float32),
        "wz": rng(3).integers(-3, 3, 5).astype(np.int8),
        "b": rng(4).integers(-200, 200, 5).astype(np.int32),
    }
    call = f"MS.QGemm<alpha=0.5, transA=0, transB={turned}>(i, s, z, w, ws, wz, b"
    end = f"[op] o = {call}, s2, z2) {Y}" if quantized_result else f"[op] y = {call})"
    model = microsoft(f"(float[N,6] x) => (float[N,5] y) {{ {X} {end} }}", weights)
    _, back = undo(model)
    assert op_types(back) == ["Gemm"]
    columns = (5, 1) if turned else 5
    exact = (weights["w"].astype(np.float32) - weights["wz"].reshape(columns)) * weights["ws"].reshape(columns)
    np.testing.assert_array_equal(initializers(back)["w"], exact)
    assert_near(model, back, {"x": normal(4, 6)}, steps=24)


@pytest.mark.parametrize(
    "body",
    [
        "o = MaxPool<kernel_shape=[2,2]>(i)",
        "o = Transpose<perm=[0,2,3,1]>(i)",
        "o = Reshape(i, shape)",
        "o = Concat<axis=1>(i, k)",
        "p, q = Split<axis=2>(i) o = Concat<axis=1>(q, p)",
        "o = Clip(i, low, high)",
        "o = Pad<mode='constant'>(i, pads)",
        "o = Pad<mode='constant'>(i, pads, low)",
        "o = Pad<mode='edge'>(i, pads)",
        "o = Slice(i, one, two, one)",
        "o = Gather<axis=2>(i, one)",
        "t = Shape(i) j = Reshape(i, minus) o = Reshape(j, t)",
        "o = Where(c, i, k)",
        "o = Max(i, k)",
    ],
)
def test_what_moves_integers_moves_floats(body: str) -> None:
    weights = GRID | {
        "shape": np.int64([3, 2, 4, 2]),
        "k": rng(1).integers(80, 180, (1, 3, 4, 4)).astype(np.uint8),
        "low": np.uint8(120),
        "high": np.uint8(150),
        "pads": np.int64([0, 0, 1, 1, 0, 0, 0, 1]),
        "one": np.int64([1]),
        "two": np.int64([3]),
        "minus": np.int64([-1]),
        "c": rng(2).random((1, 3, 4, 4)) > 0.5,
    }
    model = make_model(
        f"(float[1,3,4,4] x) => (float[a,b,c1,d] y) {{ {X} {body.replace(chr(39), chr(34))} "
        "[dq] y = DequantizeLinear(o, s, z) }",
        weights,
    )
    _, back = undo(model)
    assert op_types(back) == [op for op in op_types(model) if not op.endswith("Linear")]
    assert_near(model, back, {"x": normal(1, 3, 4, 4)}, steps=4.01)


def test_limits_on_integers_are_limits_of_floats() -> None:
    for zero, wanted in ((0, "Relu"), (-5, "Clip")):
        weights = {"s": np.float32(FINE * 8), "z": np.int8(zero)}
        text = f"(float[N,4] x) => (float[N,4] y) {{ {X} o = Relu(i) y = DequantizeLinear(o, s, z) }}"
        model = make_model(text, weights)
        _, back = undo(model)
        assert op_types(back) == [wanted]
        assert_near(model, back, {"x": normal(6, 4)}, steps=4.01)
    # what integers did by their range alone is put back
    weights = GRID | {"s2": np.float32(6 / 255), "z2": np.uint8(0), "k": np.full((1, 3), 110, np.uint8)}
    text = f"(float[N,3] x) => (float[N,3] y) {{ {X} [op] o = MS.QLinearAdd(i, s, z, k, s, z, s2, z2) {Y} }}"
    model = microsoft(text, weights)
    outcome, back = undo(model)
    assert op_types(back) == ["Add", "Clip"]
    assert "1 Clip put back" in outcome.said
    assert_near(model, back, {"x": normal(40, 3, scale=4.0).clip(-4, 3.9)}, steps=10)


@given(drawn=st.data())
def test_weights_of_integer_products_are_exact(drawn: st.DataObject) -> None:
    generator = rng(drawn.draw(st.integers(0, 1000)))
    dtype = drawn.draw(st.sampled_from([np.int8, np.uint8]))
    inputs, outputs = drawn.draw(st.integers(1, 5)), drawn.draw(st.integers(1, 5))
    limits = np.iinfo(dtype)
    integers = generator.integers(limits.min, limits.max, (inputs, outputs), dtype, endpoint=True)
    length = drawn.draw(st.sampled_from([(), (1,), (outputs,)]))
    scale = generator.uniform(1e-3, 1e-2, length).astype(np.float32)
    zero = generator.integers(limits.min, limits.max, length, dtype, endpoint=True)
    turned, order = drawn.draw(st.booleans()), drawn.draw(st.sampled_from(["p, ws", "ws, p", "step"]))
    weight = "[turn] wt = Transpose(w)" if turned else ""
    rescale = (
        "[first] e = Mul(f, ws) [second] y = Mul(e, s)"
        if order == "step"
        else f"[both] m = Mul({order.replace('p', 's')}) [second] y = Mul(m, f)"
    )
    model = make_model(
        f"(float[N,{inputs}] x) => (float[N,{outputs}] y) {{ {weight} [d] i, s, z = DynamicQuantizeLinear(x) "
        f"[product] a = MatMulInteger(i, {'wt' if turned else 'w'}, z, wz) [cast] f = Cast<to=1>(a) {rescale} }}",
        {"w": np.ascontiguousarray(integers.T) if turned else integers, "ws": scale, "wz": zero},
    )
    _, back = undo(model)
    assert op_types(back) == ["MatMul"]
    assert back.graph.node[0].name == "product"
    (found,) = initializers(back).values()
    np.testing.assert_array_equal(found, (integers.astype(np.float32) - zero) * scale)


def test_a_bias_behind_an_integer_convolution_is_its_own() -> None:
    weights = {"w": rng(1).integers(0, 255, (2, 3, 3, 3)).astype(np.uint8), "wz": np.uint8(120), "ws": np.float32(0.01)}
    model = make_model(
        "(float[1,3,6,6] x) => (float[1,2,3,3] y) { i, s, z = DynamicQuantizeLinear(x) "
        "[conv] a = ConvInteger<pads=[1,1,1,1], strides=[2,2]>(i, w, z, wz) f = Cast<to=1>(a) m = Mul(s, ws) "
        "g = Mul(f, m) r = Reshape(b, shape) [add] y = Add(g, r) }",
        weights | {"b": np.float32([1, -1]), "shape": np.int64([1, -1, 1, 1])},
    )
    _, back = undo(model)
    assert op_types(back) == ["Conv"]
    np.testing.assert_array_equal(initializers(back)["w"], (weights["w"].astype(np.float32) - 120) * np.float32(0.01))
    assert_near(model, back, {"x": normal(1, 3, 6, 6)}, steps=40)


def test_what_onnxruntime_fuses_of_integer_products(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,8] x) => (float[N,4] y, float[N,6] u) { a = MatMul(x, w) b = Add(a, c) y = Tanh(b) "
        "[other] d = MatMul(x, v) u = Add(d, e) }",
        {"w": normal(8, 4), "c": normal(4, seed=1), "v": normal(8, 6, seed=2), "e": normal(6, seed=3)},
    )
    options = {"weight_type": QuantType.QInt8, "per_channel": True}
    quantized, fused = by_onnxruntime(tmp_path, model, prepared=False, **options), {}
    for share in (False, True):
        text = quantized
        if not share:  # each product quantizes by itself then, which another operator does
            text = onnx.utils.Extractor(text).extract_model(["x"], ["y"])
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(tmp_path / f"{share}.onnx")
        ort.InferenceSession(text.SerializeToString(), options, providers=["CPUExecutionProvider"])
        fused[share] = onnx.load(tmp_path / f"{share}.onnx")
        _, back = undo(fused[share])
        assert set(op_types(back)) == {"MatMul", "Add", "Tanh"}
        feeds = {"x": normal(5, 8, seed=9)}
        for name, found in run_onnx(back, feeds).items():
            assert sqnr_db(run_onnx(model, feeds)[name], found) > 35
    assert "DynamicQuantizeMatMul" in op_types(fused[False])
    assert "MatMulIntegerToFloat" in op_types(fused[True])


@pytest.mark.parametrize("per_channel", [False, True])
def test_lstm(tmp_path: Path, per_channel: bool) -> None:
    model = make_model(
        "(float[T,N,6] x) => (float[T,2,N,5] y, float[2,N,5] h) { [lstm] y, h = LSTM<hidden_size=5, "
        'direction="bidirectional">(x, w, r, b) }',
        {"w": normal(2, 20, 6, scale=0.4), "r": normal(2, 20, 5, seed=1, scale=0.4), "b": normal(2, 40, seed=2)},
    )
    options = {"op_types_to_quantize": ["LSTM"], "per_channel": per_channel}
    quantized = by_onnxruntime(tmp_path, model, prepared=False, **options)
    assert op_types(quantized) == ["DynamicQuantizeLSTM"]
    _, back = undo(quantized)
    assert op_types(back) == ["LSTM"]
    feeds = {"x": normal(4, 3, 6, seed=7)}
    for name, expected in run_onnx(model, feeds).items():
        assert sqnr_db(expected, run_onnx(back, feeds)[name]) > 35


PAIR = "[q] j = QuantizeLinear(x, t, z)"
PRODUCT = "[d] j, k, l = DynamicQuantizeLinear(x) [p] m = MatMulInteger(j, c, l) f = Cast<to=1>(m)"

WEIGHTS = {
    "w": rng(1).integers(0, 256, (2, 1, 8)).astype(np.uint8), "s": np.float32([0.1, 0.2]),
    "g": np.zeros(16, np.int32), "t": np.float32(0.1), "o": np.float32(0.2), "z": np.uint8(3),
    "c": np.ones((16, 2), np.int8), "held": np.ones((4, 16), np.uint8), "ones": np.ones((16, 2), np.uint8),
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[bad] y = MS.MatMulNBits<K=16, N=2, bits=4, block_size=16>(x, w, s, \"\", g)", "g_idx"),
        ("[bad] y = MS.MatMulNBits<K=16, N=2, bits=3, block_size=16>(x, w, s)", "3 bits"),
        ("[bad] y = MS.MatMulNBits<K=32, N=2, bits=4, block_size=16>(x, w, s)", "shape of its scales"),
        ("[bad] y = MS.QAttention<num_heads=1>(x, w, s)", "not part of a Q/DQ pair"),
        ("[bad] y = MS.QLinearAdd(i, t, z, i, t, z, t, z)", "neither constant nor"),
        (
            "[q] j = QuantizeLinear(x, t, z) [bad] k = MS.QLinearGlobalAveragePool<channels_last=1>(j, t, z, t, z) "
            "y = DequantizeLinear(k, t, z)",
            "channels are last",
        ),
        (
            "[q] j = QuantizeLinear(x, t, z) [bad] k = MS.QLinearSoftmax<axis=1, opset=12>(j, t, z, t, z) "
            "y = DequantizeLinear(k, t, z)",
            "opset 12",
        ),
        (f"{PRODUCT} [bad] y = Tanh(f)", "'p'"),
        (f"{PRODUCT} e = ReduceMax(x) [bad] y = Mul(f, e)", "not multiplied by the scales"),
        ("[bad] m = MatMulInteger(i, c) f = Cast<to=1>(m) y = Mul(f, t)", "neither constant nor"),
        ("[bad] m = MatMulInteger(held, c) y = Cast<to=1>(m)", "not part of a Q/DQ pair"),
        (
            "[d] j, k, l = DynamicQuantizeLinear(x) [bad] m = MatMulInteger(j, c) f = Cast<to=1>(m) y = Mul(f, k)",
            "not that of node 'd'",
        ),
        (f"{PAIR} [bad] y = DequantizeLinear(j, o, z)", "not that of node 'q'"),
        (f"{PAIR} [bad] y = DequantizeLinear(j, t)", "not that of node 'q'"),
        (f"{PAIR} [bad] p = Mod(j, z) y = DequantizeLinear(p, t, z)", "computes on the integers of node 'q'"),
        (f"{PAIR} [bad] p = QLinearMatMul(j, o, z, ones, t, z, t, z) y = DequantizeLinear(p, t, z)", "of node 'q'"),
        (
            "[d] j, k, l = DynamicQuantizeLinear(x) [bad] m = MatMulInteger(j, n, l) f = Cast<to=1>(m) y = Mul(f, k)",
            "neither constant nor",
        ),
        # nobody writes it, and onnxruntime has no kernel for it
        (f"{PAIR} [bad] k = MS.QLinearReduceMean(j, t, z, t, z) y = DequantizeLinear(k, t, z)", "of node 'q'"),
        ('[bad] y = MS.MatMulNBits<K="a", N=2, bits=4, block_size=16>(x, w, s)', "malformed-operator"),
        ("[bad] y = MS.DynamicQuantizeLSTM(x)", "malformed-operator"),
        ("[bad] y = MS.GatherBlockQuantized<gather_axis=0.5>(w, x, s)", "malformed-operator"),
        ("[bad] y = MS.QLinearConcat(t)", "malformed-operator"),
        ("[bad] y = MS.QLinearSigmoid()", "malformed-operator"),
        ("[bad] k = DynamicQuantizeLinear(x) y = MatMulInteger(k, w)", "malformed-operator"),
        (f'{PAIR} [bad] k = MS.QLinearLeakyRelu<alpha="h">(j, t, z, t, z) y = DequantizeLinear(k, t, z)', "malformed-"),
    ],
)  # fmt: skip
def test_what_cannot_be_undone_is_refused_by_name(body: str, words: str) -> None:
    model = microsoft(f"(float[4,16] x, uint8[4,16] i, int8[16,2] n) => (float[a,b] y) {{ {body} }}", WEIGHTS)
    with pytest.raises(AlreadyQuantizedError) as caught:
        undo_quantization(ir.from_proto(model))
    assert caught.value.where["node"] == "bad"
    assert words in f"{caught.value.detail} {caught.value.where['reason_code']}"
    assert caught.value.where["reason_code"] in {kind.code for kind in declared()}
    assert is_quantized_op(caught.value.where["op_type"]) or "Mul" in body or "Mod" in body
    assert caught.value.hint


@pytest.mark.parametrize("body", ["[odd] y = Mul()", "[odd] y = MS.Transpose()", "[odd] y = MS.Pad()"])
def test_malformed_operators_on_floats_are_left_alone(body: str) -> None:
    model = microsoft(f"(float[4,16] x) => (float[a,b] y) {{ {body} }}", {})
    assert not undo_quantization(ir.from_proto(model)).applied


def test_integers_at_the_edge_of_the_model_are_refused() -> None:
    for graph, node in (
        ("(uint8[N,4] x) => (float[N,4] y) { [dq] y = DequantizeLinear(x, t, z) }", "dq"),
        ("(float[N,4] x) => (uint8[N,4] y) { [q] y = QuantizeLinear(x, t, z) }", "q"),
    ):
        with pytest.raises(AlreadyQuantizedError, match=f"node '{node}'") as caught:
            undo_quantization(ir.from_proto(make_model(graph, {"t": WEIGHTS["t"], "z": WEIGHTS["z"]})))
        assert caught.value.where["node"] == node
