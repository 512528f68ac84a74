"""What every command does first, what the help says, and what Ctrl-C ends; on a database that was not migrated."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.contracts.base import VERSION
from service.contracts.presets import RECOMMENDED
from service.db import migrate
from service.settings import Settings
from tests.support.each import each
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.running import Service, environment, start_up
from tests.worker.workbench import wait_for
from worker.commands.options import unknown_variables

# What a command that prints a few words has no use for.
HEAVY = ("torch", "onnxruntime", "onnx", "numpy", "sqlalchemy", "fastapi", "celery", "alembic")


@pytest.mark.slow
def test_version_and_help_are_quick_and_load_neither_engine_nor_database_nor_server(quantmill_process):
    version = quantmill_process("--version", QUANTMILL_SERVER="http://127.0.0.1:1")
    assert (version.returncode, version.stdout.strip(), version.stderr) == (0, VERSION, "")
    help_ = quantmill_process("--help", PYTHONPROFILEIMPORTTIME="1", code=0)
    loaded = {line.rpartition("|")[2].strip() for line in help_.stderr.splitlines()}
    assert "worker.cli" in loaded or "typer" in loaded
    assert not loaded & set(HEAVY)


def test_help_names_the_presets_and_the_defaults(quantmill):
    told = quantmill("quantize", "--help", COLUMNS="400").stdout
    for name in RECOMMENDED:
        assert name in told
    told = quantmill("up", "--help", COLUMNS="400").stdout
    for default in ("127.0.0.1", "8000", ".quantmill"):
        assert default in told


def test_an_unknown_variable_is_named_once_with_its_neighbour(quantmill):
    done = quantmill(
        "version", QUANTMILL_WORKER_SLOT="4", QUANTMILL_ZZZ="1", QUANTMILL_PORT="1", QUANTMILL_DATA="x", QUANTMILL_QQ=""
    )
    assert (done.returncode, done.stdout.strip()) == (0, VERSION)
    assert done.stderr.splitlines() == [
        "warning: unknown environment variable QUANTMILL_WORKER_SLOT, ignored; did you mean QUANTMILL_WORKER_SLOTS?",
        "warning: unknown environment variable QUANTMILL_ZZZ, ignored.",
    ]


@each("name", list(Settings.model_fields))
def test_every_setting_is_known(name):
    assert unknown_variables({f"QUANTMILL_{name.upper()}": "x", "HOME": "/"}) == {}


@pytest.mark.slow
@pytest.mark.long
def test_ctrl_c_on_up_is_silent_with_a_job_running_and_others_waiting(tmp_path, tiny: Tiny):
    """The worker puts the job back, and takes none that comes during the shutdown; nobody needs a traceback of that."""
    folder = tmp_path / "home"
    with Service(folder, QUANTMILL_LEASE_SECOND="1") as service:
        inputs = service.upload(tiny)
        job = service.client.submit(**inputs, config={"evaluation": {"latency_runs": 1000}})
        service.wait_for_state(job.id, "running")
        for _ in range(5):
            service.client.submit(**inputs)
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(PATIENCE_SECONDS) == 0
    for word in ("Traceback", "Reject", "KeyboardInterrupt"):
        assert word not in service.log()
    assert service.log().count("QUANTMILL_LEASE_SECOND,") == 1, "its children warned as well"


@pytest.mark.slow
def test_ctrl_c_before_the_service_is_ready(tmp_path):
    process = start_up(tmp_path / "home", "--port", "0", stderr=subprocess.PIPE)
    assert process.stderr is not None
    lines = []
    wait_for(lambda: lines.append(process.stderr.readline()) or b"child.started" in lines[-1])
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in (0, 130)
    assert b"Traceback" not in errors, errors.decode()


@pytest.mark.slow
@pytest.mark.parametrize("command", [pytest.param("worker", marks=pytest.mark.long), "reconcile"])
def test_ctrl_c_on_a_process_of_its_own(tmp_path, command):
    log = tmp_path / "log.txt"
    (tmp_path / "home").mkdir()
    migrate(f"sqlite:///{tmp_path}/home/service.db")
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.cli", command],
            env=environment(QUANTMILL_DATA_DIR=str(tmp_path / "home")),
            stderr=stream,
            stdout=stream,
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


@pytest.mark.parametrize("command", [["api", "--port", "0"], ["worker"], ["reconcile"]], ids=lambda words: words[0])
def test_no_process_starts_on_an_empty_database(quantmill, tmp_path: Path, command: list[str]) -> None:
    done = quantmill(*command, QUANTMILL_DATA_DIR=str(tmp_path / "home"), code=1)
    assert "error[schema-behind]" in done.stderr
    assert "quantmill migrate" in done.stderr


@pytest.mark.slow
def test_a_process_waits_for_the_migration(tmp_path: Path) -> None:
    variables = environment(QUANTMILL_DATA_DIR=str(tmp_path), QUANTMILL_SCHEMA_WAIT_SECONDS=str(PATIENCE_SECONDS))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "worker.cli", "reconcile", "--once"],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    while "schema.waiting" not in line:
        assert line, "it ended before it waited"
        line = process.stderr.readline()
    migrate(f"sqlite:///{tmp_path}/service.db")
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
