"""Recipes other than static quantization, and the QOperator format."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from service.contracts.algorithms.union import ALGORITHMS
from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from tests.unit.quantizer.toolbox import (
    config,
    data,
    make_model,
    network,
    normal,
    op_types,
    prepare_proto,
    quantize_file,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.modes.steps import STEPS

FEEDS = {"x": data(32)["x"]}


def quantized(folder: Path, model: onnx.ModelProto, **settings: object) -> onnx.ModelProto:
    result = quantize_file(folder, model, data(32), config(**settings))
    found = onnx.load_from_string(result.model)
    onnx.checker.check_model(found)
    return found


def scores(model: onnx.ModelProto) -> np.ndarray:
    return run_onnx(model, FEEDS)["scores"]


def test_every_algorithm_of_the_contract_has_a_step() -> None:
    assert set(STEPS) == set(ALGORITHMS)


def test_dynamic_quantization_runs_integers(tmp_path: Path) -> None:
    model = quantized(tmp_path, network(), mode="dynamic")
    counts = Counter(op_types(model))
    assert counts["ConvInteger"] == 2 and counts["MatMulInteger"] == 1 and counts["DynamicQuantizeLinear"] == 3
    assert not {"Conv", "Gemm", "MatMul"} & set(counts)
    assert sqnr_db(scores(network()), scores(model)) > 45


def test_dynamic_matmul_equals_the_runtimes_own_quantizer(tmp_path: Path) -> None:
    model = make_model("(float[N,6] x) => (float[N,5] scores) { [m] scores = MatMul(x, w) }", {"w": normal(6, 5)})
    _, prepared = prepare_proto(model)
    onnx.save(prepared, tmp_path / "f.onnx")
    quantize_dynamic(tmp_path / "f.onnx", tmp_path / "q.onnx", per_channel=True, weight_type=QuantType.QInt8)
    result = quantize_file(tmp_path, model, {"x": normal(9, 6)}, config(mode="dynamic"))
    feeds = {"x": normal(7, 6, seed=3)}
    ours, theirs = run_onnx(result.model, feeds)["scores"], run_onnx(onnx.load(tmp_path / "q.onnx"), feeds)["scores"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_dynamic_weights_of_every_kind(tmp_path: Path, granularity: str, symmetric: bool) -> None:
    weight = {"granularity": granularity, "symmetric": symmetric}
    model = quantized(tmp_path, network(), mode="dynamic", weight=weight)
    assert sqnr_db(scores(network()), scores(model)) > 40


def test_dynamic_leaves_what_it_cannot_do_and_says_why(tmp_path: Path) -> None:
    model = make_model(
        "(float[5,N] x) => (float[N,4] y) { [g] y = Gemm<transA=1>(x, w, b) }", {"w": normal(5, 4), "b": normal(4)}
    )
    report = quantize_file(tmp_path, model, {"x": normal(5, 1)}, config(mode="dynamic", exclude=[])).report
    assert [layer.reason for layer in report.layers] == ["transA, alpha or beta has no counterpart in MatMulInteger"]


@pytest.mark.parametrize(
    ("dtype", "granularity"), [("int8", "per_channel"), ("int4", "per_block"), ("int16", "per_tensor")]
)
def test_weights_only(tmp_path: Path, dtype: str, granularity: str) -> None:
    weight = {"dtype": dtype, "granularity": granularity, "block_size": 4}
    model = quantized(tmp_path, network(), mode="weights_only", weight=weight)
    counts = Counter(op_types(model))
    assert counts["DequantizeLinear"] == 3 and not counts["QuantizeLinear"]
    assert sqnr_db(scores(network()), scores(model)) > (15 if dtype == "int4" else 50)


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_block"])
def test_2_bit_weights_only(tmp_path: Path, granularity: str) -> None:
    weight = {"dtype": "uint2", "symmetric": False, "granularity": granularity, "block_size": 4}
    model = quantized(tmp_path, network(), mode="weights_only", weight=weight, evaluation={"advice_seconds": 0})
    assert not [op for op in op_types(model) if "Linear" in op]
    assert sum(tensor.data_type == onnx.TensorProto.UINT2 for tensor in model.graph.initializer) == 3
    np.testing.assert_allclose(scores(model), run_onnx(model, FEEDS, optimized=False)["scores"], atol=1e-5)


def test_float16(tmp_path: Path) -> None:
    model = quantized(tmp_path, network(), mode="float16", exclude=[{"node": "body"}])
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer if tensor.dims}
    assert onnx.TensorProto.FLOAT16 in stored.values()
    assert [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)] == [1, 1]
    assert sqnr_db(scores(network()), scores(model)) > 60
    report = quantize_file(tmp_path, network(), data(), config(mode="float16", exclude=[{"node": "body"}])).report
    reasons = {layer.name: layer.reason for layer in report.layers}
    assert reasons["body"] == "excluded by node 'body'" and reasons["stem"] is None


def test_qoperator_format_computes_the_same(tmp_path: Path) -> None:
    pairs, whole = quantized(tmp_path, network()), quantized(tmp_path, network(), format="qoperator")
    assert "QLinearConv" in op_types(whole) and "DequantizeLinear" not in op_types(whole)
    assert {entry.domain for entry in whole.opset_import} == {node.domain for node in whole.graph.node}
    np.testing.assert_array_equal(scores(pairs), scores(whole))


def test_another_mode_than_the_presets_leaves_its_algorithms_out() -> None:
    assert parse_config({"preset": "int8", "mode": "dynamic"}).algorithms == ()
    assert parse_config({"preset": "int8"}).algorithms != ()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "dynamic", "weight": {"dtype": "int16"}}, "mode dynamic needs int8 or uint8 weights, not int16"),
        ({"mode": "dynamic", "weight": {"granularity": "per_block"}}, "not per block"),
        ({"mode": "dynamic", "algorithms": [{"method": "outlier_channels"}]}, "runs no algorithms"),
        ({"format": "qoperator", "mode": "dynamic"}, "format qoperator needs mode static"),
        ({"format": "qoperator", "activation": {"dtype": "int16"}}, "needs 8-bit integers, not int16"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        config(**settings)
