"""Processes refuse to start on a database that was not migrated, or wait for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from service.db import migrate
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import environment


@pytest.mark.parametrize("command", [["api", "--port", "0"], ["worker"], ["reconcile"]], ids=lambda words: words[0])
def test_no_process_starts_on_an_empty_database(quantmill_process, tmp_path: Path, command: list[str]) -> None:
    done = quantmill_process(*command, QUANTMILL_DATA_DIR=str(tmp_path / "home"))
    assert done.returncode == 1
    assert "error[schema-behind]" in done.stderr
    assert "quantmill migrate" in done.stderr
    assert "Traceback" not in done.stderr


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
