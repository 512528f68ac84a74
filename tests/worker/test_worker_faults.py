"""A worker or host that fails by itself: told as that, charged to no job, and no end of the queue."""

from __future__ import annotations

import errno
import os
import resource
import threading
from pathlib import Path

import pytest

from service.jobs import transitions
from tests.worker.workbench import Workbench, finish, wait_for
from worker.conclusion import worker_fault
from worker.rest import Rest
from worker.sandbox import Limits, Sandbox
from worker.slots import Slot, Slots

QUEUES = ("inspect",)


def assert_waits(bench: Workbench, job_id: str, attempts: int) -> None:
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("queued", attempts, attempts)
    assert job.waiting["code"] == "worker-fault"
    assert f"attempt {attempts}" in job.waiting["message"]
    assert bench.events(job_id, "state")[-1].data["charged"] is False


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EACCES, "Permission denied"),
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.EAGAIN, "Resource temporarily unavailable"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        MemoryError(),
        ZeroDivisionError("a bug of ours"),
    ],
    ids=repr,
)
def test_no_number_of_faults_of_the_worker_fails_a_job(bench, monkeypatch, caplog, error):
    def fail(*_, **__):
        raise error

    job_id = bench.submit()
    supervisor = bench.supervisor("succeed()")
    with monkeypatch.context() as broken:
        broken.setattr("worker.materials.copy_checked", fail)
        for attempts in range(1, 6):
            assert supervisor.run(job_id)
            assert_waits(bench, job_id, attempts)
    assert bench.scratch_folders() == []
    told = [record for record in caplog.records if record.message.startswith("worker.fault")]
    assert told[0].exc_info[1] is error, "the log has the whole of it"
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_a_config_of_a_newer_service_waits_for_a_newer_worker(bench):
    job_id = bench.submit(
        kind="quantize", queue="inspect", model_id=bench.add_model(), config={"preset": "int8", "knob_of_tomorrow": 1}
    )
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
    def fail(*_, **__):
        raise ZeroDivisionError("a bug of ours")

    job_id = bench.submit()
    with monkeypatch.context() as broken:
        broken.setattr(transitions, "succeed", fail)
        assert bench.supervisor("succeed()").run(job_id)
    assert_waits(bench, job_id, 1)


def no_thread(monkeypatch, prefix: str) -> None:
    """The system refuses threads whose name begins so."""
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize("prefix", ["lease-", "lines-", "stderr-"])
def test_a_process_without_threads_gives_its_job_back_and_leaves_no_runner(bench, monkeypatch, prefix):
    job_id = bench.submit()
    with monkeypatch.context() as broken:
        no_thread(broken, prefix)
        assert bench.supervisor("time.sleep(600)").run(job_id)
    assert_waits(bench, job_id, 1)
    assert not [path for path in Path("/proc").glob("[0-9]*/cwd") if _lies_in(path, bench.settings.scratch_dir)]


def _lies_in(link: Path, folder: Path) -> bool:
    try:
        return str(link.readlink()).startswith(str(folder))
    except OSError:
        return False  # ended meanwhile


def test_pipes_that_cannot_be_made_leave_no_descriptor(tmp_path):
    before = set(Path("/proc/self/fd").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open("/dev/null", os.O_RDONLY)
    os.close(probe)
    # Room for the first pipe and half of the second.
    resource.setrlimit(resource.RLIMIT_NOFILE, (_third_free(probe) + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Sandbox(("true",)).start(tmp_path / "task", scratch=tmp_path, limits=Limits())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert set(Path("/proc/self/fd").iterdir()) == before


def _third_free(first: int) -> int:
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    for descriptor in held:
        os.close(descriptor)
    assert held[0] == first
    return held[-1]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def broken_host(bench: Workbench, rest: Rest) -> Slots:
    """One whose jobs end in milliseconds, by no fault of theirs, until there is a file "mended"."""
    code = "if not os.path.exists(os.environ['BENCH'] + '/mended'): sys.exit(127)\nsucceed()\n"
    supervisor = bench.supervisor(code, rest=rest, backoff_seconds=lambda attempt: 1000.0)
    return Slots([Slot(supervisor)], bench.database, QUEUES, look_seconds=0.01, rest=rest)


def test_a_host_that_fails_everything_does_not_run_through_the_queue(bench):
    clock = Clock()
    rest = Rest(clock)
    jobs = [bench.submit() for _ in range(8)]
    slots = broken_host(bench, rest)
    thread = threading.Thread(target=slots.work)
    thread.start()

    def tried() -> int:
        return sum(bench.job(job_id).attempt for job_id in jobs)

    wait_for(lambda: tried() == 1)
    for attempts, pause in ((2, 1.0), (3, 2.0), (4, 4.0)):
        wait_for(lambda: rest.awake(QUEUES) == ())
        assert not slots.could_start(), "it is not deaf, it rests"
        clock.now += pause - 0.1
        assert rest.awake(QUEUES) == ()
        assert tried() == attempts - 1
        clock.now += 0.2
        wait_for(lambda attempts=attempts: tried() == attempts)
    wait_for(lambda: rest.awake(QUEUES) == ())
    (bench.folder / "mended").touch()
    clock.now += 8.1
    finish(thread)
    assert sorted(bench.job(job_id).state for job_id in jobs) == ["queued"] * 4 + ["succeeded"] * 4


def test_a_rest_has_a_bound_a_success_ends_it_and_other_queues_go_on():
    clock = Clock()
    rest = Rest(clock, longest_seconds=30.0)
    for _ in range(50):
        rest.note("cpu", failed=True)
        rest.note("cpu", failed=True)  # of another slot, at the same time
        assert rest.awake(("cpu", "inspect")) == ("inspect",)
        clock.now += 30.0
        assert rest.awake(("cpu", "inspect")) == ("cpu", "inspect")
    rest.note("cpu", failed=False)
    rest.note("cpu", failed=True)
    clock.now += 1.0
    assert rest.awake(("cpu",)) == ("cpu",)
