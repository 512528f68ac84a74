"""A process that is killed, and a job that is canceled, at each of the named places."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from service.failpoints import JOB_NAMES
from tests.fault.client import ADAROUND, CONFIG
from tests.worker.workbench import process_gone, wait_for

OF_API = ("before_submit_commit", "after_submit_commit", "after_publish")
OF_RUNNER = ("after_layer",)
OF_WORKER = tuple(name for name in JOB_NAMES if name not in OF_API + OF_RUNNER)
# Places where the success is about to be committed, or is.
LATE = ("before_succeed_commit", "after_succeed_commit")
IN_ATTEMPT = tuple(name for name in JOB_NAMES if name not in OF_API)


def config_for(place):
    return ADAROUND if place in OF_RUNNER else CONFIG


@pytest.mark.parametrize("place", OF_API)
def test_an_api_killed_at_a_submission(place, installation, client, judge):
    """The client sends the same request again under its key: one job, and it is run once."""
    installation.hold(place)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(client.submit_once, place)
        installation.wait_held(place)
        installation.api.kill()
        installation.release(place)
        installation.start(installation.api)
        if place != "after_publish":  # the answer may have gone out before the message did
            assert first.result() is None
    job_id = client.submit(place)
    judge()
    assert installation.job(job_id).attempt == 1


@pytest.mark.parametrize("place", IN_ATTEMPT)
def test_a_worker_killed_and_a_cancel_in_an_attempt(place, installation, client, judge):
    """The killed one's lease runs out and the next worker does the job; the canceled one ends once, either way."""
    installation.hold(place)
    killed = client.submit(f"kill-{place}", config=config_for(place))
    installation.wait_held(place)
    runners = installation.runners()
    installation.worker.kill()
    wait_for(lambda: all(map(process_gone, runners)), message="the runner has outlived its worker")
    installation.hold(place)
    installation.start(installation.worker)
    # While nobody may take the killed one yet, another is canceled at the same place.
    key = f"cancel-{place}"
    canceled = client.submit(key, config=config_for(place))
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


def test_a_worker_killed_after_a_cancel_leaves_a_canceled_job(installation, client, judge):
    installation.hold("after_runner_start")
    job_id = client.submit("cancel-kill")
    installation.wait_held("after_runner_start")
    client.cancel("cancel-kill", job_id)
    installation.worker.kill()
    judge()
    assert installation.job(job_id).state == "canceled"
