"""``quantmill quantize --server``: the same command, the same bytes, the same errors."""

from __future__ import annotations

import numpy as np

from service.contracts.report import Report
from tests.cli.conftest import KEY
from tests.support.tiny import make_model


def comparable(report: Report) -> dict:
    """The report without what was timed."""
    document = report.model_dump(mode="json", exclude={"stages", "summary", "gate", "latency", "notes"})
    for row in document["layers"]:
        row.pop("latency_percent")
    for advice in document["advice"]:
        if advice["figure"] is not None:
            advice["figure"].pop("seconds")
    for side in ("float_", "quantized"):
        document[side].pop("latency_ms")
    return document


def test_both_ways_give_the_same_bytes_and_the_same_report(quantmill, tiny, service, tmp_path):
    common = ["quantize", tiny.model, "--calibration", tiny.calibration, "--evaluation", tiny.evaluation]
    local = quantmill(*common, "--threads", "1", "--output", "local.onnx", "--report", "local.json")
    assert local.returncode == 0, local.stderr
    remote = quantmill(
        *common, "--output", "remote.onnx", "--report", "remote.json", "--server", service.url, "--key", KEY
    )
    assert remote.returncode == 0, remote.stderr
    assert (tmp_path / "local.onnx").read_bytes() == (tmp_path / "remote.onnx").read_bytes()
    reports = [Report.model_validate_json((tmp_path / name).read_text()) for name in ("local.json", "remote.json")]
    assert comparable(reports[0]) == comparable(reports[1])
    for word in ("net.onnx", "job job_", "evaluation"):
        assert word in remote.stderr
    assert "verdict" in remote.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "local.json", "local.onnx", "remote.json", "remote.onnx",
    ]  # fmt: skip


def test_external_data_is_sent_along(quantmill, tiny, service, tmp_path):
    make_model(tmp_path / "net.onnx", external="weights.bin")
    common = ["quantize", "net.onnx", "--calibration", tiny.calibration]
    remote = quantmill(*common, "--output", "remote.onnx", "--server", service.url, QUANTMILL_API_KEY=KEY)
    assert remote.returncode == 0, remote.stderr
    assert quantmill(*common, "--output", "local.onnx").returncode == 0
    assert (tmp_path / "local.onnx").read_bytes() == (tmp_path / "remote.onnx").read_bytes()


def test_a_refusal_of_the_service_is_told_like_a_local_one(quantmill, tiny, service, tmp_path):
    np.savez(tmp_path / "c.npz", x=np.ones((4, 3, 9, 9), np.float32))
    done = quantmill(
        "quantize", tiny.model, "--calibration", "c.npz", "--output", "q.onnx", "--server", service.url, "--key", KEY
    )
    assert done.returncode == 1
    assert "error[dataset-mismatch]" in done.stderr
    assert "/calibration_dataset_id" in done.stderr
    assert "hint: " in done.stderr
    assert "request: req_" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "q.onnx").exists()


def test_a_rejected_model_says_why(quantmill, tiny, service, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(tiny.model.read_bytes()[:300])
    done = quantmill(
        "quantize", "broken.onnx", "--calibration", tiny.calibration, "--output", "q.onnx",
        "--server", service.url, "--key", KEY,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error[" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_key(quantmill, tiny, service):
    done = quantmill(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx",
        "--server", service.url, "--key", "wrong",
    )  # fmt: skip
    assert done.returncode == 1
    assert "error[unauthorized]" in done.stderr


def test_no_service_there(quantmill, tiny):
    done = quantmill(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx",
        "--server", "http://127.0.0.1:1",
    )  # fmt: skip
    assert done.returncode == 1
    assert "error[server-unreachable]" in done.stderr
    assert "Traceback" not in done.stderr
