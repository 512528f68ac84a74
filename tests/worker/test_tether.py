"""A runner whose supervisor fell silent: it knows its lease's end, and ends itself."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.jobs import transitions
from service.jobs.dispatch import Dispatcher
from service.repository import now_seconds
from service.tables import Artifact
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import QUICK, environment, processes_of
from tests.worker.test_worker_process import command
from tests.worker.workbench import (
    WRITE_PID,
    Workbench,
    database_away,
    finish,
    process_gone,
    process_state,
    run_in_thread,
    runner_pid,
    wait_for,
)
from worker.lease import Timing
from worker.tether import _LOOK_SECONDS, GRACE_SECONDS, Tether, boot_seconds, lease_line

# As the real runner begins.
TETHERED = "from worker.runner import end_group\nfrom worker.tether import Tether\nTether(0, end_group).start()\n"


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pipe() -> tuple[int, int]:
    return os.pipe()  # left open: the thread goes on reading


def tether(descriptor: int, clock: Clock) -> threading.Event:
    cut = threading.Event()
    Tether(descriptor, cut.set, clock=clock).start()
    return cut


def test_the_runner_goes_within_ten_seconds_of_its_lease() -> None:
    assert GRACE_SECONDS + 2 * _LOOK_SECONDS < 10


def test_the_end_of_the_input_cuts(pipe):
    cut = tether(pipe[0], Clock())
    os.close(pipe[1])
    assert cut.wait(PATIENCE_SECONDS)


def test_the_end_of_the_lease_cuts_after_its_grace(pipe):
    clock = Clock()
    os.write(pipe[1], lease_line(110.0))
    cut = tether(pipe[0], clock)
    clock.now = 110.0 + GRACE_SECONDS
    assert not cut.wait(2.5 * _LOOK_SECONDS)
    clock.now += 0.1
    assert cut.wait(PATIENCE_SECONDS)


def test_a_new_end_counts_even_if_it_is_seen_late(pipe):
    """The runner was stopped beyond its lease; the new end was written before it was let go on."""
    clock = Clock()
    os.write(pipe[1], lease_line(110.0))
    os.write(pipe[1], lease_line(210.0))
    clock.now = 200.0
    cut = tether(pipe[0], clock)
    assert not cut.wait(2.5 * _LOOK_SECONDS)
    os.write(pipe[1], lease_line(220.0)[:3])  # half a line is none yet
    clock.now = 210.0 + GRACE_SECONDS + 1
    assert cut.wait(PATIENCE_SECONDS)


def test_without_any_line_there_is_no_end(pipe):
    clock = Clock()
    clock.now = 1e12
    assert not tether(pipe[0], clock).wait(2.5 * _LOOK_SECONDS)


def test_the_clock_is_that_of_all_processes():
    there = subprocess.run(
        [*command()[:1], "-c", "from worker.tether import boot_seconds; print(boot_seconds())"],
        env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert 0 <= boot_seconds() - float(there.stdout) < PATIENCE_SECONDS


def test_a_runner_that_was_stopped_by_its_supervisor_goes_on_with_the_new_lease(bench):
    """It stood still for longer than its own grace: it must not end itself for that."""
    job_id = bench.submit()
    short = Timing(lease=1.0, renew=0.2, look=0.1, again=0.1)
    code = TETHERED + WRITE_PID + "while not os.path.exists(os.environ['BENCH'] + '/go'): time.sleep(0.02)\nsucceed()\n"
    thread = run_in_thread(bench.supervisor(code, timing=short), job_id)
    pid = runner_pid(bench)
    with database_away(bench):
        wait_for(lambda: process_state(pid) == "T")
        threading.Event().wait(GRACE_SECONDS + 2)
        assert process_state(pid) == "T"
    wait_for(lambda: process_state(pid) != "T")
    (bench.folder / "go").touch()
    finish(thread)
    assert (bench.job(job_id).state, bench.job(job_id).attempt) == ("succeeded", 1)


@contextmanager
def worker(bench: Workbench, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with leases of 2 s, whose log is ``name``."""
    variables = {**QUICK, "QUANTMILL_LEASE_SECONDS": "2", "QUANTMILL_DATA_DIR": str(bench.settings.data_dir)}
    log = bench.folder / name
    with log.open("wb") as stream:
        process = subprocess.Popen(command("worker"), env=environment(**variables), stderr=stream, stdout=stream)
    try:
        wait_for(lambda: b"ready" in log.read_bytes(), message="the worker did not start")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_SECONDS)


def runners(bench: Workbench) -> list[int]:
    found = processes_of(bench.settings.data_dir).items()
    return [pid for pid, words in found if "worker.runner" in words and "launcher.py" not in words]


def test_a_stopped_worker_leaves_no_runner_behind_and_publishes_nothing_twice(bench, tiny):
    job_id = bench.submit(
        kind="quantize",
        model_id=bench.add_model({"net.onnx": tiny.model.read_bytes()}),
        calibration_dataset_id=bench.add_dataset(tiny.calibration.read_bytes()),
        evaluation_dataset_id=bench.add_dataset(tiny.evaluation.read_bytes()),
        config={"algorithms": [{"method": "adaround", "solver": "gradient", "num_iterations": 8000}]},
    )
    dispatcher = Dispatcher(bench.settings)
    with worker(bench, "stopped.log") as stopped:
        dispatcher.publish(job_id, "cpu")
        (runner,) = wait_for(lambda: runners(bench), message="no runner")
        wait_for(lambda: bench.job(job_id).stage, message="it does not work yet")
        stopped.send_signal(signal.SIGSTOP)
        wait_for(lambda: process_gone(runner), message="the runner outlived its lease")
        assert bench.job(job_id).state == "running", "it ended by itself, before it was done"
        with bench.database.write() as session:
            assert [job.id for job in transitions.expire_leases(session)] == [job_id]
        with worker(bench, "second.log"):
            wait_for(lambda: bench.job(job_id).not_before.timestamp() <= now(bench))
            dispatcher.publish(job_id, "cpu")
            wait_for(lambda: bench.job(job_id).state == "succeeded", message="no other attempt")
            stopped.send_signal(signal.SIGCONT)
            log = bench.folder / "stopped.log"
            wait_for(lambda: b"job.fenced" in log.read_bytes(), message="it was not fenced off")
    dispatcher.close()
    job = bench.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 2)
    names = [event.data["name"] for event in bench.events(job_id, "state")]
    assert names.count("job.succeeded") == 1
    with bench.database.read() as session:
        kinds = [artifact.kind for artifact in session.query(Artifact).filter_by(job_id=job_id)]
    assert len(kinds) == len(set(kinds))


def now(bench: Workbench) -> float:
    """The database's clock."""
    with bench.database.read() as session:
        return now_seconds(session)
