"""``quantmill up`` as a real process tree, and ways to look at it and to hurt it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from service.client import Client
from service.contracts.dataset import PreprocessingSpec
from service.jobs.schemas import JobOut
from tests.support import leaks
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.workbench import Workbench, is_spare, process_gone, wait_for
from worker import launcher

ROOT = Path(__file__).parents[2]
INSPECTOR = "cli worker --queues inspect"
# Periods that make faults visible within a test's patience.
QUICK = {
    "QUANTMILL_LEASE_SECONDS": "6", "QUANTMILL_RENEW_SECONDS": "0.5", "QUANTMILL_RECONCILE_SECONDS": "0.2",
    "QUANTMILL_REDISPATCH_SECONDS": "2", "QUANTMILL_THREADS": "1",
}  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "worker.cli", *arguments]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without any setting of ours, and with ``variables``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUANTMILL_")}
    return {**kept, "PYTHONPATH": str(ROOT), "QUANTMILL_OPEN": "true", **variables}


def start_up(folder: Path, *options: str, stderr: int, **variables: str) -> subprocess.Popen[bytes]:
    """``quantmill up`` on ``folder``; it prints where it is on standard output, and ends with this process."""
    spec = json.dumps({"parent": os.getpid(), "death_signal": signal.SIGTERM})
    up = command("up", "--data-dir", str(folder), *options)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", launcher.__file__, spec, *up],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment(**variables),
        start_new_session=True,
    )


@contextlib.contextmanager
def worker(
    bench: Workbench, *options: str, log: str = "worker.log", **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """``quantmill worker`` on a workbench, once it is ready; its log lies in the bench's folder."""
    places = {
        "QUANTMILL_DATA_DIR": str(bench.settings.data_dir), "QUANTMILL_BROKER_URL": bench.settings.broker_url
    }  # fmt: skip
    path = bench.folder / log
    with path.open("wb") as stream:
        process = subprocess.Popen(
            command("worker", *options),
            env=environment(**{**QUICK, **places, **variables}),
            stderr=stream,
            stdout=stream,
        )
    try:
        wait_for(lambda: b"ready" in path.read_bytes(), message="the worker did not start")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_SECONDS)


def processes_of(folder: Path) -> dict[int, str]:
    """Every living process that belongs to the service on ``folder``, with its command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or process_gone(int(entry.name)):
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            variables = (entry / "environ").read_bytes()
            working = str((entry / "cwd").readlink())
        except OSError:
            continue  # ended meanwhile
        if str(folder) in command or f"={folder}\0".encode() in variables or working.startswith(f"{folder}/"):
            found[int(entry.name)] = command
    found.pop(os.getpid(), None)
    return found


class Service:
    """A running service."""

    def __init__(self, folder: Path, **variables: str) -> None:
        leaks.remember_variables(variables)
        self.folder = folder
        self.log_file = folder.with_name(folder.name + ".log")
        with self.log_file.open("ab") as log:
            self.process = start_up(folder, "--port", "0", stderr=log.fileno(), **{**QUICK, **variables})
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        self.url = next((word for word in line.split() if word.startswith("http://")), "http://nowhere")
        self.client = Client(self.url, variables.get("QUANTMILL_API_KEY"), patience_seconds=PATIENCE_SECONDS)
        if "http://" not in line:
            self.stop()
            raise AssertionError(self.log())

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def pids(self, word: str) -> list[int]:
        """Processes whose command line holds ``word``: "cli api", "cli worker", "cli reconcile", "worker.runner".

        The worker that validates uploads counts only where ``word`` is INSPECTOR; runners that wait for a job, never.
        A process that is still being launched does not count: it may not be bound to its parent yet.
        """
        found = processes_of(self.folder).items()
        ours = [(pid, command) for pid, command in found if word in command and "launcher.py" not in command]
        return [pid for pid, command in ours if (word == INSPECTOR or INSPECTOR not in command) and not is_spare(pid)]

    def one(self, word: str) -> int:
        (pid,) = wait_for(lambda: self.pids(word), message=f"no {word}")
        return pid

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(pid, number)

    def stop(self, timeout_seconds: float = PATIENCE_SECONDS) -> int:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout_seconds)
        finally:
            # Nothing may outlive a test, also not one that failed.
            for pid in processes_of(self.folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(PATIENCE_SECONDS)
            if self.process.stdout is not None:
                self.process.stdout.close()
        leaks.refuse(leaks.files_of(self.folder))
        leaks.refuse([(str(self.log_file), self.log_file.read_bytes())])
        return code

    def upload(self, tiny: Tiny, preprocessing: PreprocessingSpec | None = None) -> dict[str, str]:
        """Upload model and data of ``tiny``; gives the ids as submit takes them."""
        model = self.client.push_model(tiny.model)
        calibration = self.client.push_dataset(tiny.calibration, preprocessing)
        evaluation = self.client.push_dataset(tiny.evaluation, preprocessing)
        return {
            "model": self.client.wait_ready(model, timeout_seconds=PATIENCE_SECONDS).id,
            "calibration": self.client.wait_ready(calibration, timeout_seconds=PATIENCE_SECONDS).id,
            "evaluation": self.client.wait_ready(evaluation, timeout_seconds=PATIENCE_SECONDS).id,
        }

    def wait_for_state(self, job_id: str, *states: str, seconds: float = PATIENCE_SECONDS) -> JobOut:
        """The job once it is in one of ``states``."""

        def look() -> JobOut | None:
            job = self.client.job(job_id)
            return job if job.state in states else None

        try:
            return wait_for(look, seconds=seconds, message=f"job {job_id} never became {states}")
        except AssertionError as error:
            error.add_note(self.log()[-6000:])
            raise
