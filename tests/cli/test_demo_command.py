"""``quantmill demo``: the main job on real data, in an empty folder, with no service running."""

from __future__ import annotations

import re

import onnxruntime
import pytest

from service.contracts.report import Report
from tests.worker.running import processes_of


@pytest.mark.slow
def test_the_demo_prints_its_report_and_leaves_no_process_behind(quantmill_process, tmp_path):
    # Settings of another service must not lead the demo astray.
    done = quantmill_process("demo", QUANTMILL_DATABASE_URL="postgresql://127.0.0.1:1/none", QUANTMILL_API_KEY="other")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = dict(re.split(r"  +", line, maxsplit=1) for line in done.stdout.rstrip().splitlines()[-6:])
    accuracy = {name: float(figures[f"{name} accuracy"].removesuffix(" %")) for name in ("float", "quantized")}
    assert accuracy["float"] > 97
    assert accuracy["quantized"] > 96
    assert float(figures["size ratio"]) > 2.5
    assert figures["verdict"] == "pass"
    assert figures["report"] == "demo-output/report.json"
    report = Report.model_validate_json((tmp_path / "demo-output" / "report.json").read_text())
    assert f"{report.quantized.metrics['top1']:.2f} %" == figures["quantized accuracy"]
    for stage in ("upload", "statistics", "evaluation"):
        assert stage in done.stderr
    session = onnxruntime.InferenceSession(tmp_path / "demo-output" / "digits.int8.onnx")
    assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]
    assert processes_of(tmp_path) == {}
    assert "quantmill-demo-" not in " ".join(processes_of(tmp_path.parent).values())
