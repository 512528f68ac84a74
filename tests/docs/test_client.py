"""Every block of docs/client.md and docs/batches.md runs, and the shell parts of examples/ci, on a service."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.blocks import ROOT, check_quantized, fenced, run_block
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import Service, environment

pytestmark = pytest.mark.slow  # starts a service, quantizes several times

PAGE = ROOT / "docs" / "client.md"
CI = ROOT / "examples" / "ci"
GATE_HOLDS, GATE_FAILS = (5, 0), (200, 3)


@pytest.mark.long
def test_every_block_of_the_page_runs(
    folder: Path, service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("QUANTMILL_SERVER", service.url)
    pipeline, awaited, lists, errors = fenced(PAGE, "python")
    names: dict[str, Any] = {}

    def told(block: str) -> str:
        exec(compile(block, "client.md", "exec"), names)
        return capsys.readouterr().out

    told(pipeline)
    check_quantized(folder / "quantized.onnx", folder)
    assert names["report"].verdict == "pass"
    assert told(awaited).endswith("job.succeeded\nsucceeded\n")
    assert "method" in told(lists)
    said = told(errors)
    assert "/config/preset" in said
    assert "job-not-found" in said


@pytest.mark.long
def test_every_block_of_the_page_of_batches_runs(
    folder: Path, service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (python,) = fenced(PAGE.with_name("batches.md"), "python")
    (shell,) = fenced(PAGE.with_name("batches.md"), "bash")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("QUANTMILL_SERVER", service.url)
    exec(compile(python, "batches.md", "exec"), {})
    assert "[0] state" in capsys.readouterr().out
    done = run_block(shell, folder, QUANTMILL_SERVER=service.url)
    assert done.returncode == 0, done.stderr
    assert "2 succeeded" in done.stdout


def commands_of(name: str) -> list[str]:
    """The shell parts of a workflow, in their order."""
    document = yaml.safe_load((CI / name).read_text())
    if name.startswith("github"):
        return [step["run"] for step in document["jobs"]["quantize"]["steps"] if "run" in step]
    return ["\n".join(document["quantize"]["script"])]


def run_workflow(name: str, folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    """What a runner would do: each part in a shell that stops at errors, with what the parts before have exported."""
    exported, summary = folder / "exported", folder / "summary.md"
    exported.touch()
    variables = {
        "QUANTMILL_SERVER": url, "PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}",
        "GITHUB_ENV": str(exported), "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_SHA": "4f2c",
        "GITHUB_REPOSITORY": "group/net", "CI_PROJECT_PATH": "group/net", "CI_COMMIT_SHA": "4f2c",
    }  # fmt: skip
    for part in commands_of(name):
        kept = dict(line.split("=", 1) for line in exported.read_text().splitlines())
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", part], cwd=folder, env=environment(**variables, **kept),
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            break
    return done


@pytest.mark.long
@pytest.mark.parametrize("gate", [GATE_HOLDS, GATE_FAILS])
@pytest.mark.parametrize("name", sorted(path.name for path in CI.glob("*.yml")))
def test_the_workflows_run(name: str, gate: tuple[int, int], folder: Path, service: Service) -> None:
    min_sqnr_db, code = gate
    recipe = {"preset": "int8", "evaluation": {"gate": {"min_sqnr_db": min_sqnr_db}}}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    done = run_workflow(name, folder, service.url)
    assert done.returncode == code, done.stdout + done.stderr
    check_quantized(folder / "quantized.onnx", folder)
    assert "<testsuite" in (folder / "gate.xml").read_text()
    newest = next(service.client.jobs(labels={"commit": "4f2c"}))
    assert (newest.name, newest.verdict) == ("group/net", "pass" if code == 0 else "fail")
    if name.startswith("github"):
        assert (folder / "summary.md").read_text()
