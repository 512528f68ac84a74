"""The Python and the shell of docs/batches.md run, on a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, fenced, run_block
from tests.worker.running import Service

PAGE = ROOT / "docs" / "batches.md"


@pytest.mark.slow
@pytest.mark.long
def test_every_block_of_the_page_runs(
    folder: Path, service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (python,) = fenced(PAGE, "python")
    (shell,) = fenced(PAGE, "bash")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("QUANTMILL_SERVER", service.url)
    exec(compile(python, "batches.md", "exec"), {})
    assert "[0] state" in capsys.readouterr().out
    done = run_block(shell, folder, QUANTMILL_SERVER=service.url)
    assert done.returncode == 0, done.stderr
    assert "2 succeeded" in done.stdout
