"""The end of an attempt: what meets its publication, a stop in any stage, and what is not charged."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from service.db import db_now
from service.failpoints import VARIABLE
from service.jobs import transitions
from service.storage import FileStore
from service.tables import Job
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import (
    QUICK,
    RUNNER_HEAD,
    WRITE_PID,
    Workbench,
    finish,
    process_gone,
    run_in_thread,
    runner_pid,
    wait_for,
)
from worker.materials import Materials

ROOT = Path(__file__).parents[2]
# Writes a file that is published, then succeeds.
PUBLISHES = """
import hashlib
data = b"thumbnails"
with open(os.path.join(task["output_dir"], "thumbnails.png"), "wb") as stream: stream.write(data)
say(line="dataset", summary=dict(format="npz", arrays={}, samples=1, size_bytes=1, sha256="0" * 64, thumbnails=dict(
    file="thumbnails.png", sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))))
sys.exit(0)
"""
ATTEMPT = """
import sys
from service.db import Database
from service.settings import Settings
from service.storage import FileStore
from worker.sandbox import Sandbox
from worker.supervisor import Supervisor
settings = Settings(data_dir=sys.argv[1], threads=1, lease_seconds=6, renew_seconds=0.5)
sandbox = Sandbox((sys.executable, "-P", sys.argv[2]))
supervisor = Supervisor(settings, Database(settings.database_url), FileStore(settings.storage_dir), sandbox=sandbox)
print("claimed", supervisor.run(sys.argv[3]))
"""


def start_attempt(bench: Workbench, job_id: str, failpoint: str) -> subprocess.Popen[bytes]:
    """One attempt in a process of its own that meets ``failpoint``."""
    runner, attempt = bench.folder / "publishing.py", bench.folder / "attempt.py"
    runner.write_text(RUNNER_HEAD + textwrap.dedent(PUBLISHES))
    attempt.write_text(ATTEMPT)
    return subprocess.Popen(
        [sys.executable, "-P", str(attempt), str(bench.settings.data_dir), str(runner), job_id],
        env={**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: failpoint},
    )


STAGES = (
    "after_claim", "after_inputs", "after_runner_start", "after_runner_end", "before_artifact_fsync",
    "after_artifact_rename",
)  # fmt: skip


@pytest.mark.parametrize("place", STAGES)
def test_a_cancel_in_any_stage_ends_the_job_once(bench, place):
    hold = bench.folder / "hold"
    hold.touch()
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset())
    process = start_attempt(bench, job_id, f"{place}=wait:{hold}")
    try:
        wait_for(lambda: bench.job(job_id).state == "running")
        bench.cancel(job_id)
        hold.unlink()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert bench.job(job_id).state == "canceled"
    names = [event.data["name"] for event in bench.events(job_id, "state")]
    assert names == ["job.queued", "job.claimed", "job.cancel_requested", "job.canceled"]
    assert bench.scratch_folders() == []


def test_a_cancel_that_meets_the_commit_waits_for_it_and_comes_too_late(bench):
    hold = bench.folder / "hold"
    hold.touch()
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset())
    process = start_attempt(bench, job_id, f"before_succeed_commit=wait:{hold}")
    try:
        # By then all is stored, and the transaction that says so is open or about to be: one of the two is first.
        wait_for(lambda: len(list(bench.store.blobs.glob("*/*"))) == 2)
        timer = threading.Timer(1.0, hold.unlink)
        timer.start()
        bench.cancel(job_id)
        timer.join()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    names = [event.data["name"] for event in bench.events(job_id, "state")]
    assert len({"job.succeeded", "job.canceled"} & set(names)) == 1
    assert names[-1] == f"job.{bench.job(job_id).state}"


@pytest.mark.parametrize("place", [*STAGES, "before_succeed_commit", "after_succeed_commit"])
def test_a_worker_that_is_killed_in_any_stage_loses_no_job(bench, place):
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset())
    process = start_attempt(bench, job_id, f"{place}=kill")
    assert process.wait(PATIENCE_SECONDS) == -9
    if place == "after_succeed_commit":
        assert bench.job(job_id).state == "succeeded"
        return
    assert bench.job(job_id).state == "running"
    expire(bench, job_id)
    assert bench.supervisor(PUBLISHES).run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert [event.data["name"] for event in bench.events(job_id, "state")].count("job.succeeded") == 1


def expire(bench: Workbench, job_id: str) -> None:
    """Its worker was silent for longer than its lease; the pause before the next attempt is over, too."""
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_until=db_now() - 1))
        assert [job.id for job in transitions.expire_leases(session)] == [job_id]
        session.execute(update(Job).where(Job.id == job_id).values(not_before=db_now()))


def test_an_inspection_that_only_lacked_time_is_never_the_users_fault(bench):
    job_id = bench.submit()
    for attempt in range(1, 9):
        with bench.database.write() as session:
            assert transitions.claim(session, job_id, worker_id="dead", lease_seconds=60) is not None
        expire(bench, job_id)
        job = bench.job(job_id)
        assert (job.state, job.attempt) == ("queued", attempt)
        assert job.attempt - job.interruptions < job.max_attempts
    assert bench.model(bench.job(job_id).model_id).status == "validating"
    bench.supervisor("succeed()").run(job_id)
    assert bench.model(bench.job(job_id).model_id).status == "ready"


def test_a_stop_while_inputs_are_copied_puts_the_job_back_at_once(bench, monkeypatch):
    job_id = bench.submit()
    stop, laying = threading.Event(), threading.Event()
    real = Materials._copy

    def endless(self, *arguments):
        laying.set()
        while True:
            real(self, *arguments)

    monkeypatch.setattr(Materials, "_copy", endless)
    thread = run_in_thread(bench.supervisor("succeed()", stopping=stop.is_set), job_id)
    assert laying.wait(PATIENCE_SECONDS)
    stop.set()
    finish(thread)
    assert_put_back(bench, job_id)


def test_a_stop_while_results_are_stored_gives_them_time(bench, monkeypatch):
    job_id = bench.submit()
    stop, storing = threading.Event(), threading.Event()

    def slow(self):
        storing.set()
        stop.wait()

    supervisor = bench.supervisor("succeed()", stopping=stop.is_set)
    monkeypatch.setattr(FileStore, "check_there", slow)
    thread = run_in_thread(supervisor, job_id)
    assert storing.wait(PATIENCE_SECONDS)
    stop.set()
    finish(thread)
    assert bench.job(job_id).state == "succeeded", "all the work was done"


def test_a_stop_while_storing_does_not_end_puts_the_job_back(bench, monkeypatch):
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset())
    stop, storing = threading.Event(), threading.Event()

    def endless(self, path, *, check):
        storing.set()
        while True:
            check()

    supervisor = bench.supervisor(PUBLISHES, stopping=stop.is_set)
    monkeypatch.setattr(FileStore, "put_file", endless)
    thread = run_in_thread(supervisor, job_id)
    assert storing.wait(PATIENCE_SECONDS)
    stop.set()
    finish(thread)
    assert_put_back(bench, job_id)


def test_stops_without_number_cost_a_job_nothing(bench):
    job_id = bench.submit()
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(13))\n" + WRITE_PID + "while True: time.sleep(0.02)\n"
    for _ in range(7):
        (bench.folder / "pid").unlink(missing_ok=True)
        stop = threading.Event()
        thread = run_in_thread(bench.supervisor(code, stopping=stop.is_set), job_id)
        pid = runner_pid(bench)
        stop.set()
        finish(thread)
        assert process_gone(pid)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("queued", 7, 7)


def test_a_store_that_cannot_be_seen_at_the_commit_is_waited_for_with_the_result_in_hand(bench):
    hold, aside = bench.folder / "hold", bench.folder / "aside"
    hold.touch()
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset())
    process = start_attempt(bench, job_id, f"after_artifact_rename=wait:{hold}")
    try:
        wait_for(lambda: len(list(bench.store.blobs.glob("*/*"))) == 2)
        bench.store.blobs.rename(aside)
        hold.unlink()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.0)
        assert bench.job(job_id).state == "running"
        aside.rename(bench.store.blobs)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert (bench.job(job_id).state, bench.job(job_id).attempt) == ("succeeded", 1)


BRIEF = replace(QUICK, lease=1.0, frozen=0.5, renew=0.2, again=0.05)


@pytest.fixture
def refusing(bench, monkeypatch):
    """A published result that cannot be committed for the store: its thread, and whether the store was asked."""
    asked = threading.Event()

    def refuse(self, sha256):
        asked.set()
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(FileStore, "ensure", refuse)
    return asked


def test_a_store_that_stays_away_at_the_commit_puts_the_job_back(bench, refusing):
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset())
    bench.supervisor(PUBLISHES, timing=BRIEF).run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("queued", 1, 1)
    assert job.waiting["code"] == "storage-away"


def test_a_stop_while_the_store_is_away_at_the_commit_puts_the_job_back(bench, refusing):
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset())
    stop = threading.Event()
    thread = run_in_thread(bench.supervisor(PUBLISHES, stopping=stop.is_set), job_id)
    assert refusing.wait(PATIENCE_SECONDS)
    stop.set()
    finish(thread)
    assert_put_back(bench, job_id)


def test_a_cancel_while_the_store_is_away_at_the_commit_ends_the_job(bench, refusing):
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset())
    thread = run_in_thread(bench.supervisor(PUBLISHES), job_id)
    assert refusing.wait(PATIENCE_SECONDS)
    bench.cancel(job_id)
    finish(thread)
    assert bench.job(job_id).state == "canceled"


def assert_put_back(bench: Workbench, job_id: str) -> None:
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("queued", 1, 1)
    assert job.not_before <= job.updated_at
    assert job.waiting["code"] == "worker-shutdown"
    assert bench.scratch_folders() == []
