"""What every command does first, and what the help says."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.contracts.presets import PRESETS
from service.contracts.version import VERSION
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny, make_tiny
from tests.worker.running import Service, environment, start_up
from tests.worker.workbench import wait_for
from worker.commands.options import unknown_variables


def test_version(quantmill_process):
    for arguments in (["--version"], ["version"]):
        done = quantmill_process(*arguments)
        assert (done.returncode, done.stdout.strip()) == (0, VERSION)


def test_help_names_the_presets_and_the_defaults(quantmill):
    words = quantmill("quantize", "--help", COLUMNS="400").stdout
    for name in PRESETS:
        assert name in words
    words = quantmill("up", "--help", COLUMNS="400").stdout
    for default in ("127.0.0.1", "8000", ".quantmill"):
        assert default in words


def test_an_unknown_variable_is_named_once_with_its_neighbour(quantmill):
    done = quantmill("version", QUANTMILL_WORKER_SLOT="4", QUANTMILL_ZZZ="1", QUANTMILL_PORT="1", QUANTMILL_DATA="x")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "warning: the environment variable QUANTMILL_WORKER_SLOT is no setting and does nothing; "
        "did you mean QUANTMILL_WORKER_SLOTS?",
        "warning: the environment variable QUANTMILL_ZZZ is no setting and does nothing.",
    ]


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_known(name):
    assert unknown_variables({f"QUANTMILL_{name.upper()}": "x", "HOME": "/"}) == {}


def test_up_warns_once_and_its_children_do_not(tmp_path):
    with Service(tmp_path / "home", QUANTMILL_LEASE_SECOND="1") as service:
        service.one("cli worker")
    assert service.log().count("QUANTMILL_LEASE_SECOND ") == 1


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    folder = tmp_path / "tiny"
    folder.mkdir()
    return make_tiny(folder)


def test_ctrl_c_on_up_is_silent_with_a_job_running_and_messages_waiting(tmp_path, tiny):
    """The worker gives the messages back that come during the shutdown; nobody needs a traceback of that."""
    folder = tmp_path / "home"
    with Service(folder) as service:
        inputs = service.upload(tiny)
        job = service.client.submit(**inputs, config={"evaluation": {"latency_runs": 1000}})
        service.wait_for_state(job.id, "running")
        waiting = [service.client.submit(**inputs) for _ in range(5)]
        dispatcher = Dispatcher(Settings(data_dir=folder))
        service.process.send_signal(signal.SIGINT)
        for item in waiting:
            dispatcher.publish(item.id, "cpu")
        dispatcher.close()
        assert service.process.wait(PATIENCE_SECONDS) == 0
    for word in ("Traceback", "Reject", "KeyboardInterrupt"):
        assert word not in service.log()


def test_ctrl_c_before_the_service_is_ready(tmp_path):
    process = start_up(tmp_path / "home", "--port", "0", stderr=subprocess.PIPE)
    assert process.stderr is not None
    lines = []
    wait_for(lambda: lines.append(process.stderr.readline()) or b"child.started" in lines[-1])
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in (0, 130)
    assert b"Traceback" not in errors, errors.decode()


@pytest.mark.parametrize("command", ["worker", "reconcile"])
def test_ctrl_c_on_a_process_of_its_own(tmp_path, command):
    log = tmp_path / "log.txt"
    variables = environment(QUANTMILL_DATA_DIR=str(tmp_path / "home"))
    migrate = [sys.executable, "-P", "-m", "worker.cli", "migrate"]
    subprocess.run(migrate, env=variables, check=True, capture_output=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.cli", command], env=variables, stderr=stream, stdout=stream
        )
    try:
        if command == "worker":
            wait_for(lambda: b"ready" in log.read_bytes())
        else:
            wait_for(lambda: (tmp_path / "home" / "service.db-shm").exists())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    assert "Traceback" not in log.read_text()
