"""Integer operators undone: models that onnxruntime and this engine quantized, held against the float models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantFormat, QuantType

from tests.unit.quantizer.preparation.undoing import by_onnxruntime, initializers, undo
from tests.unit.quantizer.toolbox import (
    Arrays,
    config,
    data,
    make_model,
    network,
    normal,
    op_types,
    quantize_file,
    rng,
    run_onnx,
    sqnr_db,
)

TOKENS = {"x": rng(3).integers(0, 40, (6, 7))}


NETS: dict[str, tuple[str, Arrays, Arrays]] = {
    "mlp": (
        "(float[N,16] x) => (float[N,5] y) { [a] h = MatMul(x, w) [b] i = Add(h, c) [r] j = Relu(i) "
        "[g] k = Gemm<transB=1>(j, v, d) [t] l = Tanh(k) [z] y = MatMul(l, u) }",
        {"w": normal(16, 24, seed=1, scale=0.3), "c": normal(24, seed=2), "v": normal(12, 24, seed=3, scale=0.3)}
        | {"d": normal(12, seed=4), "u": normal(12, 5, seed=5)},
        {"x": normal(6, 16, seed=5)},
    ),
    "embedding": (
        "(int64[N,7] x) => (float[N,7,6] y) { [table] e = Gather(t, x) [dense] h = MatMul(e, w) [act] y = Tanh(h) }",
        {"t": normal(40, 18, seed=1), "w": normal(18, 6, seed=2, scale=0.2)},
        TOKENS,
    ),
    # the table of the embedding gives the scores too
    "tied": (
        "(int64[N,7] x) => (float[N,7,40] y) { [table] e = Gather(t, x) [act] h = Tanh(e) "
        "[turn] k = Transpose<perm=[1,0]>(t) [dense] y = MatMul(h, k) }",
        {"t": normal(40, 18, seed=1)},
        TOKENS,
    ),
    "recurrent": (
        "(float[N,4,6] x) => (float[4,1,N,5] y) { [turn] t = Transpose<perm=[1,0,2]>(x) "
        "[lstm] y = LSTM<hidden_size=5>(t, w, r) }",
        {"w": normal(1, 20, 6, scale=0.4), "r": normal(1, 20, 5, seed=1, scale=0.4)},
        {"x": normal(6, 4, 6, seed=5)},
    ),
    # products of two activations, and one quantized input for three products
    "attention": (
        "(float[N,6,8] x) => (float[N,6,8] y) { q = MatMul(x, a) k = MatMul(x, b) v = MatMul(x, c) "
        "t = Transpose<perm=[0,2,1]>(k) s = MatMul(q, t) m = Softmax(s) o = MatMul(m, v) y = Add(o, x) }",
        {name: normal(8, 8, seed=k, scale=0.4) for k, name in enumerate("abc")},
        {"x": normal(3, 6, 8)},
    ),
}


def net_and_feeds(name: str) -> tuple[onnx.ModelProto, Arrays]:
    if name == "conv":
        return network(), {"x": normal(6, 3, 10, 10, seed=5)}
    text, weights, feeds = NETS[name]
    return make_model(text, weights), feeds


NBITS = {"kernel": "matmul_nbits", "dtype": "int4", "granularity": "per_block", "block_size": 16}


def assert_close(model: onnx.ModelProto, quantized: onnx.ModelProto, back: onnx.ModelProto, feeds: Arrays) -> None:
    """What is lost is the rounding of the weights: that of the activations is gone."""
    ((name, expected),) = run_onnx(model, feeds).items()
    got = sqnr_db(expected, run_onnx(back, feeds)[name])
    assert got > 30.0
    assert got > sqnr_db(expected, run_onnx(quantized, feeds)[name]) - 1.0


def assert_weights(quantized: onnx.ModelProto, back: onnx.ModelProto, least: int) -> None:
    """Floats are (q - zero_point) * scale, for at least so many weights that onnxruntime named."""
    held, floats = initializers(quantized), list(initializers(back).values())
    count = 0
    for name, integers in held.items():
        stem = name.removesuffix("_quantized")
        if stem == name or f"{stem}_scale" not in held:
            continue
        scale, zero = held[f"{stem}_scale"], held[f"{stem}_zero_point"].astype(np.int32)
        exact = []
        for axis in {0, integers.ndim - 1}:
            spread = [-1 if k == axis else 1 for k in range(integers.ndim)] if scale.size > 1 else ()
            if scale.size in (1, integers.shape[axis]):
                difference = integers.astype(np.int32) - zero.reshape(spread)
                exact.append(difference.astype(np.float32) * scale.reshape(spread))
        assert any(np.array_equal(one, other) for one in floats for other in exact), name
        count += 1
    assert count >= least


DYNAMIC_OPERATORS = {
    "conv": ["Conv", "Relu", "Conv", "Add", "GlobalAveragePool", "Flatten", "MatMul", "Add", "Softmax"],
    "mlp": ["MatMul", "Add", "Relu", "MatMul", "Add", "Tanh", "MatMul"], "embedding": ["Gather", "MatMul", "Tanh"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("net", "per_channel", "weight_type"),
    [
        ("conv", False, QuantType.QInt8),
        ("conv", True, QuantType.QUInt8),  # onnxruntime's ConvInteger takes no other by channels
        ("mlp", True, QuantType.QInt8),
        ("embedding", False, QuantType.QInt8),
        ("embedding", True, QuantType.QUInt8),
    ],
    ids=str,
)
def test_onnxruntime_dynamic(tmp_path: Path, net: str, per_channel: bool, weight_type: QuantType) -> None:
    (model, feeds), kinds = net_and_feeds(net), ["MatMul", "Gemm", "Conv", "Gather"]
    options = {"weight_type": weight_type, "per_channel": per_channel, "op_types_to_quantize": kinds}
    quantized = by_onnxruntime(tmp_path, model, **options)
    assert "DynamicQuantizeLinear" in op_types(quantized) or net == "embedding"
    _, back = undo(quantized)
    assert op_types(back) == DYNAMIC_OPERATORS[net]
    assert_weights(quantized, back, {"conv": 3, "mlp": 3, "embedding": 2}[net])
    assert_close(model, quantized, back, feeds)


STATIC_OPERATORS = {
    "conv": ["Conv", "Relu", "Conv", "Add", "GlobalAveragePool", "Flatten", "Gemm", "Softmax"],
    "mlp": ["Gemm", "Relu", "Gemm", "Tanh", "MatMul"], "embedding": ["Gather", "MatMul", "Tanh"],
}  # fmt: skip
ON_WEIGHTS = {"ActivationSymmetric": True, "AddQDQPairToWeight": True}


@pytest.mark.parametrize(
    ("net", "quant_format", "options"),
    [
        ("conv", QuantFormat.QOperator, {"per_channel": True}),
        ("mlp", QuantFormat.QOperator, {}),
        ("embedding", QuantFormat.QOperator, {}),
        ("conv", QuantFormat.QDQ, {"per_channel": True}),
        ("conv", QuantFormat.QDQ, {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8}),
        ("conv", QuantFormat.QDQ, {"activation_type": QuantType.QUInt16}),
        ("conv", QuantFormat.QDQ, {"extra_options": ON_WEIGHTS}),
        ("embedding", QuantFormat.QDQ, {}),
    ],
    ids=str,
)
def test_onnxruntime_static(tmp_path: Path, net: str, quant_format: QuantFormat, options: dict[str, Any]) -> None:
    model, feeds = net_and_feeds(net)
    quantized = by_onnxruntime(tmp_path, model, feeds, quant_format=quant_format, **options)
    outcome, back = undo(quantized)
    assert outcome.applied
    assert op_types(back) == STATIC_OPERATORS[net]
    if "Relu" in op_types(back) and "Relu" not in op_types(quantized):
        assert "1 Relu put back" in outcome.said
    if "extra_options" not in options:  # else weights are stored as floats
        assert_weights(quantized, back, {"conv": 3, "mlp": 3, "embedding": 2}[net])
    assert_close(model, quantized, back, feeds)


@pytest.mark.parametrize(
    ("net", "settings", "floor"),
    [
        ("conv", {"preset": "int8"}, 25),
        ("conv", {"preset": "a16w8"}, 25),
        ("conv", {"preset": "xint8"}, 25),
        ("conv", {"mode": "dynamic"}, 35),
        ("conv", {"mode": "dynamic", "weight": {"symmetric": False}}, 35),
        ("mlp", {"format": "qoperator"}, 30),
        ("mlp", {"mode": "weights_only", "weight": NBITS}, 12),
        ("mlp", {"mode": "weights_only", "weight": NBITS | {"dtype": "uint8", "symmetric": False}}, 30),
        ("embedding", {"mode": "dynamic"}, 30),
        ("embedding", {"mode": "weights_only", "weight": NBITS}, 12),
        ("recurrent", {"mode": "dynamic"}, 30),
        ("recurrent", {"mode": "weights_only"}, 30),
        ("tied", {"mode": "dynamic"}, 30),
        ("tied", {"preset": "int4_weights"}, 12),
    ],
    ids=str,
)
def test_what_this_engine_quantized(tmp_path: Path, net: str, settings: dict[str, Any], floor: float) -> None:
    model, feeds = net_and_feeds(net)
    quantized = onnx.load_from_string(quantize_file(tmp_path, model, feeds, config(**settings)).model)
    outcome, back = undo(quantized)
    assert outcome.applied
    dense = next((op for op in op_types(back) if op in ("MatMul", "Gemm")), "")  # with an Add, or without
    assert [op for op in op_types(back) if op != "Add"] == {
        "conv": ["Conv", "Relu", "Conv", "GlobalAveragePool", "Flatten", dense, "Softmax"],
        "mlp": [dense, "Relu", dense, "Tanh", "MatMul"],
        "embedding": ["Gather", "MatMul", "Tanh"],
        "recurrent": ["Transpose", "LSTM"],
        "tied": ["Gather", "Tanh", "MatMul"],
    }[net]
    ((name, expected),) = run_onnx(model, feeds).items()
    assert sqnr_db(expected, run_onnx(back, feeds)[name]) > floor


def test_what_onnxruntime_quantized_is_quantized_anew(tmp_path: Path) -> None:
    arrays = data()
    quantized = by_onnxruntime(tmp_path, network(), prepared=False, weight_type=QuantType.QUInt8)
    settings = config(preparation={"dequantize": True}, exclude=[{"op_type": "Softmax"}])
    result = quantize_file(tmp_path, quantized, arrays, settings, evaluation={"x": arrays["x"]})
    (told,) = [found for found in result.report.preparation if found.name == "dequantize"]
    assert told.applied
    assert "2 ConvInteger, 3 DynamicQuantizeLinear, 1 MatMulInteger" in told.detail
    assert any("uploaded model is quantized" in note for note in result.report.notes)
    assert result.report.fidelity.sqnr_db > 20
    assert result.report.float_.size_bytes != len(quantized.SerializeToString())
    emitted = op_types(onnx.load_from_string(result.model))
    assert "QuantizeLinear" in emitted
    assert "DynamicQuantizeLinear" not in emitted


def test_integer_operators_in_subgraphs_are_undone(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,4] x, bool c) => (float[N,3] y) { i, s, z = DynamicQuantizeLinear(x) "
        "y = If (c) <then_branch = t () => (float[N,3] a) { p = MatMulInteger(i, w, z) f = Cast<to=1>(p) "
        "m = Mul(s, ws) a = Mul(f, m) }, else_branch = e () => (float[N,3] b) { j, t, u = DynamicQuantizeLinear(x) "
        "q = MatMulInteger(j, w, u) g = Cast<to=1>(q) n = Mul(t, ws) b = Mul(g, n) }> }",
        {"w": rng(1).integers(-9, 9, (4, 3)).astype(np.int8), "ws": np.float32(0.1)},
    )
    _, back = undo(model)
    assert list(initializers(back)) == ["w"]
    assert op_types(back) == ["If"]
    x = normal(3, 4)
    expected = x @ initializers(back)["w"]
    for taken in (True, False):
        np.testing.assert_allclose(run_onnx(back, {"x": x, "c": np.array(taken)})["y"], expected, rtol=1e-4, atol=1e-5)


def test_attention_on_integers(tmp_path: Path) -> None:
    model, feeds = net_and_feeds("attention")
    quantized = by_onnxruntime(tmp_path, model, prepared=False, extra_options={"MatMulConstBOnly": False})
    assert op_types(quantized).count("MatMulInteger") == 5
    _, back = undo(quantized)
    assert sorted(op_types(back)) == sorted(op_types(model))
    assert_close(model, quantized, back, feeds)
