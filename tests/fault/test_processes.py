"""Processes that are killed or stopped: the job is done once, by somebody, and nobody has to ask for it again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.failpoints import JOB_NAMES
from service.jobs.schemas import TERMINAL
from tests.fault.client import ADAROUND, CONFIG
from tests.fault.conftest import told
from tests.fault.harness.faults import ASKED_TO_END
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.workbench import process_gone, wait_for

pytestmark = pytest.mark.slow  # starts processes

OF_API = ("before_submit_commit", "after_submit_commit")
OF_DISPATCHER = ("after_release", "after_publish")
IN_ATTEMPT = tuple(name for name in JOB_NAMES if name not in OF_API + OF_DISPATCHER)
# Places where the success is about to be committed, or is.
LATE = ("before_succeed_commit", "after_succeed_commit")


@pytest.mark.long
@pytest.mark.parametrize("place", OF_API)
def test_an_api_killed_at_a_submission(place, installation, client, judge):
    installation.hold(place)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(client.submit_once, place)
        installation.wait_held(place)
        installation.api.kill()
        installation.release(place)
        installation.start(installation.api)
        assert first.result() is None
    job_id = client.submit(place)
    judge()
    assert installation.job(job_id).attempt == 1


@pytest.mark.long
@pytest.mark.parametrize("place", OF_DISPATCHER)
def test_everybody_killed_while_a_job_is_released(place, installation, client, judge):
    installation.hold(place)
    job_id = client.submit(place)
    installation.wait_held(place)
    for process in installation.processes:
        process.kill()
    installation.release(place)
    installation.start()
    judge()
    assert installation.job(job_id).attempt <= 1 + (place == "after_publish"), "its worker may have had it already"


@pytest.mark.parametrize(
    "place",
    [place if place == "after_runner_start" else pytest.param(place, marks=pytest.mark.long) for place in IN_ATTEMPT],
)
def test_a_worker_killed_and_a_cancel_in_an_attempt(place, installation, client, judge):
    """The killed one's lease runs out and the next worker does the job; the canceled one ends once, either way."""
    config = ADAROUND if place == "after_layer" else CONFIG
    installation.hold(place)
    killed = client.submit(f"kill-{place}", config=config)
    installation.wait_held(place)
    runners = installation.runners()
    installation.worker.kill()
    wait_for(lambda: all(map(process_gone, runners)), message="the runner has outlived its worker")
    installation.hold(place)
    installation.start(installation.worker)
    # While nobody may take the killed one yet, another is canceled at the same place.
    key = f"cancel-{place}"
    canceled = client.submit(key, config=config)
    installation.wait_held(place)
    with ThreadPoolExecutor(1) as thread:
        # In a thread: at some places the worker's transaction keeps everybody else from the row.
        asked = thread.submit(client.cancel, key, canceled)
        if place not in LATE:
            asked.result()
        installation.release(place)
        asked.result()
    judge()
    job = installation.job(killed)
    assert (job.state, job.attempt) == ("succeeded", 1 if place == "after_succeed_commit" else 2)
    assert installation.job(canceled).state in ({"succeeded", "canceled"} if place in LATE else {"canceled"})


@pytest.mark.long
@pytest.mark.parametrize("place", ["after_runner_start", "after_runner_end"])
def test_a_zombie_writes_nothing(place, client, judge, installation):
    """A worker that stood still for longer than its lease wakes up, and finds the job in other hands."""
    zombie = installation.worker
    installation.hold(place)
    job_id = client.submit()
    installation.wait_held(place)
    runners = installation.runners()
    installation.freeze(zombie)
    wait_for(lambda: all(map(process_gone, runners)), message="the runner outlived its lease")
    installation.release(place)
    installation.wait_for(
        lambda: "job.lease_expired" in installation.states_told(job_id), "the lease of the stopped worker never ran out"
    )
    zombie.resume()
    judge()
    job = installation.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert "job.fenced" in zombie.said()


@pytest.mark.long
def test_sigterm_to_everything_leaves_nothing(make_installation, tiny: Tiny):
    with make_installation() as installation, told(installation, tiny) as client:
        job_id = client.submit(config=ADAROUND)
        installation.wait_for_state(job_id, "running")
        assert set(installation.stop().values()) <= set(ASKED_TO_END)
        assert installation.leftovers() == {}
        assert installation.job(job_id).state in {"queued", "succeeded"}
        installation.start()
        installation.quiesce()
        assert installation.job(job_id).state == "succeeded"


@pytest.mark.long
def test_api_and_workers_restarted_one_after_the_other(make_installation, tiny: Tiny):
    """A new version is rolled out under a client that retries: it sees nothing of it."""
    with make_installation(workers=2, apis=2) as installation:
        with told(installation, tiny) as client:
            begun = threading.Semaphore(0)

            def one(number):
                job_id = client.submit(f"deploy-{number}")
                begun.release()
                with installation.client() as http:
                    return job_id, http.wait(job_id, timeout_seconds=3 * PATIENCE_SECONDS).state

            with ThreadPoolExecutor(4) as threads:
                ends = [threads.submit(one, number) for number in range(10)]
                begun.acquire()
                codes = {}
                for process in (*installation.apis, *installation.workers, installation.reconciler):
                    codes[process.name] = process.stop()
                    installation.start(process)
                assert set(codes.values()) <= set(ASKED_TO_END), codes
                found = dict(end.result() for end in ends)
        assert set(found.values()) <= TERMINAL
        for job_id in found:
            job = installation.job(job_id)
            assert job.attempt - job.interruptions == 1, "a shutdown was charged"
