"""float16: the whole model, or what is beside the integers; what float16 does not hold stays in float32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.report import Report
from tests.unit.quantizer.toolbox import quantize_file, sqnr_db
from worker.quantizer.emit.halfs import LARGEST_HALF, to_halfs
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

FLOAT16, FLOAT32 = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
RANDOM = np.random.default_rng(3)


def parsed(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return model


def two_layers(largest: float = 1.0) -> onnx.ModelProto:
    """A convolution, a Softmax, and a product whose results reach ``largest`` times a few."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        model (float[n, 3, 8, 8] x) => (float[n, 5] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            r = Relu (c)
            g = GlobalAveragePool (r)
            f = Flatten (g)
            z = Gemm (f, v)
            y = Softmax (z)
        }"""
    return parsed(
        text,
        w=RANDOM.normal(size=(4, 3, 3, 3)).astype(np.float32),
        b=RANDOM.normal(size=4).astype(np.float32),
        v=(largest * RANDOM.normal(size=(4, 5))).astype(np.float32),
    )


def images(samples: int = 12) -> dict[str, np.ndarray]:
    return {"x": RANDOM.normal(size=(samples, 3, 8, 8)).astype(np.float32)}


def quantized(folder: Path, model: onnx.ModelProto, data: Mapping[str, np.ndarray], **settings: Any) -> tuple[Any, ...]:
    found = quantize_file(folder, model, dict(data), parse_config(settings))
    return onnx.load_from_string(found.model), found.report


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    results: list[np.ndarray] = ort.InferenceSession(model.SerializeToString()).run(None, dict(feeds))
    return results


def reasons(report: Report) -> dict[str, str | None]:
    return {layer.op: layer.reason_code for layer in report.layers}


def test_a_whole_model(tmp_path: Path) -> None:
    model, data = two_layers(), images()
    made, report = quantized(tmp_path, model, data, preset="float16_model")
    assert {value.data_type for value in made.graph.initializer} == {FLOAT16}
    assert [value.type.tensor_type.elem_type for value in (*made.graph.input, *made.graph.output)] == [FLOAT32] * 2
    assert sqnr_db(run(model, data)[0], run(made, data)[0]) > 50
    assert set(reasons(report).values()) == {None}


def test_the_interface_may_turn_too(tmp_path: Path) -> None:
    model, data = two_layers(), images()
    made, report = quantized(tmp_path, model, data, preset="float16_model", interface="float16")
    assert [value.type.tensor_type.elem_type for value in (*made.graph.input, *made.graph.output)] == [FLOAT16] * 2
    assert not any(node.op_type == "Cast" for node in made.graph.node)
    assert report.fidelity.sqnr_db > 45
    halfs = {"x": data["x"].astype(np.float16)}
    assert sqnr_db(run(model, data)[0], run(made, halfs)[0].astype(np.float32)) > 45


@pytest.mark.parametrize("preset", ["float16_model", "int8"])
def test_what_leaves_the_range_stays_in_float32(tmp_path: Path, preset: str) -> None:
    model, data = two_layers(largest=1e5), images()
    beside = {"float_dtype": "float16"} if preset == "int8" else {}
    made, report = quantized(tmp_path, model, data, preset=preset, **beside)
    assert np.isfinite(run(made, data)[0]).all()
    assert sqnr_db(run(model, data)[0], run(made, data)[0]) > 12
    if preset == "float16_model":
        assert reasons(report)["Gemm"] == "constant-beyond-float16"
        assert reasons(report)["Softmax"] == "beyond-float16"
        assert reasons(report)["Conv"] is None
    else:
        assert any("float16 ends at 65504" in note for note in report.notes)


def test_range_is_not_known_without_data(tmp_path: Path) -> None:
    folder, model = tmp_path, two_layers()
    config = parse_config({"preset": "float16_model"})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, folder / "float.onnx")
    report = quantize(folder / "float.onnx", config, None, None, run=SilentRun(), threads=1).report
    assert any("was not looked at" in note for note in report.notes)


@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime_cpu"])
def test_integers_beside_float16(tmp_path: Path, target: str) -> None:
    model, data = two_layers(), images()
    made, report = quantized(tmp_path, model, data, preset="plain", target=target, float_dtype="float16")
    assert {node.op_type for node in made.graph.node} >= {"QuantizeLinear", "DequantizeLinear"}
    types = {value.name: value.data_type for value in made.graph.initializer}
    for node in made.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert types[node.input[1]] == (FLOAT32 if node.input[0] == "x" else FLOAT16)
    wide, _ = quantized(tmp_path, model, data, preset="plain", target=target, float_dtype="float32")
    expected = run(model, data)[0]
    assert sqnr_db(expected, run(made, data)[0]) > sqnr_db(expected, run(wide, data)[0]) - 3
    assert any("nodes compute in float16" in note for note in report.notes)


def test_tensorrt_computes_in_float16_unless_told_otherwise() -> None:
    assert parse_config({"target": "tensorrt"}).has_halfs
    assert not parse_config({"target": "tensorrt", "float_dtype": "float32"}).has_halfs
    assert not parse_config({}).has_halfs


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"preset": "int4_weights", "float_dtype": "float16"}, "needs mode static"),
        ({"preset": "int8", "interface": "float16"}, "interface float16 needs"),
    ],
)
def test_contradictions(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        parse_config(settings)


def test_statistics_of_a_normalization_stay_in_float32(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        model (float[n, 6] x) => (float[n, 6] y, float[n, 1] mean, float[n, 1] deviation) {
            y, mean, deviation = LayerNormalization (x, s)
        }"""
    model, data = parsed(text, s=np.ones(6, np.float32)), {"x": RANDOM.normal(size=(5, 6)).astype(np.float32)}
    made, _ = quantized(tmp_path, model, data, preset="float16_model")
    for expected, found in zip(run(model, data), run(made, data), strict=True):
        assert sqnr_db(expected, found) > 45


def test_what_the_runtime_refuses_stays_in_float32(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 18]>
        model (float[4, 3] x) => (float[4, 3] y) {
            s = ScatterND <reduction = "add"> (x, i, u)
            y = Mul (s, x)
        }"""
    constants = {"i": np.array([[1], [2]], np.int64), "u": np.ones((2, 3), np.float32)}
    model, data = parsed(text, **constants), {"x": RANDOM.normal(size=(4, 3)).astype(np.float32)}
    made, report = quantized(tmp_path, model, data, preset="float16_model")
    assert reasons(report) == {"ScatterND": "no-float16-kernel", "Mul": None}
    assert sqnr_db(run(model, data)[0], run(made, data)[0]) > 45


def test_sub_graphs_keep_reading_float32(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        model (float[n, 4] x, bool[1] yes) => (float[n, 4] y) {
            a = Mul (x, x)
            c = Squeeze (yes)
            b = If (c) <
                then_branch = one () => (float[n, 4] t) { t = Add (a, a) },
                else_branch = other () => (float[n, 4] e) { e = Sub (a, a) }
            >
            y = Add (b, a)
        }"""
    model = parsed(text)
    feeds = {"x": RANDOM.normal(size=(3, 4)).astype(np.float32), "yes": np.array([True])}
    converted = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    for k, node in enumerate(converted.graph):
        node.name = f"node_{k}"
    to_halfs(converted, {"node_0", "node_3"}, 17)
    made = ir.to_proto(converted)
    assert sqnr_db(run(model, feeds)[0], run(made, feeds)[0]) > 45


def test_constants_saturate_only_where_asked() -> None:
    """Infinities stay what they are; beyond that the converter is told which nodes to leave alone."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        model (float[2] x) => (float[2] y) { y = Add (x, c) }"""
    model = ir.from_proto(parsed(text, c=np.array([-np.inf, 1e6], np.float32)))
    next(iter(model.graph)).name = "add"
    to_halfs(model, {"add"}, 17)
    stored = next(value.const_value for value in model.graph.initializers.values() if value.const_value is not None)
    assert stored.numpy().tolist() == [-np.inf, LARGEST_HALF]
