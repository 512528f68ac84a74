"""What a worker knows stays with it: its environment, its memory, and what it says of the controls of its runners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.settings import Settings
from tests.security.conftest import require_controls
from tests.security.older_kernel import numbers
from tests.security.taken_over import OLDER_KERNEL
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import ROOT, environment
from tests.worker.workbench import Workbench, wait_for
from worker.confinement.controls import CONTROLS, LANDLOCK, find_controls

pytestmark = pytest.mark.slow  # starts processes

KEY = "qm-a-key-that-nobody-may-see"
NOBODY = 65534


def command(bench: Workbench, *arguments: str, lacking: tuple[str, ...] = ()) -> list[str]:
    ours = [sys.executable, "-P", "-m", "worker.cli", *arguments, "--data-dir", str(bench.settings.data_dir)]
    return [sys.executable, str(OLDER_KERNEL), numbers(*lacking), *ours]


@contextmanager
def worker(bench: Workbench, *, lacking: tuple[str, ...] = (), **variables: str) -> Iterator[tuple[int, Path]]:
    """A worker that has said how its runners are held; its pid and its log."""
    log = bench.folder / "worker.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command(bench, "worker", lacking=lacking), env=environment(**variables), stdout=stream, stderr=stream
        )
    try:
        wait_for(lambda: "worker.sandbox " in log.read_text(), message="it never said how its runners are held")
        yield process.pid, log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)


def test_keys_and_addresses_leave_the_environment_of_a_worker_that_says_which_controls_hold(bench: Workbench) -> None:
    broker = "filesystem:///that-nobody-may-see"
    with worker(bench, QUANTMILL_API_KEY=KEY, QUANTMILL_BROKER_URL=broker, OTHER="stays") as (pid, log):
        shown = Path(f"/proc/{pid}/environ").read_bytes()
        assert Path(f"/proc/{pid}/environ").stat().st_uid == 0, "it may be traced by its user"
        assert KEY not in log.read_text()
        (line,) = [line for line in log.read_text().splitlines() if "worker.sandbox " in line]
    assert line.endswith(f"mode=auto held={','.join(find_controls().held) or 'none'}")
    assert b"OTHER=stays\0" in shown
    assert KEY.encode() not in shown
    assert broker.encode() not in shown


def test_every_setting_with_a_secret_is_among_those_that_go() -> None:
    names = set(Settings.secret_variables())
    assert {"QUANTMILL_API_KEY", "QUANTMILL_DATABASE_URL", "QUANTMILL_BROKER_URL"} <= names
    assert not names & {"QUANTMILL_DATA_DIR", "QUANTMILL_PORT"}


WITH_SECRET = """
import sys, time
sys.path.insert(0, sys.argv[1])
from process import forget_variables, hide_process
if sys.argv[2] == "hide":
    print(hide_process(), flush=True)
elif sys.argv[2] == "forget":
    forget_variables(["KEY"])
print("ready", flush=True)
time.sleep(600)
"""
THIEF = "import sys; print(open(f'/proc/{sys.argv[1]}/environ').read())"


@pytest.mark.parametrize(("how", "sees"), [("nothing", True), ("hide", False), ("forget", False)])
def test_a_process_of_the_same_user_reads_no_key(python: str, how: str, sees: bool) -> None:
    folder = Path("/tmp") / f"quantmill-{os.getpid()}-{how}"
    folder.mkdir(mode=0o755)
    try:
        (folder / "process.py").write_text((ROOT / "service" / "process.py").read_text())
        (folder / "holder.py").write_text(WITH_SECRET)
        with subprocess.Popen(
            [python, "-B", str(folder / "holder.py"), str(folder), how],
            env={"KEY": KEY, "OTHER": "stays"}, stdout=subprocess.PIPE, text=True, user=NOBODY, group=NOBODY,
            extra_groups=[],
        ) as holder:  # fmt: skip
            assert holder.stdout is not None
            wait_for(lambda: holder.stdout.readline() == "ready\n")  # type: ignore[union-attr]
            thief = subprocess.run(
                [python, "-c", THIEF, str(holder.pid)], capture_output=True, text=True, user=NOBODY, group=NOBODY,
                extra_groups=[], check=False,
            )  # fmt: skip
            holder.kill()
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    assert (KEY in thief.stdout) is sees
    assert ("PermissionError" in thief.stderr) is (how == "hide")
    assert ("OTHER=stays" in thief.stdout) is (how != "hide")


@pytest.mark.parametrize("lacking", ["landlock", pytest.param("seccomp", marks=pytest.mark.long)])
def test_a_worker_that_must_have_all_does_not_start_without(bench: Workbench, lacking: str) -> None:
    done = subprocess.run(
        command(bench, "worker", lacking=(lacking,)), env=environment(QUANTMILL_SANDBOX="require"),
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "sandbox-incomplete" in done.stderr
    assert lacking in done.stderr


def test_a_worker_that_must_have_all_starts_without_namespaces(bench: Workbench) -> None:
    require_controls(*(control.name for control in CONTROLS if control.required))
    with worker(bench, lacking=("unshare",), QUANTMILL_SANDBOX="require") as (_, log):
        assert "worker.sandbox_missing control=namespaces" in log.read_text()


@pytest.mark.parametrize(
    ("mode", "word", "code"), [pytest.param("auto", "--", 0, marks=pytest.mark.long), ("require", "BAD", 1)]
)
def test_the_doctor_tells_what_holds_and_what_does_not(bench: Workbench, mode: str, word: str, code: int) -> None:
    done = subprocess.run(
        command(bench, "doctor", lacking=("landlock",)), env=environment(QUANTMILL_SANDBOX=mode, COLUMNS="400"),
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    found = {words[1]: words[0] for line in done.stdout.splitlines() if len(words := line.split()) > 1}
    assert (found[LANDLOCK.name], found["capabilities"], found["runner"]) == (word, "ok", "ok")
    assert done.returncode == code


@pytest.mark.long
def test_without_a_sandbox_nothing_holds_and_that_is_told(bench: Workbench) -> None:
    with worker(bench, QUANTMILL_SANDBOX="off") as (_, log):
        assert "worker.sandbox mode=off held=none" in log.read_text()
        assert all(f"control={control.name}: QUANTMILL_SANDBOX is off" in log.read_text() for control in CONTROLS)
