"""Children that are kept alive: restart, backoff, clean stop, and the end of the parent."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.workbench import process_gone, wait_for
from worker import children
from worker.children import Child, ChildKeeper

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable, "-P", "-c",
    "import os, signal, time, worker.children; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', os.environ['GIVEN'], flush=True); time.sleep(600)",
]  # fmt: skip


@pytest.fixture
def keep(tmp_path: Path) -> Iterator:
    keepers: list[ChildKeeper] = []
    output = os.open(tmp_path / "output", os.O_CREAT | os.O_RDWR)

    def start(*commands: list[str]) -> ChildKeeper:
        keeper = ChildKeeper(
            [Child(f"child-{number}", command) for number, command in enumerate(commands)],
            variables={"GIVEN": "yes"},
            output=output,
        )
        keeper.start()
        keepers.append(keeper)
        return keeper

    yield start
    for keeper in keepers:
        keeper.stop(1)
    os.close(output)


def pid_of(child: Child) -> int:
    assert child.process is not None
    return child.process.pid


def watch_until(keeper: ChildKeeper, condition) -> None:
    wait_for(lambda: (keeper.watch(), condition())[1])


def test_a_dead_child_is_restarted(keep):
    keeper = keep(SLEEP, SLEEP)
    first, second = keeper.children
    before, other = pid_of(first), pid_of(second)
    os.kill(before, signal.SIGKILL)
    watch_until(keeper, lambda: first.process is None)
    assert first.exit_codes == [-signal.SIGKILL]
    watch_until(keeper, lambda: first.process is not None)
    assert pid_of(first) != before
    assert pid_of(second) == other


def test_the_wait_doubles_with_every_death_in_a_row(keep, monkeypatch):
    monkeypatch.setattr(children, "FIRST_BACKOFF_SECONDS", 0.05)
    keeper = keep([sys.executable, "-c", "raise SystemExit(3)"])
    (child,) = keeper.children
    for wait in (0.05, 0.1, 0.2):
        begin = time.monotonic()
        watch_until(keeper, lambda: child.process is None)
        # the wait counts from a moment during the look that found the child dead
        assert begin + wait <= child.restart_at <= time.monotonic() + wait
        watch_until(keeper, lambda: child.process is not None)
    assert child.exit_codes == [3, 3, 3]


def test_a_child_that_cannot_be_started_is_tried_again(keep, monkeypatch):
    """A machine out of processes or memory: the others are watched meanwhile."""
    monkeypatch.setattr(children, "FIRST_BACKOFF_SECONDS", 0.05)
    keeper = keep(SLEEP, SLEEP)
    first, second = keeper.children
    refused = []

    def no_fork(*_, **__):
        refused.append(first.restart_at)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as full:
        full.setattr(children.subprocess, "Popen", no_fork)
        os.kill(pid_of(first), signal.SIGKILL)
        watch_until(keeper, lambda: len(refused) == 3)
        os.kill(pid_of(second), signal.SIGKILL)
        watch_until(keeper, lambda: second.exit_codes)
    assert (first.process, first.exit_codes, first.deaths) == (None, [-signal.SIGKILL], len(refused) + 1)
    assert refused == sorted(set(refused)), "each start was put off anew"
    watch_until(keeper, lambda: first.process is not None and second.process is not None)


def test_stop_ends_all_in_time_even_a_stubborn_one(keep, tmp_path):
    keeper = keep(SLEEP, STUBBORN)
    wait_for(lambda: "up yes" in (tmp_path / "output").read_text(), message="they know no variables or packages")
    pids = [pid_of(child) for child in keeper.children]
    keeper.stop(1.0)
    assert all(process_gone(pid) for pid in pids)
    keeper.watch()
    assert all(child.process is None or child.process.poll() is None for child in keeper.children)


def test_children_end_when_the_parent_is_killed(tmp_path):
    program = tmp_path / "parent.py"
    program.write_text(f"""
import time
from worker.children import start_child
print(start_child({SLEEP}, variables={{}}).pid, flush=True)
time.sleep(600)
""")
    environment = children.child_environment({})
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: process_gone(pid))
