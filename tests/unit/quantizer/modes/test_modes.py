"""Recipes other than static quantization, and the QOperator format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError, UnsupportedModelError
from service.contracts.report import Report
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
from worker.quantizer.emit.float16 import to_float16
from worker.quantizer.numerics.integer import LARGEST_HALF

FEEDS = {"x": data(32)["x"]}


def quantized(folder: Path, model: onnx.ModelProto, **settings: object) -> onnx.ModelProto:
    result = quantize_file(folder, model, data(32), config(**settings))
    found = onnx.load_from_string(result.model)
    onnx.checker.check_model(found)
    return found


def scores(model: onnx.ModelProto) -> np.ndarray:
    return run_onnx(model, FEEDS)["scores"]


def test_dynamic_quantization_runs_integers_and_says_why_not(tmp_path: Path) -> None:
    model = quantized(tmp_path, network(), mode="dynamic")
    counts = Counter(op_types(model))
    assert counts["ConvInteger"] == 2 and counts["MatMulInteger"] == 1 and counts["DynamicQuantizeLinear"] == 3
    assert not {"Conv", "Gemm", "MatMul"} & set(counts)
    assert sqnr_db(scores(network()), scores(model)) > 45
    turned = make_model(
        "(float[5,N] x) => (float[N,4] y) { [g] y = Gemm<transA=1>(x, w, b) }", {"w": normal(5, 4), "b": normal(4)}
    )
    report = quantize_file(tmp_path, turned, {"x": normal(5, 1)}, config(mode="dynamic", exclude=[])).report
    assert [layer.reason for layer in report.layers] == ["transA, alpha or beta has no counterpart in MatMulInteger"]


def test_dynamic_matmul_equals_the_runtimes_own_quantizer(tmp_path: Path) -> None:
    model = make_model("(float[N,6] x) => (float[N,5] scores) { [m] scores = MatMul(x, w) }", {"w": normal(6, 5)})
    _, prepared = prepare_proto(model)
    onnx.save(prepared, tmp_path / "f.onnx")
    quantize_dynamic(tmp_path / "f.onnx", tmp_path / "q.onnx", per_channel=True, weight_type=QuantType.QInt8)
    result = quantize_file(tmp_path, model, {"x": normal(9, 6)}, config(mode="dynamic"))
    feeds = {"x": normal(7, 6, seed=3)}
    ours, theirs = run_onnx(result.model, feeds)["scores"], run_onnx(onnx.load(tmp_path / "q.onnx"), feeds)["scores"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("granularity", ["per_channel", "per_block"])
def test_2_bit_weights_only(tmp_path: Path, granularity: str) -> None:
    weight = {"dtype": "uint2", "symmetric": False, "granularity": granularity, "block_size": 4}
    model = quantized(tmp_path, network(), mode="weights_only", weight=weight, evaluation={"advice_seconds": 0})
    assert not [op for op in op_types(model) if "Linear" in op]
    assert sum(tensor.data_type == onnx.TensorProto.UINT2 for tensor in model.graph.initializer) == 3
    np.testing.assert_allclose(scores(model), run_onnx(model, FEEDS, optimized=False)["scores"], atol=1e-5)


@pytest.mark.slow
def test_float16(tmp_path: Path) -> None:
    report = quantize_file(tmp_path, network(), data(), config(mode="float16", exclude=[{"node": "body"}])).report
    reasons = {layer.name: layer.reason for layer in report.layers}
    assert reasons["body"] == "excluded by node 'body'" and reasons["stem"] is None


@pytest.mark.slow
def test_qoperator_format_computes_the_same(tmp_path: Path) -> None:
    pairs, whole = quantized(tmp_path, network()), quantized(tmp_path, network(), format="qoperator")
    assert "QLinearConv" in op_types(whole) and "DequantizeLinear" not in op_types(whole)
    assert {entry.domain for entry in whole.opset_import} == {node.domain for node in whole.graph.node}
    np.testing.assert_array_equal(scores(pairs), scores(whole))


def test_contradictions_are_refused() -> None:
    integers = {"format": "qoperator", "activation": {"dtype": "int16"}}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mode": "dynamic", "weight": {"dtype": "int16"}}, "mode dynamic needs int8 or uint8 weights, not int16"),
        ({"mode": "dynamic", "weight": {"granularity": "per_block"}}, "not per block"),
        (integers, "needs 8-bit integers, not int16"),
        ({"preset": "int4_weights", "float_dtype": "float16"}, "needs mode static"),
        ({"preset": "int8", "interface": "float16"}, "interface float16 needs"),
    ]
    for settings, says in cases:
        with pytest.raises(InvalidConfigError, match=says):
            parse_config(settings)
    # another mode than the preset's leaves the preset's algorithms out
    assert parse_config({"preset": "int8"}).algorithms != ()
    assert parse_config({"preset": "int8", "mode": "dynamic"}).algorithms == ()
    assert parse_config({"target": "tensorrt"}).has_float16
    assert not parse_config({"target": "tensorrt", "float_dtype": "float32"}).has_float16
    assert not parse_config({}).has_float16


RECIPES: dict[str, dict[str, Any]] = {
    "int8": {}, "int4": {"weight": {"dtype": "int4"}}, "blocks": {"preset": "int4_weights"},
}  # fmt: skip


def net(opset: int) -> onnx.ModelProto:
    text = "(float[N,4] x) => (float[N,4] y) { a = MatMul(x, w) y = Relu(a) }"
    return make_model(text, {"w": normal(4, 4)}, opset=opset)


@pytest.fixture
def no_lifting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", refuse)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_hint_names_the_lowest_that_works(tmp_path: Path, recipe: str, no_lifting: None) -> None:
    settings = config(**RECIPES[recipe])
    with pytest.raises(UnsupportedModelError) as caught:
        quantize_file(tmp_path, net(12), {"x": normal(16, 4)}, settings)
    (lowest,) = (int(number) for number in re.findall(r"opset (\d+) or later", caught.value.hint or ""))
    assert quantize_file(tmp_path, net(lowest), {"x": normal(16, 4)}, settings).model
    with pytest.raises(UnsupportedModelError) as below:
        quantize_file(tmp_path, net(lowest - 1), {"x": normal(16, 4)}, settings)
    assert f"opset {lowest} or later" in (below.value.hint or "")


@pytest.mark.parametrize(("opset", "asked", "settings"), [(17, 15, {}), (22, 17, RECIPES["int4"])])
def test_a_wish_that_cannot_be_had_names_one_that_can(
    tmp_path: Path, opset: int, asked: int, settings: dict[str, Any]
) -> None:
    def quantized(wish: int) -> bytes:
        chosen = config(**settings, preparation={"opset": wish})
        return quantize_file(tmp_path, net(opset), {"x": normal(16, 4)}, chosen).model

    with pytest.raises(InvalidConfigError) as caught:
        quantized(asked)
    (lowest,) = (int(number) for number in re.findall(r"Request (\d+) or later", caught.value.hint or ""))
    assert quantized(lowest)
    with pytest.raises(InvalidConfigError):
        quantized(lowest - 1)


FLOAT16, FLOAT32 = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT


def two_layers(largest: float = 1.0) -> onnx.ModelProto:
    v = normal(4, 5, seed=5) * np.float32(largest)
    return make_model(
        "(float[n,3,8,8] x) => (float[n,5] y) { c = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(c) "
        "g = GlobalAveragePool(r) f = Flatten(g) z = Gemm(f, v) y = Softmax(z) }",
        {"w": normal(4, 3, 3, 3, seed=3), "b": normal(4, seed=4), "v": v},
    )


def images(samples: int = 12) -> dict[str, np.ndarray]:
    return {"x": normal(samples, 3, 8, 8, seed=6)}


def quantized_as(
    folder: Path, model: onnx.ModelProto, data: Mapping[str, np.ndarray], **settings: Any
) -> tuple[Any, ...]:
    found = quantize_file(folder, model, dict(data), parse_config(settings))
    return onnx.load_from_string(found.model), found.report


def reasons(report: Report) -> dict[str, str | None]:
    return {layer.op: layer.reason_code for layer in report.layers}


def test_a_whole_model_and_its_interface_where_that_is_asked_for(tmp_path: Path) -> None:
    model, data = two_layers(), images()
    made, report = quantized_as(tmp_path, model, data, preset="float16_model")
    assert {value.data_type for value in made.graph.initializer} == {FLOAT16}
    assert [value.type.tensor_type.elem_type for value in (*made.graph.input, *made.graph.output)] == [FLOAT32] * 2
    assert sqnr_db(run_onnx(model, data)["y"], run_onnx(made, data)["y"]) > 50
    assert set(reasons(report).values()) == {None}
    made, report = quantized_as(tmp_path, model, data, preset="float16_model", interface="float16")
    assert [value.type.tensor_type.elem_type for value in (*made.graph.input, *made.graph.output)] == [FLOAT16] * 2
    assert not any(node.op_type == "Cast" for node in made.graph.node)
    assert report.fidelity.sqnr_db > 45
    float16_nodes = {"x": data["x"].astype(np.float16)}
    assert sqnr_db(run_onnx(model, data)["y"], run_onnx(made, float16_nodes)["y"].astype(np.float32)) > 45


@pytest.mark.parametrize("preset", ["float16_model", "int8"])
def test_what_leaves_the_range_stays_in_float32(tmp_path: Path, preset: str) -> None:
    model, data = two_layers(largest=1e5), images()
    beside = {"float_dtype": "float16"} if preset == "int8" else {}
    made, report = quantized_as(tmp_path, model, data, preset=preset, **beside)
    assert np.isfinite(run_onnx(made, data)["y"]).all()
    assert sqnr_db(run_onnx(model, data)["y"], run_onnx(made, data)["y"]) > 12
    if preset == "float16_model":
        assert reasons(report)["Gemm"] == "constant-beyond-float16"
        assert reasons(report)["Softmax"] == "beyond-float16"
        assert reasons(report)["Conv"] is None
    else:
        assert any("float16 ends at 65504" in note for note in report.notes)


@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime_cpu"])
def test_integers_beside_float16(tmp_path: Path, target: str) -> None:
    model, data = two_layers(), images()
    made, report = quantized_as(tmp_path, model, data, preset="plain", target=target, float_dtype="float16")
    assert {node.op_type for node in made.graph.node} >= {"QuantizeLinear", "DequantizeLinear"}
    types = {value.name: value.data_type for value in made.graph.initializer}
    for node in made.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert types[node.input[1]] == (FLOAT32 if node.input[0] == "x" else FLOAT16)
    wide, _ = quantized_as(tmp_path, model, data, preset="plain", target=target, float_dtype="float32")
    expected = run_onnx(model, data)["y"]
    assert sqnr_db(expected, run_onnx(made, data)["y"]) > sqnr_db(expected, run_onnx(wide, data)["y"]) - 3
    assert any("nodes compute in float16" in note for note in report.notes)


STATISTICS = "(float[n,6] x) => (float[n,6] y, float[n,1] m, float[n,1] d) { y, m, d = LayerNormalization(x, s) }"
SCATTERED = '(float[4,6] x) => (float[4,6] y) { t = ScatterND<reduction = "add">(x, i, u) y = Mul(t, x) }'


def test_statistics_and_what_the_runtime_refuses_stay_in_float32(tmp_path: Path) -> None:
    feeds = {"x": normal(4, 6, seed=7)}
    scattered = {"i": np.array([[1], [2]], np.int64), "u": np.ones((2, 6), np.float32)}
    for text, weights in ((STATISTICS, {"s": np.ones(6, np.float32)}), (SCATTERED, scattered)):
        model = make_model(text, weights, opset=18)
        made, report = quantized_as(tmp_path, model, feeds, preset="float16_model")
        found = run_onnx(made, feeds)
        assert all(sqnr_db(expected, found[name]) > 45 for name, expected in run_onnx(model, feeds).items())
    assert reasons(report) == {"ScatterND": "no-float16-kernel", "Mul": None}


BRANCHED = (
    "(float[n,4] x, bool[1] yes) => (float[n,4] y, float[2] z) { a = Mul(x, x) c = Squeeze(yes) "
    "b = If(c) <then_branch = one () => (float[n,4] t) { t = Add(a, a) }, "
    "else_branch = other () => (float[n,4] e) { e = Sub(a, a) }> y = Add(b, a) z = Neg(k) }"
)


def test_sub_graphs_keep_reading_float32_and_constants_saturate_only_where_asked() -> None:
    model = make_model(BRANCHED, {"k": np.array([-np.inf, 1e6], np.float32)})
    feeds = {"x": normal(3, 4, seed=8), "yes": np.array([True])}
    converted = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    for k, node in enumerate(converted.graph):
        node.name = f"node_{k}"
    to_float16(converted, {"node_0", "node_3", "node_4"}, 17)
    assert sqnr_db(run_onnx(model, feeds)["y"], run_onnx(ir.to_proto(converted), feeds)["y"]) > 45
    held = [value.const_value for value in converted.graph.initializers.values()]
    told = [array.numpy().tolist() for array in held if array is not None]
    assert [-np.inf, LARGEST_HALF] in told, "infinities stay what they are"
