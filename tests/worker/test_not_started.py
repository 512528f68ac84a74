"""A runner that never came to be says nothing of its job: it waits until the worker's installation is mended."""

from __future__ import annotations

import sys

import pytest

from tests.worker.workbench import QUICK, Workbench
from worker.sandbox import Sandbox
from worker.supervisor import Supervisor

# Written into the middle of an update: a module is not there, one does not fit another, one is half a file.
BROKEN = ("import no_such_module", "from signal import no_such_name", "exec('def half(')")
NO_SUCH_CORE = 100_000


def assert_waits(bench: Workbench, job_id: str, attempts: int) -> None:
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("queued", attempts, attempts)
    assert job.waiting["code"] == "runner-not-started"
    assert bench.events(job_id, "state")[-1].data["charged"] is False


@pytest.mark.parametrize("code", BROKEN)
def test_a_runner_that_cannot_be_imported_costs_no_attempt_however_often(bench, code):
    job_id = bench.submit()
    broken = bench.supervisor(code)
    for attempt in range(1, 5):
        assert broken.run(job_id)
        assert_waits(bench, job_id, attempt)
    assert "exit code 1" in bench.job(job_id).waiting["message"]
    assert bench.supervisor("succeed()").run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_cores_that_the_host_does_not_have_cost_no_attempt(bench):
    job_id = bench.submit()
    sandbox = Sandbox((sys.executable, "-c", "pass"), cores=(NO_SUCH_CORE,))
    no_pause = lambda attempt: 0.0  # noqa: E731
    supervisor = Supervisor(
        bench.settings, bench.database, bench.store, sandbox=sandbox, timing=QUICK, backoff_seconds=no_pause
    )
    for attempt in range(1, 5):
        assert supervisor.run(job_id)
        assert_waits(bench, job_id, attempt)
    assert "exit code 127" in bench.job(job_id).waiting["message"]


def test_the_pause_before_the_next_try_grows(bench):
    job_id = bench.submit()
    bench.supervisor(BROKEN[0], backoff_seconds=lambda attempt: 50.0 * attempt).run(job_id)
    job = bench.job(job_id)
    assert 40 < (job.not_before - job.updated_at).total_seconds() <= 60


def test_a_crash_after_the_first_line_is_a_crash(bench):
    job_id = bench.submit()
    bench.supervisor("log('hello')\nimport no_such_module").run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions, job.waiting) == ("queued", 1, 0, None)


def test_a_sigterm_before_the_runner_could_take_it_is_an_interruption(bench):
    job_id = bench.submit()
    early = bench.supervisor("os.kill(os.getpid(), signal.SIGTERM)")
    for attempt in range(1, 5):
        assert early.run(job_id)
        job = bench.job(job_id)
        assert (job.state, job.attempt, job.interruptions) == ("queued", attempt, attempt)
        with bench.database.write() as session:  # nothing was done yet: there is a pause
            session.get(type(job), job_id).not_before = job.created_at
