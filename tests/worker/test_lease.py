"""The lease from the claim to the commit: kept whatever takes long, and what happens to a runner without one."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event, update

from service.contracts.runner import ProgressLine
from service.db import db_now
from service.jobs import transitions
from service.storage import FileStore
from service.tables import Job
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import (
    QUICK,
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
from worker.lease import DATABASE_AWAY, Lease, Timing
from worker.materials import Materials
from worker.tether import boot_seconds

SHORT = Timing(lease=1.5, renew=0.3, look=0.1, flush=0.05, flush_max=0.1, again=0.1, cancel_grace=1, shutdown_grace=1)
UNTIL_GO = WRITE_PID + "while not os.path.exists(os.environ['BENCH'] + '/go'): time.sleep(0.02)\nsucceed()\n"


@contextmanager
def database_hangs(bench: Workbench) -> Iterator[None]:
    """Every write waits for a lock meanwhile, up to the driver's patience of 30 s: longer than any lease here."""
    path = bench.settings.database_url.removeprefix("sqlite:///")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        holder.execute("ROLLBACK")
        holder.close()


def outlived(bench: Workbench, job_id: str, leases: int = 3) -> None:
    """Wait until the lease was renewed again and again."""
    for _ in range(leases):
        before = bench.job(job_id).lease_until
        wait_for(lambda until=before: bench.job(job_id).lease_until > until, message="the lease was not renewed")


def claimed(bench: Workbench, **values) -> Job:
    job_id = bench.submit(**values)
    with bench.database.write() as session:
        job = transitions.claim(session, job_id, worker_id="test", lease_seconds=SHORT.lease)
    assert job is not None
    return job


def test_the_lease_is_kept_while_inputs_are_copied(bench, monkeypatch):
    job_id = bench.submit()
    go, laying = threading.Event(), threading.Event()
    real = Materials.lay_out

    def slow(self, task):
        laying.set()
        go.wait()
        return real(self, task)

    monkeypatch.setattr(Materials, "lay_out", slow)
    thread = run_in_thread(bench.supervisor("succeed()", timing=SHORT), job_id)
    assert laying.wait(PATIENCE_SECONDS)
    outlived(bench, job_id)
    with bench.database.write() as session:
        assert transitions.expire_leases(session) == []
    go.set()
    finish(thread)
    assert (bench.job(job_id).state, bench.job(job_id).attempt) == ("succeeded", 1)


def test_the_lease_is_kept_while_results_are_published(bench, monkeypatch):
    job_id = bench.submit()
    go, storing = threading.Event(), threading.Event()

    def slow(self):
        storing.set()
        go.wait()

    supervisor = bench.supervisor("succeed()", timing=SHORT)
    monkeypatch.setattr(FileStore, "check_there", slow)
    thread = run_in_thread(supervisor, job_id)
    assert storing.wait(PATIENCE_SECONDS)
    outlived(bench, job_id)
    with bench.database.write() as session:
        assert transitions.expire_leases(session) == []
    go.set()
    finish(thread)
    assert (bench.job(job_id).state, bench.job(job_id).attempt) == ("succeeded", 1)


def test_a_cancel_ends_a_long_copy(bench, monkeypatch):
    job_id = bench.submit(model_id=bench.add_model({"net.onnx": b"x" * 4_000_000}))
    laying = threading.Event()
    real = Materials._copy

    def endless(self, *arguments):
        laying.set()
        while True:
            real(self, *arguments)

    monkeypatch.setattr(Materials, "_copy", endless)
    thread = run_in_thread(bench.supervisor("succeed()", timing=SHORT), job_id)
    assert laying.wait(PATIENCE_SECONDS)
    bench.cancel(job_id)
    finish(thread)
    assert bench.job(job_id).state == "canceled"
    assert bench.scratch_folders() == []


@pytest.mark.parametrize("trouble", [database_away, database_hangs])
def test_a_runner_without_a_lease_stands_still_and_goes_on_with_the_next(bench, trouble):
    job_id = bench.submit()
    thread = run_in_thread(bench.supervisor(UNTIL_GO, timing=SHORT), job_id)
    pid = runner_pid(bench)
    with trouble(bench):
        wait_for(lambda: process_state(pid) == "T", message="it was not stopped")
    wait_for(lambda: process_state(pid) != "T", message="it did not go on")
    (bench.folder / "go").touch()
    finish(thread)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("succeeded", 1, 0)
    assert process_gone(pid)


def test_the_whole_group_stands_still(bench):
    job_id = bench.submit()
    thread = run_in_thread(
        bench.supervisor(
            "import subprocess\n"
            "child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
            "open(os.environ['BENCH'] + '/child', 'w').write(str(child.pid))\n" + UNTIL_GO,
            timing=SHORT,
            mode="off",  # under the controls it could start none
        ),
        job_id,
    )
    runner_pid(bench)
    child = int((bench.folder / "child").read_text())
    with database_away(bench):
        wait_for(lambda: process_state(child) == "T", message="it was not stopped")
    wait_for(lambda: process_state(child) != "T", message="it did not go on")
    (bench.folder / "go").touch()
    finish(thread)
    assert process_gone(child)


def test_a_stopped_runner_whose_job_another_has_is_killed(bench):
    job_id = bench.submit()
    thread = run_in_thread(bench.supervisor(UNTIL_GO, timing=SHORT), job_id)
    pid = runner_pid(bench)
    with database_hangs(bench):
        wait_for(lambda: process_state(pid) == "T")
        holder = threading.Thread(target=take_away, args=(bench, job_id))
        holder.start()
    finish(holder)
    finish(thread)
    assert process_gone(pid)
    job = bench.job(job_id)
    assert (job.worker_id, job.attempt) == ("other", 7)


def take_away(bench: Workbench, job_id: str) -> None:
    """As an attempt elsewhere does; it need not come first, the lease may be taken back before."""
    with bench.database.write() as session:
        session.execute(
            update(Job).where(Job.id == job_id).values(attempt=7, lease_until=db_now() + 600, worker_id="other")
        )


def test_a_runner_is_not_kept_for_ever_and_its_job_pays_nothing(bench):
    job_id = bench.submit()
    timing = Timing(**{**SHORT.__dict__, "frozen": 0.5})
    thread = run_in_thread(bench.supervisor(UNTIL_GO, timing=timing), job_id)
    pid = runner_pid(bench)
    with database_away(bench):
        wait_for(lambda: process_gone(pid), message="it was kept")
        assert thread.is_alive(), "what happened is still to be written"
    finish(thread)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("queued", 1, 1)
    assert job.waiting["code"] == "database-away"
    (bench.folder / "go").touch()
    assert bench.supervisor(UNTIL_GO).run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_a_stopping_worker_does_not_wait_for_the_database(bench):
    job_id = bench.submit()
    stop = threading.Event()
    thread = run_in_thread(bench.supervisor(UNTIL_GO, timing=SHORT, stopping=stop.is_set), job_id)
    pid = runner_pid(bench)
    with database_away(bench):
        wait_for(lambda: process_state(pid) == "T")
        stop.set()
        finish(thread)
        assert process_gone(pid)
    assert bench.job(job_id).state == "running", "the reconciler will see to it"


def test_what_was_told_while_the_database_was_away_is_written_once(bench):
    job_id = bench.submit()
    code = (
        WRITE_PID + "log('before')\n" + UNTIL_GO.removeprefix(WRITE_PID).replace("succeed()", "log('after')\nsucceed()")
    )
    thread = run_in_thread(bench.supervisor(code, timing=QUICK), job_id)
    runner_pid(bench)
    wait_for(lambda: bench.events(job_id, "log"))
    with database_away(bench):
        (bench.folder / "go").touch()
        thread.join(1.0)
    finish(thread)
    assert [event.data["message"] for event in bench.events(job_id, "log")] == ["before", "after"]
    assert bench.events(job_id)[-1].data["name"] == "job.succeeded"


def test_an_error_of_the_thread_ends_the_attempt(bench, monkeypatch):
    """A fault of ours must not go unseen only because it happened beside."""
    job_id = bench.submit()
    monkeypatch.setattr(transitions, "renew", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.supervisor("time.sleep(600)", timing=SHORT).run(job_id)


def test_a_lease_ends_by_this_machines_clock_and_is_taken_back(bench):
    job = claimed(bench)
    with Lease(bench.database, job, SHORT, claimed_at=boot_seconds()) as lease:
        assert not lease.over()
        with database_away(bench):
            wait_for(lease.over)
            assert not lease.lost
        wait_for(lambda: not lease.over())
        assert lease.lapsed(60)
        assert not lease.lost
        assert lease.conclude(lambda session: transitions.requeue(
            session, job.id, job.attempt, delay_seconds=0, charged=False, reason="test"
        ))  # fmt: skip
    assert bench.job(job.id).state == "queued"


def test_the_end_is_written_with_what_was_told_or_not_at_all(bench):
    job = claimed(bench)
    slow = Timing(lease=60, renew=30, look=30, flush=30, flush_max=30)
    with Lease(bench.database, job, slow, claimed_at=boot_seconds()) as lease:
        lease.tell(ProgressLine(stage="work", done=1))
        with database_away(bench), pytest.raises(DATABASE_AWAY):
            lease.conclude(lambda session: True)
        assert lease.conclude(lambda session: transitions.requeue(
            session, job.id, job.attempt, delay_seconds=0, charged=False, reason="test"
        ))  # fmt: skip
        assert not lease.conclude(lambda session: True), "it is no longer this attempt's"
    assert [event.data.get("stage") for event in bench.events(job.id, "progress")] == ["work"]


def test_what_is_done_every_second_reads_no_config(bench):
    """A config may have megabytes."""
    job = claimed(bench)
    seen: list[str] = []

    def note(connection, cursor, words, *_):
        if threading.current_thread().name.startswith("lease-"):
            seen.append(words)

    event.listen(bench.database.engine, "before_cursor_execute", note)
    with Lease(bench.database, job, SHORT, claimed_at=boot_seconds()) as lease:
        wait_for(lambda: any(words.startswith("SELECT") for words in seen), message="it never looked")
        lease.tell(ProgressLine(stage="work", done=1))
        wait_for(lambda: bench.events(job.id, "progress"))
        bench.cancel(job.id)
        wait_for(lambda: lease.cancel_requested)
    assert any("progress" in words for words in seen)
    assert not [words for words in seen if "config" in words]


def test_a_machine_that_slept_has_not_stalled_its_job(bench, monkeypatch):
    """Asleep for longer than a runner may be silent: the lease is taken back, and the runner goes on."""
    asleep = 0.0
    for module in ("worker.attempt", "worker.lease"):
        monkeypatch.setattr(f"{module}.boot_seconds", lambda: boot_seconds() + asleep)
    job_id = bench.submit()
    supervisor = bench.supervisor(UNTIL_GO, timing=Timing(lease=5, renew=0.3, look=0.1, stall=3600))
    thread = run_in_thread(supervisor, job_id)
    runner_pid(bench)
    asleep = 2 * 3600.0
    outlived(bench, job_id)
    (bench.folder / "go").touch()
    finish(thread)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.error) == ("succeeded", 1, None)
