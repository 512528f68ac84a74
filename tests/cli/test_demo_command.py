"""``quantmill demo``: the main job on real data, in an empty folder, with no service running."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import onnxruntime
import pytest

from service.contracts.report import Report
from service.keys.files import LOCAL_KEY_FILE
from tests.cli.conftest import KEY
from tests.worker.running import Service, processes_of
from worker.commands import demo, demo_model

pytestmark = pytest.mark.slow  # on a service


def check(told: str, folder: Path, *, least: float) -> None:
    """What was told is what the report says, of a model that is mostly right."""
    figures = dict(re.split(r"  +", line, maxsplit=1) for line in told.rstrip().splitlines()[-6:])
    report = Report.model_validate_json((folder / "report.json").read_text())
    for name, side in (("float", report.float_), ("quantized", report.quantized)):
        assert figures[f"{name} accuracy"] == f"{side.metrics['top1']:.2f} %"
        assert side.metrics["top1"] > least
    assert float(figures["size ratio"]) > 2.5
    assert figures["verdict"] == report.verdict
    session = onnxruntime.InferenceSession(folder / "digits.int8.onnx")
    assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]


def test_the_demo_tells_what_its_report_says(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a service that is there, with a network that was trained for a moment."""
    monkeypatch.setattr(demo_model, "EPOCHS", 2)
    monkeypatch.setattr(demo, "_train", demo_model.main)
    monkeypatch.setattr(demo, "serving", lambda *_: contextlib.nullcontext(service.url))
    (tmp_path / LOCAL_KEY_FILE).write_text(KEY)
    demo.run_demo(tmp_path / "out", tmp_path)
    check(capsys.readouterr().out, tmp_path / "out", least=80)


@pytest.mark.long
def test_the_demo_prints_its_report_and_leaves_no_process_behind(quantmill_process, tmp_path: Path) -> None:
    # Settings of another service must not lead the demo astray.
    done = quantmill_process("demo", QUANTMILL_DATABASE_URL="postgresql://127.0.0.1:1/none", QUANTMILL_API_KEY="other")
    assert done.returncode == 0, done.stdout + done.stderr
    check(done.stdout, tmp_path / "demo-output", least=96)
    assert "pass" in done.stdout.splitlines()[-3]
    for stage in ("upload", "statistics", "evaluation"):
        assert stage in done.stderr
    assert processes_of(tmp_path) == {}
    assert "quantmill-demo-" not in " ".join(processes_of(tmp_path.parent).values())
