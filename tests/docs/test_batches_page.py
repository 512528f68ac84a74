"""The Python and the shell of docs/batches.md run, on a service; its request is one that the service takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.batches.schemas import BatchCreate
from tests.docs.blocks import ROOT, fenced, make_workplace, preprocessing, run_block
from tests.worker.running import Service

pytestmark = pytest.mark.slow  # starts a service, quantizes several times

PAGE = ROOT / "docs" / "batches.md"


def test_every_block_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_workplace(tmp_path)
    (tmp_path / "preprocessing.json").write_text(preprocessing())
    (python,) = fenced(PAGE, "python")
    (shell,) = fenced(PAGE, "bash")
    with Service(tmp_path / "home") as service:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("QUANTMILL_SERVER", service.url)
        exec(compile(python, "batches.md", "exec"), {})
        assert "[0] state" in capsys.readouterr().out
        done = run_block(shell, tmp_path, QUANTMILL_SERVER=service.url)
    assert done.returncode == 0, done.stderr
    assert "2 succeeded" in done.stdout


def test_the_request_is_one() -> None:
    (document,) = fenced(PAGE, "json")
    body = BatchCreate.model_validate(json.loads(document))
    assert (body.size, body.faults) == (4, [])
