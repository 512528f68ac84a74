"""``quantmill jobs``, and what Ctrl-C leaves behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.contracts.report import Report
from tests.cli.conftest import KEY
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.running import Service, environment
from tests.worker.workbench import wait_for

SLOW = {"evaluation": {"latency_runs": 1000, "layer_samples": 1024}}


@pytest.fixture(scope="module")
def inputs(service: Service, tiny: Tiny) -> dict[str, str]:
    return service.upload(tiny)


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
    (tmp_path / "slow.json").write_text(json.dumps(SLOW))
    arguments = [
        "quantize", str(tiny.model), "--calibration", str(tiny.calibration), "--config", "slow.json",
        "--output", "q.onnx", "--server", service.url,
    ]  # fmt: skip
    code, said, job_id = interrupt_once_submitted(arguments, tmp_path, service)
    assert code == 130
    assert "Traceback" not in said
    assert f"the job {job_id} goes on in the service" in said
    assert f"quantmill jobs follow {job_id} --server {service.url}" in said
    assert f"quantmill jobs cancel {job_id} --server {service.url}" in said
    assert KEY not in said
    assert not (tmp_path / "q.onnx").exists()
    # The very command that was printed, with a place for the results.
    done = quantmill(
        "jobs", "follow", job_id, "--server", service.url, "--output", "q.onnx", "--report", "r.json",
        QUANTMILL_API_KEY=KEY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "verdict" in done.stdout
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert (tmp_path / "q.onnx").stat().st_size == report.quantized.size_bytes


def test_list_shows_the_newest_first(quantmill, service, inputs):
    first = service.client.submit(**inputs, name="the first")
    second = service.client.submit(**inputs, name="[bold]the second[/bold]")
    service.client.wait_succeeded(second.id, timeout_seconds=PATIENCE_SECONDS)
    done = quantmill("jobs", "list", "--server", service.url, "--key", KEY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index(second.id) < done.stdout.index(first.id)
    assert "succeeded" in done.stdout
    assert "[bold]the second[/bold]" in done.stdout
    page = json.loads(quantmill("jobs", "list", "--server", service.url, "--key", KEY, "--limit", 1, "--json").stdout)
    assert [job["id"] for job in page["items"]] == [second.id]
    assert page["has_more"] is True
    none = quantmill("jobs", "list", "--server", service.url, "--key", KEY, "--state", "queued", "--json")
    assert json.loads(none.stdout)["items"] == []


def test_a_state_that_is_none_is_refused(quantmill, service):
    done = quantmill("jobs", "list", "--server", service.url, "--key", KEY, "--state", "asleep")
    assert done.returncode == 2
    assert "--state" in done.stderr
    assert "Traceback" not in done.stderr


def test_show(quantmill, service, inputs):
    job = service.client.submit(**inputs, name="net")
    service.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)
    done = quantmill("jobs", "show", job.id, "--server", service.url, "--key", KEY)
    shown = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (shown["job"], shown["name"], shown["state"]) == (job.id, "net", "succeeded")
    assert shown["attempt"] == "1 of 3"
    assert shown["artifact"].startswith("art_")
    document = json.loads(quantmill("jobs", "show", job.id, "--server", service.url, "--key", KEY, "--json").stdout)
    assert document == json.loads(service.client.job(job.id).model_dump_json(by_alias=True))
    assert "float" in document["figures"]["metrics"][0]


def test_cancel_a_running_job_then_follow_it(quantmill, service, inputs):
    job = service.client.submit(**inputs, config=SLOW)
    service.wait_for_state(job.id, "running")
    done = quantmill("jobs", "cancel", job.id, "--server", service.url, "--key", KEY)
    assert done.returncode == 0, done.stderr
    assert job.id in done.stdout
    assert "cancel" in done.stdout
    service.wait_for_state(job.id, "canceled")
    followed = quantmill("jobs", "follow", job.id, "--server", service.url, "--key", KEY)
    assert followed.returncode == 1
    assert "error[job-not-succeeded]" in followed.stderr


def test_cancel_of_a_job_that_has_ended_says_so(quantmill, service, inputs):
    job = service.client.submit(**inputs)
    service.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)
    done = quantmill("jobs", "cancel", job.id, "--server", service.url, "--key", KEY)
    assert done.stdout.strip() == f"{job.id} is succeeded (it had ended before)"


@pytest.mark.parametrize("command", ["show", "follow", "cancel"])
def test_a_job_that_is_not_there(quantmill, service, command):
    done = quantmill("jobs", command, "job_nope", "--server", service.url, "--key", KEY)
    assert done.returncode == 1
    assert "error[job-not-found]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("ftp://127.0.0.1", "http or https"),
        ("http://", "http or https"),
        ("http://127.0.0.1:port", "is not an address"),
    ],
)
def test_an_address_that_is_none(quantmill, tiny, address, expected):
    for arguments in (
        ["jobs", "list"],
        ["quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx"],
    ):
        done = quantmill(*arguments, "--server", address)
        assert done.returncode == 1
        assert done.stderr.startswith("error[invalid-server]: ")
        assert expected in done.stderr
        assert "hint: " in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("key", "expected"), [("wrong", "not the service's key"), (None, "wants a key")])
def test_a_wrong_key_says_how_to_give_one(quantmill, service, tiny, key, expected):
    given = [] if key is None else ["--key", key]
    for arguments in (
        ["jobs", "list"],
        ["quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx"],
    ):
        done = quantmill(*arguments, "--server", service.url, *given)
        assert done.returncode == 1
        assert "error[unauthorized]" in done.stderr
        assert expected in done.stderr
        assert "--key" in done.stderr
        assert "Traceback" not in done.stderr
