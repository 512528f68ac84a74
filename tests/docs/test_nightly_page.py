"""The page that leads from nothing to a nightly job does so, as it is written."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, SERVE, fenced, make_workplace, run_block, served
from tests.support import services
from tests.worker.workbench import wait_for

PAGE = ROOT / "docs" / "how-to" / "nightly.md"
PORT = "9000"


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def receivers(folder: Path) -> list[int]:
    """What the page has left running in its folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder and b"receiver.py" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # ended meanwhile
    return found


@pytest.mark.slow
@pytest.mark.long
def test_from_nothing_to_a_promoted_version_and_a_verified_webhook(tmp_path: Path) -> None:
    services.require(services.tools_trouble())
    make_workplace(tmp_path)
    up, nightly = (block.replace(PORT, port) for port in [free_port()] for block in fenced(PAGE, "bash"))
    assert SERVE in up
    with served(up, tmp_path) as url:
        try:
            done = run_block(nightly, tmp_path, QUANTMILL_SERVER=url)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr
            assert "prod" in done.stdout.split("prod moved")[1], "the alias is not there"
            received = tmp_path / "received.txt"
            wait_for(lambda: "verified: schedule.passed prod" in received.read_text(), message=received.read_text())
            assert received.read_text().count("schedule.passed") == 1, "an event came twice"
        finally:
            for pid in receivers(tmp_path):
                os.kill(pid, signal.SIGKILL)
