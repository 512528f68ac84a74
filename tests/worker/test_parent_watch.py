"""A runner whose supervisor fell silent: it knows its lease's end, and ends itself."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from service.contracts.runner import InspectModelTask
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import UNTIL_GO, database_away, finish, process_state, wait_for
from worker import runner_input
from worker.lease import Timing
from worker.runner_input import _LOOK_SECONDS, GRACE_SECONDS, ParentWatch, boot_seconds, lease_line
from worker.runner_process import RunnerProcess
from worker.sandbox import Sandbox, SandboxLimits

# As the real runner begins, but for its patience.
WATCHED = (
    "from worker.runner import end_group\nfrom worker.runner_input import ParentWatch\n"
    "ParentWatch(0, end_group, grace_seconds=0.5).start()\n"
)


LOOK_SECONDS = 0.05


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    monkeypatch.setattr(runner_input, "_LOOK_SECONDS", LOOK_SECONDS)
    return os.pipe()  # left open: the thread goes on reading


def watch(descriptor: int, clock: Clock) -> threading.Event:
    cut = threading.Event()
    ParentWatch(descriptor, cut.set, clock=clock).start()
    return cut


def test_the_end_of_the_input_cuts(pipe):
    cut = watch(pipe[0], Clock())
    os.close(pipe[1])
    assert cut.wait(PATIENCE_SECONDS)


def test_the_end_of_the_lease_cuts_after_its_grace(pipe):
    clock = Clock()
    os.write(pipe[1], lease_line(110.0))
    cut = watch(pipe[0], clock)
    clock.now = 110.0 + GRACE_SECONDS
    assert not cut.wait(2.5 * LOOK_SECONDS)
    clock.now += 0.1
    assert cut.wait(PATIENCE_SECONDS)


def test_a_new_end_counts_even_if_it_is_seen_late(pipe):
    """The runner was stopped beyond its lease; the new end was written before it was let go on."""
    clock = Clock()
    os.write(pipe[1], lease_line(110.0))
    os.write(pipe[1], lease_line(210.0))
    clock.now = 200.0
    cut = watch(pipe[0], clock)
    assert not cut.wait(2.5 * LOOK_SECONDS)
    os.write(pipe[1], lease_line(220.0)[:3])  # half a line is none yet
    clock.now = 210.0 + GRACE_SECONDS + 1
    assert cut.wait(PATIENCE_SECONDS)


def test_without_any_line_there_is_no_end(pipe):
    clock = Clock()
    clock.now = 1e12
    assert not watch(pipe[0], clock).wait(2.5 * LOOK_SECONDS)


def test_a_runner_without_a_lease_ends_itself(tmp_path):
    """Though its supervisor lives. It is gone within ten seconds of the lease's end."""
    assert GRACE_SECONDS + 2 * _LOOK_SECONDS < 10
    program, task_file = tmp_path / "program.py", tmp_path / "task.json"
    program.write_text(
        "import sys, time\nfrom worker import runner\nrunner.perform = lambda *_: time.sleep(600)\n"
        "runner.main([sys.argv[-1]])\n"
    )
    task_file.write_text(InspectModelTask(model_path="/nowhere", threads=1).model_dump_json())
    process = Sandbox((sys.executable, "-P", str(program))).start(task_file, scratch=tmp_path, limits=SandboxLimits())
    process.tell_lease(boot_seconds() - 2 * GRACE_SECONDS)
    wait_for(lambda: process.returncode is not None, message="it goes on")
    assert process.returncode == -signal.SIGKILL, process.stderr_tail()
    process.close()


def test_a_runner_that_was_long_in_starting_is_told_the_lease_as_it_is_then(bench, monkeypatch):
    short, real, left = Timing(lease=1.5, renew=0.1, look=0.1, again=0.1), Sandbox.start, []

    def slow(sandbox, *arguments, **options):
        threading.Event().wait(short.lease)
        return real(sandbox, *arguments, **options)

    monkeypatch.setattr(Sandbox, "start", slow)
    monkeypatch.setattr(RunnerProcess, "tell_lease", lambda _, ends_at: left.append(ends_at - boot_seconds()))
    job_id = bench.submit()
    bench.supervisor("succeed()", timing=short).run(job_id)
    assert bench.standing(job_id) == ("succeeded", 1, 0)
    assert left[0] > 0


def test_a_runner_that_was_stopped_by_its_supervisor_goes_on_with_the_new_lease(bench):
    """It stood still for longer than its own grace: it must not end itself for that."""
    short = Timing(lease=1.0, renew=0.2, look=0.1, again=0.1)
    job_id, thread, pid = bench.begin(WATCHED + UNTIL_GO, timing=short)
    with database_away(bench):
        wait_for(lambda: process_state(pid) == "T")
        threading.Event().wait(0.5 + 2 * _LOOK_SECONDS)
        assert process_state(pid) == "T"
    wait_for(lambda: process_state(pid) != "T")
    bench.go()
    finish(thread)
    assert bench.standing(job_id) == ("succeeded", 1, 0)
