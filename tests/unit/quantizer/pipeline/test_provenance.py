"""A quantized model's file says where it came from, and a report can be held against it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from service.contracts.errors import NotOnnxError
from service.contracts.provenance import PREFIX, Provenance
from service.contracts.report import Report
from service.contracts.report.digests import canonical_sha256
from service.contracts.version import VERSION
from tests.unit.quantizer.toolbox import config, data, network, quantize_file
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.intake.loading import load_model
from worker.quantizer.intake.provenance import provenance_faults, read_provenance
from worker.quantizer.pipeline import Result
from worker.quantizer.preparation.prepare import undo_quantization

WAYS: dict[str, dict[str, Any]] = {
    "qdq": {},
    "qoperator": {"format": "qoperator"},
    "dynamic": {"preset": "int8_dynamic"},
    "float16": {"preset": "float16_model"},
    "weights": {"mode": "weights_only"},
    "nhwc": {"preparation": {"nhwc_input": True}},
    "nhwc qoperator": {"preparation": {"nhwc_input": True}, "format": "qoperator"},
}


def quantized(folder: Path, settings: dict[str, Any], **others: Any) -> Result:
    folder.mkdir(exist_ok=True)
    return quantize_file(folder, network(), data(), config(**settings), **others)


@pytest.mark.parametrize("way", WAYS)
def test_every_format_says_where_it_came_from(tmp_path: Path, way: str) -> None:
    result = quantized(tmp_path, WAYS[way])
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


def test_a_report_as_it_was_written_is_found_to_be_the_models(tmp_path: Path) -> None:
    result = quantized(tmp_path, {})
    (tmp_path / "q.onnx").write_bytes(result.model)
    told = json.loads(json.dumps(result.report.to_json_dict()))
    assert provenance_faults(tmp_path / "q.onnx", Report.model_validate(told)) == ()
    told["manifest"]["config"]["seed"] = 5
    (fault,) = provenance_faults(tmp_path / "q.onnx", Report.model_validate(told))
    assert "manifest" in fault


def test_another_models_report_is_told_from_its_own(tmp_path: Path) -> None:
    result = quantized(tmp_path / "a", {})
    other = quantized(tmp_path / "b", {"target": "tensorrt"})
    (tmp_path / "q.onnx").write_bytes(result.model)
    faults = "; ".join(provenance_faults(tmp_path / "q.onnx", other.report))
    for word in (
        "config_sha256",
        "target is onnxruntime_cpu in the model and tensorrt",
        "manifest_sha256",
        "sha256 is",
    ):
        assert word in faults
    assert "source_sha256" not in faults


def test_what_a_model_is_measured_on_does_not_change_its_bytes(tmp_path: Path) -> None:
    plain = quantized(tmp_path / "a", {})
    measured = quantized(tmp_path / "b", {}, evaluation=data(seed=7))
    assert plain.report.manifest.evaluation_sha256 != measured.report.manifest.evaluation_sha256
    assert plain.model == measured.model


def test_the_bytes_depend_on_data_and_config(tmp_path: Path) -> None:
    first = quantized(tmp_path / "a", {}).report.manifest
    other = quantized(tmp_path / "b", {"seed": 1}).report.manifest
    assert first.config_sha256 != other.config_sha256
    assert first.manifest_sha256 != other.manifest_sha256


def test_a_model_that_nothing_was_quantized_of_stays_as_it_was(tmp_path: Path) -> None:
    result = quantized(tmp_path, {"exclude": [{"regex": ".*"}]})
    assert result.model == (tmp_path / "float.onnx").read_bytes()
    assert read_provenance(tmp_path / "float.onnx") is None


def test_a_model_without_its_pairs_says_nothing_of_the_time_when_it_had_them(tmp_path: Path) -> None:
    (tmp_path / "q.onnx").write_bytes(quantized(tmp_path, {}).model)
    (tmp_path / "f.onnx").write_bytes(to_bytes(undo_quantization(load_model(tmp_path / "q.onnx")).model))
    assert read_provenance(tmp_path / "f.onnx") is None


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"no model at all"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(NotOnnxError):
        read_provenance(tmp_path / "x.onnx")
