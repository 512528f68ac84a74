"""``quantmill jobs`` while they run: what Ctrl-C leaves behind, cancel, and which service is asked."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.contracts.report import Report
from tests.cli.conftest import KEY, Ask
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import Service, environment
from tests.worker.workbench import wait_for

pytestmark = pytest.mark.slow  # on a service
SLOW = {"evaluation": {"latency_runs": 1000, "layer_samples": 1024}}


def interrupt_once_submitted(arguments: list[str], folder: Path, service: Service) -> tuple[int, str, str]:
    """Start the command, press Ctrl-C once the job runs; gives exit code, what was said, and the job's id."""
    log = folder / "stderr.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.cli", *arguments], stderr=stream, stdout=stream,
            env=environment(QUANTMILL_API_KEY=KEY), cwd=folder,
        )  # fmt: skip
    try:
        job_id = wait_for(lambda: re.findall(r"job (job_\w+)", log.read_text()), message="nothing was submitted")[0]
        runner = service.one("worker.runner")
        service.kill(runner, signal.SIGSTOP)  # as long a job as can be
        service.wait_for_state(job_id, "running")
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE_SECONDS)
        service.kill(runner, signal.SIGCONT)
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    return code, log.read_text(), job_id


def test_ctrl_c_says_that_the_job_goes_on_and_how_to_come_back(quantmill, service, tiny, tmp_path):
    arguments = [
        "quantize", str(tiny.model), "--calibration", str(tiny.calibration), "--output", "q.onnx",
        "--server", service.url,
    ]  # fmt: skip
    code, said, job_id = interrupt_once_submitted(arguments, tmp_path, service)
    assert code == 130
    assert "Traceback" not in said
    assert f"the job {job_id} continues in the service" in said
    assert f"quantmill jobs follow {job_id} --server {service.url}" in said
    assert f"quantmill jobs cancel {job_id} --server {service.url}" in said
    assert KEY not in said
    assert not (tmp_path / "q.onnx").exists()
    # The very command that was printed, with a place for the results.
    done = quantmill(
        "jobs", "follow", job_id, "--server", service.url, "--output", "q.onnx", "--report", "r.json",
        QUANTMILL_API_KEY=KEY, code=0,
    )  # fmt: skip
    summary = [line.split()[0] for line in done.stdout.splitlines()[:5]]
    assert summary == ["Succeeded,", "accuracy", "size", "latency", "look"]
    verbose = quantmill("jobs", "follow", job_id, "-v", "--server", service.url, QUANTMILL_API_KEY=KEY, code=0)
    assert "fidelity  SQNR" in verbose.stdout
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert (tmp_path / "q.onnx").stat().st_size == report.quantized.size_bytes


def test_cancel_a_job_then_follow_it(ask: Ask, service: Service, uploaded, job):
    running = service.client.submit(**uploaded, config=SLOW)
    service.wait_for_state(running.id, "running")
    told = ask("jobs", "cancel", running.id)
    assert running.id in told
    assert "cancel" in told
    service.wait_for_state(running.id, "canceled")
    assert "error[job-not-succeeded]" in ask("jobs", "follow", running.id, code=1)
    assert ask("jobs", "cancel", job.id).strip() == f"{job.id} is succeeded (it had ended before)"
    for command in ("show", "follow", "cancel"):
        assert "error[job-not-found]" in ask("jobs", command, "job_nope", code=1)


def test_an_address_that_is_none(quantmill, tiny):
    quantize = ["quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx"]
    for arguments in (["jobs", "list"], quantize):
        done = quantmill(*arguments, "--server", "ftp://127.0.0.1", code=1)
        assert done.stderr.startswith("error[invalid-server]: ")
        assert "http or https" in done.stderr
        assert "hint: " in done.stderr


@pytest.mark.parametrize(("key", "expected"), [("wrong", "API key is not valid"), (None, "requires an API key")])
def test_a_wrong_key_says_how_to_give_one(quantmill, service, tiny, key, expected):
    given = [] if key is None else ["--key", key]
    quantize = ["quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx"]
    for arguments in (["jobs", "list"], quantize):
        done = quantmill(*arguments, "--server", service.url, *given, code=1)
        assert "error[unauthorized]" in done.stderr
        assert expected in done.stderr
        assert "--key" in done.stderr
