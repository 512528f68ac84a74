"""The process in which a runner has a written model tried: it may die, and it never outlives its runner."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.contracts.report import Report
from tests.support.tiny import make_tiny
from tests.worker.workbench import (
    Workbench,
    database_away,
    finish,
    process_gone,
    process_state,
    run_in_thread,
    wait_for,
)
from worker import sandbox
from worker.lease import Timing

# The real runner and engine.
ENGINE = "from worker import runner\nsys.exit(runner.main([task_file]))\n"
# Asks for a process, and tells how it ended.
ASKS = """
from pathlib import Path
from worker.runner import StopSignal, TrialProcesses
from worker.runner_input import ParentWatch
trials, stop = TrialProcesses(), StopSignal(Path(task_file).with_name("canceled"))
stop.install()
ParentWatch(0, lambda: None, trials.ended).start()
def check():
    if stop() is not None:
        sys.exit(11)
log(trials.run(Path("folder"), lambda line: say(**line.model_dump()), check))
succeed()
"""
SLEEPS = """
import os, time
with open("pid.tmp", "w") as stream: stream.write(str(os.getpid()))
os.rename("pid.tmp", "pid")
time.sleep(600)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(code: str) -> None:
        path = tmp_path / "program.py"
        path.write_text(code)
        monkeypatch.setattr(sandbox, "TRIAL_COMMAND", (sys.executable, "-P", str(path)))

    return write


def asked_for(bench: Workbench) -> int:
    """The process that the only runner has asked for."""
    folder = bench.settings.scratch_dir
    return int(wait_for(lambda: next((path.read_text() for path in folder.glob("*/pid")), "")))


def report_of(bench: Workbench, job_id: str) -> Report:
    return Report.model_validate_json(bench.store.path(bench.artifacts(job_id)["report"].sha256).read_bytes())


@pytest.mark.slow
def test_a_model_is_tried_beside_a_runner_that_may_make_no_process(bench, tmp_path, caplog, program):
    caplog.set_level("INFO")
    tiny = make_tiny(tmp_path)
    quick = {"evaluation": {"latency_runs": 1, "layer_samples": 1}}
    files = tiny.model.read_bytes(), tiny.calibration.read_bytes()
    tried = bench.quantize(*files, **quick)
    bench.supervisor(ENGINE).run(tried)
    assert bench.standing(tried) == ("succeeded", 1, 0), bench.job(tried).error
    assert caplog.text.count("runner.trial_ended") == caplog.text.count("runner.trial_started") == 1
    assert not any("was not run" in note for note in report_of(bench, tried).notes)
    program("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    deadly = bench.quantize(*files, **quick)
    bench.supervisor(ENGINE).run(deadly)
    assert bench.standing(deadly) == ("failed", 1, 0)
    assert "its process was ended by SIGSEGV" in bench.job(deadly).error["detail"]


@pytest.mark.parametrize(("code", "told"), [("", "0"), ("raise SystemExit(3)", "3"), ("import os; os.abort()", "-6")])
def test_the_runner_is_told_how_it_ended(bench, program, code, told):
    program(code)
    job_id = bench.submit()
    bench.supervisor(ASKS).run(job_id)
    assert bench.standing(job_id) == ("succeeded", 1, 0)
    assert bench.logged(job_id) == [told]


def test_it_ends_with_its_runner(bench, program):
    program(SLEEPS)
    job_id = bench.submit()
    thread = run_in_thread(bench.supervisor(ASKS), job_id)
    other = asked_for(bench)
    bench.cancel(job_id)
    finish(thread)
    assert bench.standing(job_id)[0] == "canceled"
    wait_for(lambda: process_gone(other))


def test_it_stands_still_while_there_is_no_lease(bench, program):
    program(SLEEPS)
    short = Timing(lease=1.0, renew=0.2, look=0.1, again=0.1, cancel_grace=1.0)
    job_id = bench.submit()
    thread = run_in_thread(bench.supervisor(ASKS, timing=short), job_id)
    other = asked_for(bench)
    with database_away(bench):
        wait_for(lambda: process_state(other) == "T")
    wait_for(lambda: process_state(other) != "T")
    bench.cancel(job_id)
    finish(thread)


def test_what_it_takes_counts_as_the_jobs(tmp_path, program):
    program(SLEEPS.replace("time.sleep", "held = bytearray(os.urandom(1)) * 200_000_000; time.sleep"))
    bench = Workbench(tmp_path / "bench", job_memory_bytes=150_000_000)
    job_id = bench.submit()
    bench.supervisor(ASKS).run(job_id)
    assert bench.failure(job_id) == ("failed", "resource-limit")
    bench.close()


def test_a_second_one_beside_it_is_refused(bench, program):
    program(SLEEPS)
    job_id = bench.submit()
    bench.supervisor("for _ in 'ab': say(line='trial', folder='folder')\ntime.sleep(600)").run(job_id)
    assert "cannot be read" not in str(bench.job(job_id).error)
    assert bench.standing(job_id) == ("queued", 1, 0), "a crash as any"
