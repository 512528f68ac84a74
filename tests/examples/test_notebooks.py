"""The notebooks of examples/notebooks: cells between ``# %%``, run one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.source import ROOT

pytestmark = pytest.mark.slow  # trains a network, quantizes twice

NOTEBOOK = ROOT / "examples" / "notebooks" / "first_quantization.py"


def cells(path: Path) -> list[str]:
    """The code of each cell."""
    parts = path.read_text().split("# %%")
    return [part for part in parts if part.strip() and not part.startswith(" [markdown]")]


def test_the_notebook_runs_and_its_results_are_shown_in_a_few_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in cells(NOTEBOOK):
        exec(compile(cell, str(NOTEBOOK), "exec"), names)
    result = names["result"]
    assert result.report.verdict == "pass"
    assert result.report.float_.metrics["top1"] > 85
    assert names["smaller"].onnx_path.stat().st_size < result.onnx_path.stat().st_size
    assert (names["predictions"] == names["labels"][1200:]).float().mean().item() * 100 == pytest.approx(
        result.report.quantized.metrics["top1"], abs=0.5
    )
    assert repr(result).startswith("Quantized:\n  verdict") and len(repr(result).splitlines()) < 12
    assert "<table>" in result._repr_html_()
    assert "% of all error" in capsys.readouterr().out
