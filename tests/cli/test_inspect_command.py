"""inspect, targets, dequantize and provenance on the command line, in this process and on a service."""

from __future__ import annotations

import json

import onnx
import pytest

from service.contracts.graph_view import Inspection
from service.contracts.targets import TARGET_OPTIONS


def test_what_stays_in_float_is_told_with_reason_and_hint(quantmill, tiny):
    done = quantmill("inspect", tiny.model, "--target", "amd_npu_transformer", code=0)
    assert done.stdout.rstrip().endswith("1 of 5 nodes run quantized on amd_npu_transformer.")
    for word in ("conv", "Conv", "has no integer kernel", "Replace the operator"):
        assert word in done.stdout
    assert "gemm" not in done.stdout
    # without anything left there is no table
    assert quantmill("inspect", tiny.model).stdout == "5 of 5 nodes run quantized on onnxruntime_cpu.\n"


@pytest.mark.slow
def test_json_is_the_document_and_a_service_gives_the_same(quantmill, ask, tiny):
    common = ["inspect", tiny.model, "--target", "amd_npu_transformer", "--json"]
    done = quantmill(*common, code=0)
    found = Inspection.model_validate_json(done.stdout)
    assert [(node.name, node.quantized) for node in found.nodes] == [
        ("conv", False), ("relu", False), ("pool", False), ("flatten", False), ("gemm", True),
    ]  # fmt: skip
    assert (found.node_count, found.quantized_count) == (5, 1)
    assert ask(*common) == done.stdout


def test_a_config_decides_too(quantmill, tiny, tmp_path):
    (tmp_path / "c.json").write_text(json.dumps({"mode": "weights_only", "exclude": [{"node": "gemm"}]}))
    done = quantmill("inspect", tiny.model, "--config", "c.json", code=0)
    assert "excluded by" in done.stdout
    assert done.stdout.rstrip().endswith("1 of 5 nodes get quantized weights on onnxruntime_cpu.")
    preset = quantmill("inspect", tiny.model, "--preset", "xint8")
    assert preset.stdout.rstrip().endswith("on amd_npu_cnn.")


def test_targets(quantmill, tiny):
    done = quantmill("targets", code=0)
    assert [line.split()[0] for line in done.stdout.splitlines()] == sorted(TARGET_OPTIONS)
    page = quantmill("targets", "openvino")
    for option in TARGET_OPTIONS["openvino"]:
        assert option.name in page.stdout
    unknown = quantmill("targets", "openvinoo", code=1)
    assert "did you mean 'openvino'?" in unknown.stderr
    unknown = quantmill("inspect", tiny.model, "--target", "qn", code=2)
    assert "did you mean 'qnn'?" in unknown.stderr


def test_dequantize_gives_a_float_model_that_is_quantized_anew_where_the_config_says_so(quantmill, tiny, tmp_path):
    assert quantmill("quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx").returncode == 0
    done = quantmill("dequantize", "q.onnx", "--output", "f.onnx", code=0)
    assert "pairs of QuantizeLinear and DequantizeLinear removed" in done.stdout
    model = onnx.load(tmp_path / "f.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in model.graph.node}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.onnx", "q.onnx"]

    common = ["quantize", "q.onnx", "--calibration", tiny.calibration, "--output", "again.onnx"]
    refused = quantmill(*common, code=1)
    assert "error[already-quantized]" in refused.stderr
    assert "preparation.dequantize" in refused.stderr
    (tmp_path / "c.json").write_text(json.dumps({"preparation": {"dequantize": True}}))
    done = quantmill(*common, "--config", "c.json", "--report", "r.json", code=0)
    report = json.loads((tmp_path / "r.json").read_text())
    (step,) = [step for step in report["preparation"] if step["name"] == "dequantize"]
    assert step["applied"]
    assert report["fidelity"]["sqnr_db"] > 25


def test_provenance_tells_where_a_model_came_from_and_whether_a_report_is_its_own(quantmill, tiny, tmp_path):
    for name, preset in (("a", "int8"), ("b", "int8_per_tensor")):
        options = ("--output", f"{name}.onnx", "--report", f"{name}.json", "--preset", preset)
        quantmill("quantize", tiny.model, "--calibration", tiny.calibration, *options, code=0)
    told = quantmill("provenance", "a.onnx", "--report", "a.json", code=0)
    manifest = json.loads((tmp_path / "a.json").read_text())["manifest"]
    same = {name: manifest[name] for name in ("config_sha256", "engine_version", "manifest_sha256")}
    assert json.loads(told.stdout) == {
        "source_sha256": manifest["model_sha256"], "target": "onnxruntime_cpu", **same
    }  # fmt: skip
    other = quantmill("provenance", "a.onnx", "--report", "b.json", code=1)
    assert "error[provenance-mismatch]" in other.stderr
    assert "config_sha256" in other.stderr
    assert quantmill("provenance", tiny.model).stdout.strip() == "null"
    measured = quantmill("evaluate", "a.onnx", "--evaluation", tiny.evaluation)
    assert json.loads(measured.stdout)["model"]["provenance"] == json.loads(told.stdout)
