"""The lease from the claim to the commit: kept whatever takes long, and what happens to a runner without one."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import event, update

from service.contracts.runner import ProgressLine
from service.db import db_now
from service.jobs import transitions
from service.storage import FileStore
from service.tables import Job
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import (
    UNTIL_GO,
    Workbench,
    database_away,
    finish,
    process_gone,
    process_state,
    run_in_thread,
    wait_for,
)
from worker.lease import DATABASE_AWAY, Lease, Timing
from worker.materials import Materials
from worker.runner_input import boot_seconds

SHORT = Timing(lease=1.5, renew=0.3, look=0.1, flush=0.05, flush_max=0.1, again=0.1, cancel_grace=1, shutdown_grace=1)


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
    for _ in range(leases):
        before = bench.job(job_id).lease_until
        wait_for(lambda until=before: bench.job(job_id).lease_until > until, message="the lease was not renewed")


def claimed(bench: Workbench, **values) -> Job:
    job_id = bench.submit(**values)
    with bench.database.write() as session:
        job = transitions.claim(session, job_id, worker_id="test", lease_seconds=SHORT.lease)
    assert job is not None
    return job


def put_back(job: Job):
    return lambda session: transitions.requeue(
        session, job.id, job.attempt, delay_seconds=0, charged=False, reason="test"
    )


@pytest.mark.parametrize(("owner", "name"), [(Materials, "lay_out"), (FileStore, "check_there")])
def test_the_lease_is_kept_while_inputs_are_copied_and_results_published(bench, monkeypatch, owner, name):
    go, busy = threading.Event(), threading.Event()
    real = getattr(owner, name)

    def slow(self, *arguments):
        busy.set()
        go.wait()
        return real(self, *arguments)

    supervisor, job_id = bench.supervisor("succeed()", timing=SHORT), bench.submit()
    monkeypatch.setattr(owner, name, slow)
    thread = run_in_thread(supervisor, job_id)
    assert busy.wait(PATIENCE_SECONDS)
    outlived(bench, job_id)
    with bench.database.write() as session:
        assert transitions.expire_leases(session) == []
    go.set()
    finish(thread)
    assert bench.standing(job_id) == ("succeeded", 1, 0)


@pytest.mark.parametrize("trouble", [pytest.param(database_away, marks=pytest.mark.long), database_hangs])
def test_a_runner_without_a_lease_stands_still_with_its_group_and_goes_on_with_the_next(bench, trouble):
    code = (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
        "open(os.environ['BENCH'] + '/child', 'w').write(str(child.pid))\n" + UNTIL_GO
    )
    job_id, thread, pid = bench.begin(code, timing=SHORT, mode="off")  # under the controls it could start no child
    group = (pid, int((bench.folder / "child").read_text()))
    with trouble(bench):
        wait_for(lambda: {process_state(pid) for pid in group} == {"T"}, message="it was not stopped")
    wait_for(lambda: "T" not in {process_state(pid) for pid in group}, message="it did not go on")
    bench.go()
    finish(thread)
    assert bench.standing(job_id) == ("succeeded", 1, 0)
    assert all(map(process_gone, group))


def test_a_stopped_runner_whose_job_another_has_is_killed(bench):
    job_id, thread, pid = bench.begin(timing=SHORT)
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


@pytest.mark.long
def test_a_runner_is_not_kept_for_ever_and_its_job_pays_nothing(bench):
    job_id, thread, pid = bench.begin(timing=replace(SHORT, frozen=0.5))
    with database_away(bench):
        wait_for(lambda: process_gone(pid), message="it was kept")
        assert thread.is_alive(), "what happened is still to be written"
    finish(thread)
    assert bench.standing(job_id) == ("queued", 1, 1)
    assert bench.job(job_id).waiting["code"] == "database-away"
    assert bench.supervisor("succeed()").run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_a_stopping_worker_does_not_wait_for_the_database(bench):
    stop = threading.Event()
    job_id, thread, pid = bench.begin(timing=SHORT, stopping=stop.is_set)
    with database_away(bench):
        wait_for(lambda: process_state(pid) == "T")
        stop.set()
        finish(thread)
        assert process_gone(pid)
    assert bench.job(job_id).state == "running", "the reconciler will see to it"


def test_what_was_told_while_the_database_was_away_is_written_once(bench):
    code = "log('before')\n" + UNTIL_GO.replace("succeed()", "log('after')\nsucceed()")
    job_id, thread, pid = bench.begin(code)
    wait_for(lambda: bench.events(job_id, "log"))
    with database_away(bench):
        bench.go()
        wait_for(lambda: process_gone(pid))
        assert thread.is_alive(), "its end is still to be written"
    finish(thread)
    assert bench.logged(job_id) == ["before", "after"]
    assert bench.names(job_id)[-1] == "job.succeeded"
    assert bench.standing(job_id) == ("succeeded", 1, 0)


def test_an_error_of_the_thread_ends_the_attempt(bench, monkeypatch):
    """A fault of ours must not go unseen only because it happened beside."""
    job_id = bench.submit()
    monkeypatch.setattr(transitions, "renew", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.supervisor("time.sleep(600)", timing=SHORT).run(job_id)


def test_a_lease_ends_by_this_machines_clock_and_is_taken_back(bench):
    job = claimed(bench)
    assert Lease(bench.database, job, SHORT, claimed_at=100.0).ends_at == 100.0 + SHORT.lease
    with Lease(bench.database, job, SHORT, claimed_at=boot_seconds()) as lease:
        assert not lease.over()
        with database_away(bench):
            wait_for(lease.over)
            assert not lease.lost
        wait_for(lambda: not lease.over())
        assert lease.ends_at <= boot_seconds() + SHORT.lease, "the database's ends no sooner"
        assert lease.lapsed(60)
        assert not lease.lost
        assert lease.conclude(put_back(job))
    assert bench.job(job.id).state == "queued"


def test_the_end_is_written_with_what_was_told_or_not_at_all(bench):
    job = claimed(bench)
    slow = Timing(lease=60, renew=30, look=30, flush=30, flush_max=30)
    with Lease(bench.database, job, slow, claimed_at=boot_seconds()) as lease:
        lease.tell(ProgressLine(stage="load"))
        wait_for(lambda: bench.events(job.id, "progress"), message="what is told first is not written at once")
        lease.tell(ProgressLine(stage="work", done=1))
        with database_away(bench), pytest.raises(DATABASE_AWAY):
            lease.conclude(lambda session: True)
        assert lease.conclude(put_back(job))
        assert not lease.conclude(lambda session: True), "it is no longer this attempt's"
    assert [event.data.get("stage") for event in bench.events(job.id, "progress")] == ["load", "work"]


def test_what_is_done_every_second_reads_no_config(bench):
    """A config may have megabytes."""
    job, seen = claimed(bench), list[tuple[str, str]]()
    note = lambda *found: seen.append((threading.current_thread().name, found[2]))  # noqa: E731
    event.listen(bench.database.engine, "before_cursor_execute", note)
    with Lease(bench.database, job, SHORT, claimed_at=boot_seconds()) as lease:
        lease.tell(ProgressLine(stage="work", done=1))
        wait_for(lambda: bench.events(job.id, "progress"))
        bench.cancel(job.id)
        wait_for(lambda: lease.cancel_requested)
    words = "\n".join(words for thread, words in seen if thread.startswith("lease-"))
    assert "progress" in words
    assert "config" not in words


def test_a_machine_that_slept_has_not_stalled_its_job(bench, monkeypatch):
    """Asleep for longer than a runner may be silent: the lease is taken back, and the runner goes on."""
    asleep = 0.0
    for module in ("worker.attempt", "worker.lease"):
        monkeypatch.setattr(f"{module}.boot_seconds", lambda: boot_seconds() + asleep)
    job_id, thread, _ = bench.begin(timing=Timing(lease=5, renew=0.3, look=0.1, stall=3600))
    asleep = 2 * 3600.0
    outlived(bench, job_id)
    bench.go()
    finish(thread)
    assert bench.standing(job_id) == ("succeeded", 1, 0)
