"""The database away or locked: at a submission, and while a job runs, for less than a lease and for more."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from tests.fault.client import ADAROUND
from tests.fault.harness import LONG
from tests.fault.harness.installation import LEASE_SECONDS
from tests.support.patience import PATIENCE_SECONDS

SHORT_SECONDS = LEASE_SECONDS / 3
LONG_SECONDS = 40.0 if LONG else 2.5 * LEASE_SECONDS


def undisturbed(installation, job_id):
    """It has succeeded in its first attempt, and nothing was charged or put back on the way."""
    job = installation.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("succeeded", 1, 0)
    assert installation.states_told(job_id) == ["job.queued", "job.claimed", "job.succeeded"]


@pytest.mark.parametrize("seconds", [SHORT_SECONDS, LONG_SECONDS], ids=["shorter", "longer"])
@pytest.mark.parametrize("place", ["after_runner_start", "after_runner_end"])
def test_a_database_that_goes_away_while_a_job_runs(place, seconds, client, judge, installation):
    """The job is published once, by its first attempt: a lease that nobody could renew is taken from nobody."""
    installation.hold(place)
    job_id = client.submit()
    installation.wait_held(place)
    installation.break_database()
    installation.release(place)
    time.sleep(seconds)
    installation.mend_database()
    judge()
    assert installation.worker.alive, "the worker has not outlived the outage"
    undisturbed(installation, job_id)


def test_submissions_while_the_database_is_away(client, judge, installation):
    """503 or a late answer, never 500; the client's retries make one job each."""
    installation.break_database()
    threads = [threading.Thread(target=client.submit, args=(f"away-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(LEASE_SECONDS)
    assert httpx.get(f"{installation.url}/healthz", timeout=PATIENCE_SECONDS).status_code == 200
    installation.mend_database()
    for thread in threads:
        thread.join()
    verdict = judge()
    assert verdict.states["succeeded"] >= 4


def test_a_database_that_blinks_amid_adaround(client, judge, installation):
    """Several short outages, none as long as a lease."""
    job_id = client.submit(config=ADAROUND)
    installation.wait_for_state(job_id, "running")
    for _ in range(3):
        installation.break_database()
        time.sleep(0.3)
        installation.mend_database()
        time.sleep(0.3)
    judge()
    undisturbed(installation, job_id)


def test_a_frozen_database_is_no_lost_job(client, judge, installation):
    """PostgreSQL stands still with all its sessions, for longer than a lease."""
    if installation.servers is None:
        pytest.skip("files do not freeze")
    installation.hold("after_runner_start")
    job_id = client.submit()
    installation.wait_held("after_runner_start")
    installation.servers.postgres.freeze()
    installation.release("after_runner_start")
    time.sleep(2 * LEASE_SECONDS)
    installation.servers.postgres.thaw()
    judge()
    undisturbed(installation, job_id)
