"""Metrics on the command line: graphs by path, metrics of evaluate, and what is said of a wrong one."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from service.contracts.errors import InvalidConfigError
from service.contracts.metrics.graph import MAX_INLINE_BYTES
from service.contracts.report import Report
from worker.commands.recipes import load_recipe

GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
top1 (float[N,C] y, int64[N] labels) => (float hits, float all) {
    k = ArgMax<axis=1, keepdims=0>(y) e = Equal(k, labels) f = Cast<to=1>(e) hits = ReduceSum<keepdims=0>(f)
    n = Size(labels) all = Cast<to=1>(n)
}"""


def config(folder: Path, *metrics: dict[str, Any], **gate: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"evaluation": {"metrics": list(metrics), "gate": gate}}))
    return path


def by_path(path: str) -> dict[str, Any]:
    return {"kind": "onnx", "name": "mine", "graph": {"path": path}}


def test_the_file_of_a_graph_goes_into_the_config(tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "top1.onnx").write_bytes(b"some bytes")
    (metric,) = load_recipe(None, config(tmp_path, by_path("graphs/top1.onnx"))).config.evaluation.metrics
    assert metric.graph.model_dump() == {"base64": base64.b64encode(b"some bytes").decode(), "model_id": None}


@pytest.mark.parametrize(
    ("size", "says"), [(None, "cannot be read: .*No such file"), (MAX_INLINE_BYTES + 1, "larger than 1048576 bytes")]
)
def test_files_that_cannot_be_taken(tmp_path: Path, size: int | None, says: str) -> None:
    if size is not None:
        (tmp_path / "top1.onnx").write_bytes(bytes(size))
    with pytest.raises(InvalidConfigError, match=says) as caught:
        load_recipe(None, config(tmp_path, {"kind": "sqnr"}, by_path("top1.onnx")))
    assert caught.value.errors[0].pointer == "/evaluation/metrics/1/graph/path"
    assert caught.value.hint


def losses(folder: Path, *entries: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"algorithms": [{"method": "bias_correction"}, {"method": "qat", "losses": entries}]}))
    return path


def test_the_file_of_a_loss_goes_into_the_config(tmp_path: Path) -> None:
    (tmp_path / "loss.onnx").write_bytes(b"some bytes")
    given = {"kind": "onnx", "graph": {"path": "loss.onnx"}}
    training = load_recipe(None, losses(tmp_path, {"kind": "distillation"}, given)).config.algorithms[1]
    assert training.losses[1].graph.inline == b"some bytes"
    with pytest.raises(InvalidConfigError, match=r"cannot be read: .*No such file") as caught:
        load_recipe(None, losses(tmp_path, given, {"kind": "onnx", "graph": {"path": "far.onnx"}}))
    assert caught.value.errors[0].pointer == "/algorithms/1/losses/1/graph/path"


def test_quantize_refuses_a_training_that_the_data_cannot_feed(quantmill, tiny, tmp_path):
    path = losses(tmp_path, {"kind": "mse", "targets": "far"})
    done = quantmill("quantize", tiny.model, "--calibration", tiny.calibration, "--config", path, "--output", "q.onnx")
    assert done.returncode == 1
    assert "error[invalid-config]: loss mse: the data has no array 'far'" in done.stderr
    assert "at /algorithms/1/losses/0/targets" in done.stderr


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"evaluation": 3},
        {"evaluation": {"metrics": 3}},
        {"evaluation": {"metrics": [3]}},
        {"algorithms": [3]},
        {"algorithms": [{"method": "qat", "losses": 3}]},
        {"algorithms": [{"method": "qat", "losses": [3]}]},
    ],
)
def test_documents_of_another_form_are_left_to_the_contract(tmp_path: Path, document: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(InvalidConfigError):
        load_recipe(None, tmp_path / "config.json")


def test_quantize_and_evaluate_measure_declared_metrics(quantmill, tiny, tmp_path):
    onnx.save(onnx.parser.parse_model(GRAPH), tmp_path / "top1.onnx")
    path = config(tmp_path, by_path("top1.onnx"), {"kind": "top1"}, {"kind": "l2"}, metric="l2", max_value=1e-9)
    data = ("--calibration", tiny.calibration, "--evaluation", tiny.evaluation)
    given = ("quantize", tiny.model, *data, "--config", path, "--output", "q.onnx", "--report", "r.json")
    quantmill(*given, code=0)
    done = quantmill(*given, "--fail-on-gate", code=3)
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert 100 * report.quantized.metrics["mine"] == pytest.approx(report.quantized.metrics["top1"], abs=1e-3)
    assert report.verdict == "fail"
    assert "Gate failed: 1 of 1 condition of the gate failed. l2 is at most 1e-09; measured " in done.stdout
    done = quantmill("evaluate", "q.onnx", "--evaluation", tiny.evaluation, "--config", path, "--reference", tiny.model)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["metrics"] == report.quantized.metrics
    alone = quantmill("evaluate", "q.onnx", "--evaluation", tiny.evaluation, "--config", path)
    assert alone.returncode != 0
    assert "l2 compares with a reference model" in alone.stderr
    assert "at /evaluation/metrics/2/kind" in alone.stderr
