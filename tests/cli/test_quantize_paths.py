"""The command line never writes over what it reads, and tells a failed gate by its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.contracts.exits import ExitCode
from tests.support.tiny import Tiny, make_tiny
from worker.cli import app


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def quantize(tiny: Tiny, *options: str) -> tuple[int, str]:
    arguments = ["quantize", str(tiny.model), "--calibration", str(tiny.calibration), *options]
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_the_output_may_not_be_an_input(tiny: Tiny) -> None:
    before = tiny.model.read_bytes()
    code, said = quantize(tiny, "--output", str(tiny.model))
    assert code == 2
    assert "same file" in said
    assert tiny.model.read_bytes() == before


def test_model_and_report_need_two_files(tiny: Tiny, tmp_path: Path) -> None:
    code, said = quantize(tiny, "--output", str(tmp_path / "q"), "--report", str(tmp_path / "q"))
    assert code == 2
    assert "same file" in said
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(
    ("wanted_db", "options", "code"), [(190.0, (), 0), (190.0, ("--fail-on-gate",), 3), (1.0, ("--fail-on-gate",), 0)]
)
def test_a_failed_gate_can_fail_the_pipeline(
    tiny: Tiny, tmp_path: Path, wanted_db: float, options: tuple[str, ...], code: int
) -> None:
    assert ExitCode.GATE_FAILED == 3
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"evaluation": {"gate": {"min_sqnr_db": wanted_db}}}))
    report = tmp_path / "r.json"
    found = quantize(
        tiny, "--config", str(config), "--output", str(tmp_path / "q.onnx"), "--report", str(report), *options
    )
    assert found[0] == code, found[1]
    document = json.loads(report.read_text())
    assert document["verdict"] == ("fail" if wanted_db > 100 else "pass")
    assert any("calibration data" in note for note in document["notes"])
    nothing = {"inputs": {}, "labels": None, "pictures": None, "sounds": None}
    assert document["manifest"]["calibration_preprocessing"] == nothing
