"""Runners that wait for their jobs: what they do when one comes, and when they are not taken."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from service.contracts.report import Report
from tests.support.tiny import Tiny
from tests.worker.workbench import (
    UNTIL_GO,
    WAITS,
    ReleasingSupervisor,
    Workbench,
    finish,
    process_gone,
    process_state,
    runner_pid,
    spare_pid,
    wait_for,
)
from worker import spares as module
from worker.confinement.controls import LANDLOCK, find_controls
from worker.confinement.places import Places
from worker.guard import StoppedError
from worker.outcome import SHUTDOWN
from worker.sandbox import Sandbox, SandboxLimits
from worker.spares import Spares

# Tells what a job finds of its surroundings.
LOOKS = "log(os.getpid()); log(os.getcwd()); log(os.environ['TMPDIR']); log(os.getppid())\nsucceed()\n"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level("INFO")
    return lambda: caplog.text


def waiting(bench: Workbench) -> int:
    return spare_pid(bench.spares[-1])


def test_a_spare_does_one_job_in_its_folder_and_another_takes_its_place(bench, said):
    supervisor, pids = bench.supervisor(LOOKS, spare=True), []
    for _ in range(2):
        pids.append(waiting(bench))
        job_id = bench.submit()
        assert supervisor.run(job_id)
        scratch = str(bench.settings.scratch_dir / f"{job_id}.1")
        assert bench.standing(job_id) == ("succeeded", 1, 0)
        assert bench.logged(job_id) == [str(pids[-1]), scratch, scratch, str(os.getpid())]
        assert process_gone(pids[-1])
    assert len({*pids, waiting(bench)}) == 3
    assert said().count("spare.taken") == 2
    assert bench.scratch_folders() == [], "a spare has no folder of its own"


def test_one_that_has_waited_longer_than_loading_may_take_is_taken(bench, said, monkeypatch):
    supervisor = bench.supervisor(LOOKS, spare=True)
    pid = waiting(bench)
    first = bench.spares[-1]._spare
    assert select.select([first.started.lines], [], [], 60.0)[0], "it has loaded the engine"
    monkeypatch.setattr(module, "LOADING_SECONDS", 0.0)
    job_id = bench.submit()
    assert supervisor.run(job_id)
    assert bench.logged(job_id)[0] == str(pid)
    assert "spare.taken" in said()


def test_a_runner_outlives_the_thread_that_took_it_and_stands_back_as_it_must(bench):
    """The kernel ends a runner with the thread that started it."""
    bench.supervisor(UNTIL_GO, spare=True)
    runners, scratch = [], bench.settings.scratch_dir / "scratch"
    scratch.mkdir()
    (scratch / "task.json").write_text("{}")
    limits = SandboxLimits(gpus=False, niceness=3)
    take = lambda: runners.append(bench.spares[0].take(scratch / "task.json", scratch=scratch, limits=limits))  # noqa: E731
    taking = threading.Thread(target=take)
    taking.start()
    finish(taking)
    pid = runner_pid(bench)
    assert os.getpriority(os.PRIO_PROCESS, pid) == 3
    assert process_state(pid) in "RS"
    bench.go()
    wait_for(lambda: process_gone(pid))
    assert runners[0].returncode == 0, runners[0].stderr_tail()
    runners[0].close()


def replace_program(bench: Workbench, pid: int) -> None:
    program = bench.folder / "waits.py"
    program.write_text(program.read_text() + "# another version\n")


def replace_store(bench: Workbench, pid: int) -> None:
    shutil.copytree(bench.settings.storage_dir, bench.folder / "moved")
    shutil.rmtree(bench.settings.storage_dir)
    (bench.folder / "moved").rename(bench.settings.storage_dir)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda bench, pid: os.kill(pid, signal.SIGKILL), "it ended with exit code -9"),
        (lambda bench, pid: os.kill(pid, signal.SIGSTOP), "it did not begin"),
        (replace_program, "its program was replaced"),
        (replace_store, "folders or variables are not those"),
        (lambda bench, pid: bench.settings.cache_dir.rmdir(), "folders or variables are not those"),
        (lambda bench, pid: os.environ.update(TZ="UTC"), "folders or variables are not those"),
    ],
    ids=["killed", "stopped", "replaced", "store", "cache", "variable"],
)
def test_one_that_will_not_do_is_thrown_away_and_the_job_gets_another(bench, said, monkeypatch, harm, why):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    shutil.copy(WAITS, bench.folder)
    monkeypatch.setattr("tests.worker.workbench.WAITS", bench.folder / "waits.py")
    supervisor = bench.supervisor(LOOKS, spare=True)
    pid = waiting(bench)
    harm(bench, pid)
    if why.startswith("it ended"):
        wait_for(lambda: process_gone(pid))
    job_id = bench.submit()
    supervisor.run(job_id)
    assert bench.standing(job_id) == ("succeeded", 1, 0)
    assert bench.logged(job_id)[0] != str(pid)
    assert process_gone(pid)
    (line,) = [line for line in said().splitlines() if "spare." in line]
    assert "spare.discarded" in line
    assert why in line


def test_a_worker_that_stops_does_not_wait_for_it(bench):
    def stop():
        raise StoppedError(SHUTDOWN)

    bench.supervisor(LOOKS, spare=True)
    pid, scratch = waiting(bench), bench.settings.scratch_dir / "scratch"
    scratch.mkdir()
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StoppedError):
        bench.spares[0].take(scratch / "task.json", scratch=scratch, limits=SandboxLimits(gpus=False), check=stop)
    assert process_gone(pid)


def test_one_that_cannot_be_confined_does_not_begin(bench, said):
    """Nothing runs that is not held as it should be."""
    if not find_controls().has(LANDLOCK):
        pytest.skip("THIS KERNEL LACKS landlock: nothing of it can be shown here")
    bench.supervisor(LOOKS, spare=True)
    pid = waiting(bench)
    scratch = bench.settings.scratch_dir / "scratch"
    scratch.mkdir()
    away = Places(readable=(bench.settings.storage_dir / "away",))
    taken = bench.spares[0].take(scratch / "task.json", scratch=scratch, limits=SandboxLimits(gpus=False), places=away)
    assert taken is None
    assert process_gone(pid)
    assert "landlock: No such file or directory" in said()


def test_what_lies_elsewhere_is_for_a_runner_started_for_it(bench, said):
    bench.supervisor(LOOKS, spare=True)
    elsewhere = Places(readable=(Path("/etc/passwd"),))
    scratch = bench.settings.scratch_dir / "scratch"
    assert bench.spares[0].take(scratch, scratch=scratch, limits=SandboxLimits(gpus=False), places=elsewhere) is None
    assert "/etc/passwd is in no folder that it may reach" in said()


def test_a_job_with_gpus_leaves_it_alone(bench, monkeypatch):
    bench.supervisor(LOOKS, spare=True)
    pid, scratch = waiting(bench), bench.settings.scratch_dir / "scratch"
    monkeypatch.setattr(module, "has_gpus", lambda: True)
    assert bench.spares[0].take(scratch / "task.json", scratch=scratch, limits=SandboxLimits(gpus=True)) is None
    assert waiting(bench) == pid


def test_one_with_threads_is_refused(bench, said):
    """The controls hold the thread that asks for them alone."""
    program = bench.folder / "threads.py"
    program.write_text(
        "import threading, time, sys\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "from worker.runner_input import await_assignment\nawait_assignment()\n"
    )
    sandbox, scratch = Sandbox((sys.executable, "-P", str(program))), bench.settings.scratch_dir / "scratch"
    scratch.mkdir()
    spares = bench.keep_spare(sandbox)
    assert spares.take(scratch, scratch=scratch, limits=SandboxLimits(gpus=False)) is None
    assert "it has 2 threads" in said()


def test_without_processes_to_spare_jobs_run_as_ever(bench, said, monkeypatch):
    monkeypatch.setattr(Sandbox, "begin", refused := Refused(Sandbox.begin))
    spares = Spares(Sandbox((sys.executable, "-P", str(WAITS), "nothing.py")), bench.settings, first_seconds=0.0)
    bench.spares.append(spares)
    wait_for(lambda: "spare.not_started" in said())
    assert refused.asked == 1, "tried again without a job"
    assert spares.take(Path("task"), scratch=bench.folder, limits=SandboxLimits(gpus=False)) is None
    waiting(bench)
    assert refused.asked == 2


class Refused:
    """The first process is not to be had."""

    def __init__(self, real: Callable[..., object]) -> None:
        self.asked, self._real = 0, real

    def __get__(self, sandbox: object, owner: object) -> Callable[..., object]:
        def begin(*arguments: object, **options: object) -> object:
            self.asked += 1
            if self.asked == 1:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return self._real(sandbox, *arguments, **options)

        return begin


def test_nothing_is_left_of_one_that_was_never_taken(bench):
    bench.supervisor(LOOKS, spare=True)
    pid, spares = waiting(bench), bench.spares.pop()
    before = len(list(Path("/proc/self/fd").iterdir()))
    spares.close()
    assert process_gone(pid)
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 3
    assert "spares" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.slow
def test_the_real_runner_gives_the_same_bytes(bench, tiny: Tiny, said):
    """With the engine loaded it has one thread, and can be confined."""
    made, quick = [], {"evaluation": {"latency_runs": 1, "layer_samples": 1}}
    for spare in (False, True):
        spares = bench.keep_spare(Sandbox()) if spare else None
        job_id = bench.quantize(tiny.model.read_bytes(), tiny.calibration.read_bytes(), **quick)
        ReleasingSupervisor(bench.settings, bench.database, sandbox=Sandbox(), spares=spares).run(job_id)
        assert bench.standing(job_id) == ("succeeded", 1, 0), bench.job(job_id).error
        made.append(bench.artifacts(job_id)["model"].sha256)
        report = bench.store.path(bench.artifacts(job_id)["report"].sha256).read_bytes()
        assert Report.model_validate_json(report).stages
    assert made[0] == made[1]
    assert "spare.taken" in said()
    assert "spare.discarded" not in said()
