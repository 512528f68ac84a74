"""The end of an attempt: what meets its publication, a stop in any stage, and what is not charged."""

from __future__ import annotations

import errno
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from service import failpoints
from service.db import Database, db_now
from service.jobs import transitions
from service.storage import FileStore
from service.tables import Job
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import PUBLISHES, QUICK, Workbench, finish, run_in_thread, wait_for
from worker.materials import Materials


def killed(bench: Workbench, job_id: str, place: str) -> int:
    """How a process ends whose attempt of the job is killed at a failpoint."""
    pid = os.fork()
    if pid == 0:
        try:
            failpoints._armed = failpoints._parsed(f"{place}=kill")
            bench.database = Database(bench.settings.database_url)
            bench.supervisor(PUBLISHES).run(job_id)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Hold:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path, place: str) -> None:
        self.file, self._reached = file, file.with_name(f"{file.name}.reached")
        file.touch()
        monkeypatch.setattr(failpoints, "_armed", failpoints._parsed(f"{place}=wait:{file}"))

    def wait(self) -> None:
        wait_for(self._reached.exists, message="nobody is held")

    def end(self) -> None:
        self.file.unlink()


STAGES = (
    "after_claim", "after_inputs", "after_runner_start", "after_runner_end", "before_artifact_fsync",
    "after_artifact_rename", "before_succeed_commit", "after_succeed_commit",
)  # fmt: skip


@pytest.mark.parametrize("place", STAGES[:6])
def test_a_cancel_in_any_stage_ends_the_job_once(bench, monkeypatch, place):
    job_id = bench.inspect_dataset()
    hold = Hold(monkeypatch, bench.folder / "hold", place)
    thread = run_in_thread(bench.supervisor(PUBLISHES), job_id)
    hold.wait()
    bench.cancel(job_id)
    hold.end()
    finish(thread)
    assert bench.names(job_id) == ["job.queued", "job.claimed", "job.cancel_requested", "job.canceled"]
    assert bench.job(job_id).state == "canceled"
    assert bench.scratch_folders() == []


def test_a_cancel_that_meets_the_commit_waits_for_it_and_comes_too_late(bench, monkeypatch):
    job_id = bench.inspect_dataset()
    hold = Hold(monkeypatch, bench.folder / "hold", "before_succeed_commit")
    thread = run_in_thread(bench.supervisor(PUBLISHES), job_id)
    hold.wait()
    timer = threading.Timer(0.3, hold.end)
    timer.start()
    bench.cancel(job_id)
    finish(timer)
    finish(thread)
    assert bench.names(job_id) == ["job.queued", "job.claimed", "job.succeeded"]
    assert bench.job(job_id).state == "succeeded"


@pytest.mark.parametrize("place", STAGES)
def test_a_worker_that_is_killed_in_any_stage_loses_no_job(bench, place):
    job_id = bench.inspect_dataset()
    assert killed(bench, job_id, place) == -signal.SIGKILL
    if place == "after_succeed_commit":
        assert bench.job(job_id).state == "succeeded"
        return
    assert bench.job(job_id).state == "running"
    expire(bench, job_id)
    assert bench.supervisor(PUBLISHES).run(job_id)
    assert bench.standing(job_id)[:2] == ("succeeded", 2)
    assert bench.names(job_id).count("job.succeeded") == 1


def expire(bench: Workbench, job_id: str) -> None:
    """Its worker was silent for longer than its lease; the pause before the next attempt is over, too."""
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_until=db_now() - 1))
        assert [job.id for job in transitions.expire_leases(session)] == [job_id]
        session.execute(update(Job).where(Job.id == job_id).values(not_before=db_now()))


def test_an_inspection_that_only_lacked_time_is_never_the_users_fault(bench):
    job_id = bench.submit()
    for attempts in range(1, 9):
        with bench.database.write() as session:
            assert transitions.claim(session, job_id, worker_id="dead", lease_seconds=60) is not None
        expire(bench, job_id)
        job = bench.job(job_id)
        assert (job.state, job.attempt) == ("queued", attempts)
        assert job.attempt - job.interruptions < job.max_attempts
    assert bench.model(bench.job(job_id).model_id).status == "validating"
    bench.supervisor("succeed()").run(job_id)
    assert bench.model(bench.job(job_id).model_id).status == "ready"


def put_back(bench: Workbench, job_id: str) -> bool:
    """By a stop: uncharged, at once, and told."""
    job = bench.job(job_id)
    assert bench.scratch_folders() == []
    told = (bench.standing(job_id), job.waiting and job.waiting["code"])
    return told == (("queued", 1, 1), "worker-shutdown") and job.not_before <= job.updated_at


@pytest.mark.parametrize("end", ["stop", "cancel"])
def test_a_stop_or_a_cancel_ends_a_long_copy(bench, monkeypatch, end):
    job_id = bench.submit(model_id=bench.add_model({"net.onnx": b"x" * 4_000_000}))
    stop, laying = threading.Event(), threading.Event()
    real = Materials._copy

    def endless(self, *arguments):
        laying.set()
        while True:
            real(self, *arguments)

    monkeypatch.setattr(Materials, "_copy", endless)
    thread = run_in_thread(bench.supervisor("succeed()", stopping=stop.is_set), job_id)
    assert laying.wait(PATIENCE_SECONDS)
    stop.set() if end == "stop" else bench.cancel(job_id)
    finish(thread)
    assert put_back(bench, job_id) if end == "stop" else bench.job(job_id).state == "canceled"
    assert bench.scratch_folders() == []


def test_a_stop_while_results_are_stored_gives_them_time(bench, monkeypatch):
    stop, storing = threading.Event(), threading.Event()

    def slow(self):
        storing.set()
        stop.wait()

    supervisor, job_id = bench.supervisor("succeed()", stopping=stop.is_set), bench.submit()
    monkeypatch.setattr(FileStore, "check_there", slow)
    thread = run_in_thread(supervisor, job_id)
    assert storing.wait(PATIENCE_SECONDS)
    stop.set()
    finish(thread)
    assert bench.job(job_id).state == "succeeded", "all the work was done"


def test_a_stop_while_storing_does_not_end_puts_the_job_back(bench, monkeypatch):
    stop, storing = threading.Event(), threading.Event()

    def endless(self, path, *, check):
        storing.set()
        while True:
            check()

    job_id, short = bench.inspect_dataset(), replace(QUICK, shutdown_grace=0.2)
    supervisor = bench.supervisor(PUBLISHES, stopping=stop.is_set, timing=short)
    monkeypatch.setattr(FileStore, "put_file", endless)
    thread = run_in_thread(supervisor, job_id)
    assert storing.wait(PATIENCE_SECONDS)
    stop.set()
    finish(thread)
    assert put_back(bench, job_id)


def test_a_store_that_cannot_be_seen_at_the_commit_is_waited_for_with_the_result_in_hand(bench, monkeypatch, caplog):
    job_id = bench.inspect_dataset()
    hold = Hold(monkeypatch, bench.folder / "hold", "after_artifact_rename")
    thread = run_in_thread(bench.supervisor(PUBLISHES), job_id)
    hold.wait()
    bench.store.blobs.rename(bench.folder / "aside")
    hold.end()
    wait_for(lambda: "job.not_concluded" in caplog.text)
    assert bench.job(job_id).state == "running"
    (bench.folder / "aside").rename(bench.store.blobs)
    finish(thread)
    assert bench.standing(job_id) == ("succeeded", 1, 0)


AWAY = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
# As PostgreSQL says it, whose leases can still be renewed: they need no new pages.
FULL = OperationalError("INSERT INTO secrets", {}, OSError("could not extend file: No space left on device"))


def refuse(monkeypatch: pytest.MonkeyPatch, error: Exception = AWAY) -> threading.Event:
    """A published result cannot be committed; set once that was tried."""
    asked = threading.Event()

    def refused(*_, **__):
        asked.set()
        raise error

    monkeypatch.setattr(*((FileStore, "ensure") if error is AWAY else (transitions, "succeed")), refused)
    return asked


@pytest.mark.parametrize(
    ("error", "code"), [(AWAY, "storage-away"), pytest.param(FULL, "storage-full", marks=pytest.mark.long)]
)
def test_a_result_that_cannot_be_committed_for_long_puts_the_job_back(bench, monkeypatch, error, code):
    refuse(monkeypatch, error)
    job_id = bench.inspect_dataset()
    brief = replace(QUICK, lease=1.0, frozen=0.5, renew=0.2, again=0.05)
    bench.supervisor(PUBLISHES, timing=brief).run(job_id)
    assert bench.standing(job_id) == ("queued", 1, 1)
    waiting = bench.job(job_id).waiting
    assert waiting["code"] == code
    assert "INSERT" not in waiting["message"]


@pytest.mark.parametrize("end", [pytest.param("stop", marks=pytest.mark.long), "cancel"])
def test_a_stop_or_a_cancel_while_the_store_is_away_at_the_commit(bench, monkeypatch, end):
    refusing, stop, job_id = refuse(monkeypatch), threading.Event(), bench.inspect_dataset()
    short = replace(QUICK, shutdown_grace=0.2)
    thread = run_in_thread(bench.supervisor(PUBLISHES, stopping=stop.is_set, timing=short), job_id)
    assert refusing.wait(PATIENCE_SECONDS)
    stop.set() if end == "stop" else bench.cancel(job_id)
    finish(thread)
    assert put_back(bench, job_id) if end == "stop" else bench.job(job_id).state == "canceled"
