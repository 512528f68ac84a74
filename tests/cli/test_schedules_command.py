"""``quantmill schedules``: from the first to the last word of a schedule's life, on a service that fires it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import quantmill as door
from tests.cli.conftest import KEY
from tests.support.tiny import Tiny
from tests.worker.running import Service
from tests.worker.workbench import wait_for


@pytest.fixture
def schedules(quantmill, service: Service):
    """Runs ``quantmill schedules ARGUMENTS`` on the service; gives what it printed."""

    def run(*arguments: object, code: int = 0) -> str:
        done = quantmill("schedules", *arguments, "--server", service.url, "--key", KEY)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


@pytest.fixture
def job_file(service: Service, tiny: Tiny, tmp_path: Path) -> Path:
    with door.Client(service.url, KEY) as client:
        model = client.wait_ready(client.push_model(tiny.model, name="scheduled-net"))
        data = client.wait_ready(client.push_dataset(tiny.calibration, name="scheduled-data"))
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"model_id": f"{model.name}@latest", "calibration_dataset_id": data.id}))
    return path


def test_a_schedules_life(quantmill, service: Service, schedules, job_file: Path, tmp_path: Path) -> None:
    def told(*arguments: object) -> Any:
        return json.loads(schedules(*arguments, "--json"))

    gate = tmp_path / "gate.json"
    gate.write_text(json.dumps({"clauses": [{"kind": "size", "max_ratio": 1.2}]}))
    made = told(
        "add", "nightly", "30 2 * * *", job_file, "--timezone", "Europe/Berlin", "--gate", gate, "--promote-to", "prod"
    )
    assert (made["timezone"], made["promote_to"], made["overlap"]) == ("Europe/Berlin", "prod", "skip")
    one = made["id"]
    assert one in schedules("list")
    assert all(word in schedules("show", one) for word in ("max_ratio", "last_pass", "on undecided: fail"))
    assert told("show", one)["template"]["model_id"] == "scheduled-net@latest"
    assert told("show", "nightly")["id"] == one
    changed = told("set", "nightly", "--name", "each night", "--overlap", "queue", "--promote-to", "")
    assert (changed["name"], changed["overlap"], changed["promote_to"], changed["cron"]) == (
        "each night",
        "queue",
        None,
        made["cron"],
    )
    assert told("set", "each night", "--promote-to", "prod", "--no-skip-unchanged")["promote_to"] == "prod"
    assert "--cron" in schedules("set", "each night", code=2)
    gate.write_text(json.dumps({"clauses": [{"kind": "max_drop", "metric": "top9", "max_drop": 1}]}))
    assert "top9" in schedules("set", "each night", "--gate", gate, code=1)
    assert "paused" in schedules("pause", one)
    assert told("resume", one)["next_due_at"] == made["next_due_at"]
    run = told("run", one)
    assert run["state"] == "running"
    assert any(word in schedules("runs", one) for word in ("scheduled-net@", run["model_id"]))

    def ended() -> list[dict[str, Any]]:
        return [item for item in told("runs", one)["items"] if item["state"] not in ("running", "waiting")]

    (found,) = wait_for(ended, message="the run was never judged")
    assert (found["id"], found["state"], found["promoted_to"]) == (run["id"], "passed", "prod")
    (line,) = schedules("runs", one, "--state", "passed").splitlines()
    assert run["job_id"] in line
    assert line.endswith("prod moved")
    shown = quantmill("jobs", "show", run["job_id"], "--server", service.url, "--key", KEY).stdout
    assert any(f"{one}, passed" in text and "prod moved" in text for text in shown.splitlines())
    assert "no run" in schedules("runs", one, "--state", "failed")
    assert told("show", one)["last_pass_job_id"] == run["job_id"]
    assert told("rm", one) == {"id": one, "deleted": True}
    assert one in schedules("show", one, code=1)


def test_a_schedule_fires_by_the_clock(schedules, job_file: Path) -> None:
    made = json.loads(schedules("add", "often", "* * * * *", job_file, "--json"))

    def fired() -> list[dict[str, Any]]:
        return [
            item for item in json.loads(schedules("runs", made["id"], "--json"))["items"] if item["trigger"] == "time"
        ]

    found = wait_for(fired, seconds=150, message="it was never due")
    assert found[-1]["due_at"] == made["next_due_at"]
    assert found[-1]["job_id"] is not None
    schedules("rm", made["id"])


def test_a_run_is_followed_while_it_is_waited_for(quantmill, service: Service, schedules, job_file: Path) -> None:
    made = json.loads(schedules("add", "waited for", "0 2 * * *", job_file, "--json"))
    done = quantmill("schedules", "run", made["id"], "--wait", "--json", "--server", service.url, "--key", KEY)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["state"] == "passed"
    assert f"quantmill jobs follow {run['job_id']}" in done.stderr
    assert "emit" in done.stderr
    schedules("rm", made["id"])


def test_what_is_refused_says_what_to_do(schedules, job_file: Path, tmp_path: Path) -> None:
    assert "/cron" in schedules("add", "n", "61 * * * *", job_file, code=1)
    assert "IANA" in schedules("add", "n", "0 2 * * *", job_file, "--timezone", "Mars/Olympus", code=1)
    broken = tmp_path / "broken.json"
    broken.write_text("[1]")
    assert "no JSON object" in schedules("add", "n", "0 2 * * *", broken, code=2)
