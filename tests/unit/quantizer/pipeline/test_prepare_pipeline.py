"""Preparation flags through the whole pipeline, and what a quantized model's file says of where it came from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.base import VERSION
from service.contracts.errors import DatasetMismatchError, InvalidConfigError, NotOnnxError
from service.contracts.provenance import PREFIX, Provenance
from service.contracts.report import Report
from service.contracts.report.whole import canonical_sha256
from tests.unit.quantizer.toolbox import (
    batchnorm_text,
    batchnorm_weights,
    config,
    data,
    make_model,
    network,
    normal,
    quantize_file,
    run_onnx,
)
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.intake.loading import load_model
from worker.quantizer.intake.provenance import provenance_faults, read_provenance
from worker.quantizer.pipeline import Result
from worker.quantizer.preparation.layout import take_nhwc
from worker.quantizer.preparation.prepare import undo_quantization

IMAGES = data(16)


def quantized(folder: Path, model: onnx.ModelProto, samples: dict[str, np.ndarray] = IMAGES, **flags: Any) -> Result:
    return quantize_file(folder, model, samples, config(preparation=flags))


def input_shapes(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    return {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }


def test_a_model_that_takes_nhwc_computes_the_same(tmp_path: Path) -> None:
    plain, turned = quantized(tmp_path, network()), quantized(tmp_path, network(), nhwc_input=True)
    first, second = onnx.load_from_string(plain.model), onnx.load_from_string(turned.model)
    onnx.checker.check_model(second, full_check=True)
    assert (input_shapes(first), input_shapes(second)) == ({"x": ["N", 3, 10, 10]}, {"x": ["N", 10, 10, 3]})
    nhwc = np.ascontiguousarray(IMAGES["x"].transpose(0, 2, 3, 1))
    expected = run_onnx(plain.model, {"x": IMAGES["x"]}, optimized=False)["scores"]
    np.testing.assert_array_equal(run_onnx(turned.model, {"x": nhwc}, optimized=False)["scores"], expected)
    compared = []
    for report in (plain.report, turned.report):
        timeless = [row.model_copy(update={"latency_percent": None}) for row in report.layers]
        compared.append((report.fidelity, report.float_.metrics, report.quantized.metrics, timeless))
    assert compared[0] == compared[1]
    said = next(found for found in turned.report.preparation if found.name == "nhwc_input")
    assert said.detail == "1 inputs of the quantized model take NHWC"


def test_only_inputs_of_four_axes_take_nhwc(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,3,6,6] x, float[N,4] z) => (float[N,4] y) "
        "{ t = Conv(x, w) p = GlobalAveragePool(t) f = Flatten(p) y = Add(f, z) }",
        {"w": normal(4, 3, 3, 3)},
    )
    samples = {"x": normal(8, 3, 6, 6), "z": normal(8, 4)}
    result = quantized(tmp_path, model, samples, nhwc_input=True)
    assert input_shapes(onnx.load_from_string(result.model)) == {"x": ["N", 6, 6, 3], "z": ["N", 4]}
    assert result.report.fidelity.sqnr_db > 25
    said = next(found for found in result.report.preparation if found.name == "nhwc_input")
    assert said.detail.endswith("; z stays: it does not have 4 axes")
    nothing = make_model("(float[N,3,4,4] x) => (float[N,3,4,4] y) { y = Softmax<axis=1>(x) }")
    result = quantized(tmp_path, nothing, {"x": normal(4, 3, 4, 4)}, nhwc_input=True)
    assert result.model == (tmp_path / "float.onnx").read_bytes(), "where nothing is quantized the interface stays"


def test_nhwc_reaches_into_subgraphs() -> None:
    model = make_model(
        "(float[1,3,4,5] x, bool go) => (float[1,3,4,5] y) { t = Relu(x) y = If(go) <"
        "then_branch = a () => (float[1,3,4,5] p) { p = Add(x, t) }, "
        "else_branch = b () => (float[1,3,4,5] q) { q = Neg(x) }> }"
    )
    turned = take_nhwc(model.SerializeToString(), ["x"])
    x = normal(1, 3, 4, 5)
    for go in (True, False):
        feeds = {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "go": np.array(go)}
        expected = run_onnx(model, {"x": x, "go": np.array(go)})["y"]
        np.testing.assert_array_equal(run_onnx(turned, feeds)["y"], expected)


def test_fixed_shapes_reach_the_data_and_the_emitted_model_or_are_refused(tmp_path: Path) -> None:
    result = quantized(tmp_path, network(), data(7), fixed_shapes={"x": [2, 3, 10, 10]})
    emitted = onnx.load_from_string(result.model)
    assert input_shapes(emitted) == {"x": [2, 3, 10, 10]}
    assert [axis.dim_value for axis in emitted.graph.output[0].type.tensor_type.shape.dim] == [2, 5]
    assert result.report.fidelity.samples == 7
    assert result.report.fidelity.sqnr_db > 20
    with pytest.raises(InvalidConfigError) as caught:
        quantized(tmp_path, network(), fixed_shapes={"image": [1, 3, 10, 10]})
    assert caught.value.errors[0].pointer == "/config/preparation/fixed_shapes/image"
    text = "(float[N,3,H,W] x) => (float[N,4,1,1] y) { t = Conv(x, w) y = GlobalAveragePool(t) }"
    with pytest.raises(DatasetMismatchError):
        wide = make_model(text, {"w": normal(4, 3, 3, 3)})
        quantized(tmp_path, wide, {"x": IMAGES["x"]}, fixed_shapes={"x": [1, 3, 12, 12]})


ALL_FLAGS = {
    "batch_norm_to_conv": True, "reduce_mean_to_global_average_pool": True, "split_large_pooling": True,
    "split_to_slice": True, "unshare_initializers": True, "nhwc_input": True, "opset": 21,
}  # fmt: skip


@pytest.mark.slow
def test_all_flags_together(tmp_path: Path) -> None:
    model = make_model(
        f"(float[N,3,32,32] x) => (float[N,8] y) {{ {batchnorm_text('x', 'i', prefix='in')} "
        f"a = Conv<pads=[1,1,1,1]>(i, w, b) {batchnorm_text('a', 'c')} r = Relu(c) p, q = Split<axis=1>(r) "
        "d = Conv<pads=[1,1,1,1]>(p, v) e = Conv<pads=[1,1,1,1]>(q, v) s = Add(d, e) "
        "g = GlobalAveragePool(s) h = ReduceMean<axes=[2,3]>(s) j = Add(g, h) f = Flatten(j) y = MatMul(f, k) }",
        {
            **batchnorm_weights(3, "in"),
            **batchnorm_weights(8),
            "w": normal(8, 3, 3, 3, scale=0.3),
            "b": normal(8),
            "v": normal(8, 4, 3, 3, scale=0.2),
            "k": normal(8, 8),
        },
    )
    result = quantized(tmp_path, model, {"x": normal(12, 3, 32, 32)}, **ALL_FLAGS)
    applied = {found.name for found in result.report.preparation if found.applied}
    assert {*ALL_FLAGS} - {"opset"} <= applied
    assert "lift_opset" in applied
    kinds = [node.op_type for node in onnx.load_from_string(result.model).graph.node]
    assert not {"Split", "BatchNormalization", "ReduceMean"} & set(kinds)
    assert result.report.fidelity.sqnr_db > 20
    names = [found.name for found in result.report.preparation]
    assert len(set(names)) == len(names)


WAYS: dict[str, dict[str, Any]] = {
    "qdq": {}, "qoperator": {"format": "qoperator"}, "dynamic": {"preset": "int8_dynamic"},
    "float16": {"preset": "float16_model"}, "weights": {"mode": "weights_only"},
    "nhwc qoperator": {"preparation": {"nhwc_input": True}, "format": "qoperator"},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_format_says_where_it_came_from(tmp_path: Path, way: str) -> None:
    result = quantize_file(tmp_path, network(), data(), config(**WAYS[way]))
    path = tmp_path / "q.onnx"
    path.write_bytes(result.model)
    onnx.checker.check_model(onnx.load(path))
    told, manifest = read_provenance(path), result.report.manifest
    assert told == Provenance(
        source_sha256=hashlib.sha256((tmp_path / "float.onnx").read_bytes()).hexdigest(),
        config_sha256=canonical_sha256(manifest.config.model_dump(mode="json")),
        engine_version=VERSION,
        target="onnxruntime_cpu",
        manifest_sha256=manifest.manifest_sha256,
    )
    assert provenance_faults(path, result.report) == ()
    keys = [entry.key for entry in onnx.load(path).metadata_props if entry.key.startswith(PREFIX)]
    assert len(keys) == len(set(keys)) == len(Provenance.model_fields)


@pytest.mark.slow
def test_a_report_as_it_was_written_is_told_from_a_changed_one_and_from_another_models(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [{}, {"seed": 1}, {"target": "tensorrt"}]
    result, seeded, other = (quantize_file(tmp_path, network(), data(), config(**way)) for way in ways)
    measured = quantize_file(tmp_path, network(), data(), config(), evaluation=data(seed=7))
    (tmp_path / "q.onnx").write_bytes(result.model)
    told = json.loads(json.dumps(result.report.to_json_dict()))
    assert provenance_faults(tmp_path / "q.onnx", Report.model_validate(told)) == ()
    told["manifest"]["config"]["seed"] = 5
    (fault,) = provenance_faults(tmp_path / "q.onnx", Report.model_validate(told))
    assert "manifest" in fault
    faults = "; ".join(provenance_faults(tmp_path / "q.onnx", other.report))
    for word in (
        "config_sha256",
        "target is onnxruntime_cpu in the model and tensorrt",
        "manifest_sha256",
        "sha256 is",
    ):
        assert word in faults
    assert "source_sha256" not in faults
    first, second = result.report.manifest, seeded.report.manifest
    assert first.config_sha256 != second.config_sha256 and first.manifest_sha256 != second.manifest_sha256
    assert first.evaluation_sha256 != measured.report.manifest.evaluation_sha256
    assert result.model == measured.model, "what a model is measured on does not change its bytes"


def test_a_model_that_nothing_was_quantized_of_or_all_was_undone_says_nothing(tmp_path: Path) -> None:
    result = quantize_file(tmp_path, network(), data(), config(exclude=[{"regex": ".*"}]))
    assert result.model == (tmp_path / "float.onnx").read_bytes()
    assert read_provenance(tmp_path / "float.onnx") is None
    (tmp_path / "q.onnx").write_bytes(quantize_file(tmp_path, network(), data(), config()).model)
    (tmp_path / "f.onnx").write_bytes(to_bytes(undo_quantization(load_model(tmp_path / "q.onnx")).model))
    assert read_provenance(tmp_path / "f.onnx") is None
    for content in (b"", b"\x00\x01", b"no model at all"):
        (tmp_path / "x.onnx").write_bytes(content)
        with pytest.raises(NotOnnxError):
            read_provenance(tmp_path / "x.onnx")
