"""A worker or host that fails by itself: told as that, charged to no job, and no end of the queue."""

from __future__ import annotations

import errno
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from service.jobs import transitions
from tests.worker.running import processes_of
from tests.worker.test_slots import pool
from tests.worker.workbench import QUICK, ReleasingSupervisor, Workbench, threads_refused, wait_for
from worker.conclusion import QueueBackoff, worker_fault
from worker.sandbox import Sandbox, SandboxLimits

QUEUES = ("inspect",)


def assert_waits(bench: Workbench, job_id: str, attempts: int, code: str = "worker-fault") -> None:
    assert bench.standing(job_id) == ("queued", attempts, attempts)
    assert bench.job(job_id).waiting["code"] == code
    assert bench.events(job_id, "state")[-1].data["charged"] is False


def failing(error: Exception):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EACCES, "Permission denied"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        MemoryError(),
        ZeroDivisionError("a bug of ours"),
    ],
    ids=repr,
)
def test_no_number_of_faults_of_the_worker_fails_a_job(bench, monkeypatch, caplog, error):
    job_id = bench.submit()
    supervisor = bench.supervisor("succeed()")
    with monkeypatch.context() as broken:
        broken.setattr("service.storage.folder.copy_checked", failing(error))
        for attempts in range(1, 6):
            assert supervisor.run(job_id)
            assert_waits(bench, job_id, attempts)
            assert f"attempt {attempts}" in bench.job(job_id).waiting["message"]
    assert bench.scratch_folders() == []
    told = [record for record in caplog.records if record.message.startswith("worker.fault")]
    assert told[0].exc_info[1] is error, "the log has the whole of it"
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_a_config_of_a_newer_service_waits_for_a_newer_worker(bench):
    job_id = bench.quantize(knob_of_tomorrow=1)
    for attempts in range(1, 5):
        assert bench.supervisor("succeed()").run(job_id)
        assert_waits(bench, job_id, attempts)
    assert "ValidationError" in bench.job(job_id).waiting["message"]


def test_what_a_job_is_told_names_the_error_and_no_places():
    error = PermissionError(errno.EACCES, "Permission denied", "/secret/place")
    message = worker_fault(error, 7).waiting.message
    assert "PermissionError: Permission denied" in message
    assert "secret" not in message


def test_an_end_that_raises_is_put_back(bench, monkeypatch):
    job_id = bench.submit()
    with monkeypatch.context() as broken:
        broken.setattr(transitions, "succeed", failing(ZeroDivisionError("a bug of ours")))
        assert bench.supervisor("succeed()").run(job_id)
    assert_waits(bench, job_id, 1)


@pytest.mark.parametrize("prefix", ["lease-", "lines-", "stderr-"])
def test_a_process_without_threads_gives_its_job_back_and_leaves_no_runner(bench, monkeypatch, prefix):
    job_id = bench.submit()
    with monkeypatch.context() as broken:
        threads_refused(broken, prefix)
        assert bench.supervisor("time.sleep(600)").run(job_id)
    assert_waits(bench, job_id, 1)
    assert processes_of(bench.settings.data_dir) == {}


# Written into the middle of an update: a module is not there, or is half a file.
BROKEN = ("import no_such_module", "exec('def half(')")


@pytest.mark.parametrize("code", BROKEN)
def test_a_runner_that_never_came_to_be_costs_no_attempt_however_often(bench, code):
    """It says nothing of its job, which waits until the worker's installation is mended."""
    job_id = bench.submit()
    broken = bench.supervisor(code)
    for attempts in range(1, 5):
        assert broken.run(job_id)
        assert_waits(bench, job_id, attempts, "runner-not-started")
    assert "exit code 1" in bench.job(job_id).waiting["message"]
    assert bench.supervisor("succeed()").run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_cores_that_the_host_does_not_have_cost_no_attempt(bench):
    job_id = bench.submit()
    sandbox = Sandbox((sys.executable, "-c", "pass"), cores=(100_000,))
    supervisor = ReleasingSupervisor(bench.settings, bench.database, sandbox=sandbox, timing=QUICK)
    for attempts in range(1, 5):
        assert supervisor.run(job_id)
        assert_waits(bench, job_id, attempts, "runner-not-started")
    assert "exit code 127" in bench.job(job_id).waiting["message"]


def test_a_crash_after_the_first_line_is_a_crash(bench):
    job_id = bench.submit()
    bench.supervisor("log('hello')\nimport no_such_module").run(job_id)
    assert bench.standing(job_id) == ("queued", 1, 0)
    assert bench.job(job_id).waiting is None


def test_a_sigterm_before_the_runner_could_take_it_is_an_interruption(bench):
    job_id = bench.submit()
    early = bench.supervisor("os.kill(os.getpid(), signal.SIGTERM)")
    for attempts in range(1, 5):
        assert early.run(job_id)
        assert bench.standing(job_id) == ("queued", attempts, attempts)
        with bench.database.write() as session:  # nothing was done yet: there is a pause
            job = bench.job(job_id)
            session.get(type(job), job_id).not_before = job.created_at


def test_pipes_that_cannot_be_made_leave_no_descriptor(tmp_path):
    before = set(Path("/proc/self/fd").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    for descriptor in held:
        os.close(descriptor)
    # Room for the first pipe and half of the second.
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Sandbox(("true",)).start(tmp_path / "task", scratch=tmp_path, limits=SandboxLimits())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert set(Path("/proc/self/fd").iterdir()) == before


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_host_that_fails_everything_does_not_run_through_the_queue(bench):
    """Its jobs end in milliseconds, by no fault of theirs, until there is a file "mended"."""
    clock = Clock()
    queue_backoff = QueueBackoff(clock)
    jobs = [bench.submit() for _ in range(6)]
    code = "if not os.path.exists(os.environ['BENCH'] + '/mended'): sys.exit(127)\nsucceed()\n"
    supervisor = bench.supervisor(
        code, queue_backoff=queue_backoff, timing=replace(QUICK, backoff=lambda attempt: 1000.0)
    )

    def tried() -> int:
        return sum(bench.job(job_id).attempt for job_id in jobs)

    with pool(bench, supervisor, queue_backoff=queue_backoff) as worker:
        worker.dispatcher.wake()
        wait_for(lambda: tried() == 1)
        for attempts, pause in ((2, 1.0), (3, 2.0), (4, 4.0)):
            wait_for(lambda: queue_backoff.ready(QUEUES) == ())
            clock.now += pause - 0.1
            assert queue_backoff.ready(QUEUES) == ()
            assert tried() == attempts - 1
            clock.now += 0.2
            wait_for(lambda attempts=attempts: tried() == attempts)
        wait_for(lambda: queue_backoff.ready(QUEUES) == ())
        (bench.folder / "mended").touch()
        clock.now += 8.1
        wait_for(lambda: sorted(bench.states(*jobs)) == ["queued"] * 4 + ["succeeded"] * 2)


def test_a_backoff_has_a_bound_a_success_ends_it_and_other_queues_go_on():
    clock = Clock()
    queue_backoff = QueueBackoff(clock, longest_seconds=30.0)
    for _ in range(50):
        queue_backoff.note("cpu", failed=True)
        queue_backoff.note("cpu", failed=True)  # of another slot, at the same time
        assert queue_backoff.ready(("cpu", "inspect")) == ("inspect",)
        clock.now += 30.0
        assert queue_backoff.ready(("cpu", "inspect")) == ("cpu", "inspect")
    queue_backoff.note("cpu", failed=False)
    queue_backoff.note("cpu", failed=True)
    clock.now += 1.0
    assert queue_backoff.ready(("cpu",)) == ("cpu",)
