"""The database or the broker away, frozen, emptied or refusing: messages are hints, and nobody's job pays for it."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.dispatch.broker import TaskSender
from service.dispatch.release import Released
from service.jobs.errors import DispatchError
from service.settings import Settings
from tests.fault.client import CONFIG
from tests.fault.conftest import told
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.workbench import wait_for

pytestmark = pytest.mark.slow  # starts processes


def undisturbed(installation, *job_ids):
    """They have succeeded in their first attempts, and nothing was charged or put back on the way."""
    for job_id in job_ids:
        job = installation.job(job_id)
        assert (job.state, job.attempt, job.interruptions) == ("succeeded", 1, 0)
        assert installation.states_told(job_id) == ["job.queued", "job.claimed", "job.succeeded"]


def begun(client, installation, place="after_runner_start"):
    installation.hold(place)
    job_id = client.submit()
    installation.wait_held(place)
    return job_id


def outlast_a_lease(installation, *, hangs: bool) -> None:
    """Wait until the worker has told that it tried in vain: once where each try hangs, else twice a second."""
    words, times = "the lease is over|not_concluded|database_away", 1 if hangs else 8
    installation.wait_for(
        lambda: len(re.findall(words, installation.worker.said())) >= times, "the worker noticed nothing"
    )


@pytest.mark.parametrize(
    ("place", "longer"),
    [
        ("after_runner_start", True),
        pytest.param("after_runner_start", False, marks=pytest.mark.long),
        pytest.param("after_runner_end", True, marks=pytest.mark.long),
    ],
)
def test_a_database_that_goes_away_while_a_job_runs(place, longer, client, judge, installation):
    """The job is published once, by its first attempt: a lease that nobody could renew is taken from nobody."""
    job_id = begun(client, installation, place)
    installation.break_database()
    installation.release(place)
    if longer:
        outlast_a_lease(installation, hangs=installation.servers is None)
    installation.mend_database()
    judge()
    assert installation.worker.alive, "the worker has not outlived the outage"
    undisturbed(installation, job_id)


@pytest.mark.long
def test_a_frozen_database_is_no_lost_job(client, judge, installation):
    needs_broker(installation)
    job_id = begun(client, installation)
    installation.servers.postgres.freeze()
    installation.release("after_runner_start")
    outlast_a_lease(installation, hangs=True)
    installation.servers.postgres.thaw()
    judge()
    undisturbed(installation, job_id)


@pytest.mark.long
def test_submissions_while_the_database_is_away(client, judge, installation):
    """503 or a late answer, never 500; the client's retries make one job each."""
    installation.break_database()
    threads = [threading.Thread(target=client.submit, args=(f"away-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert httpx.get(f"{installation.url}/healthz", timeout=PATIENCE_SECONDS).status_code == 200
    threads[0].join(2.0)
    assert all(thread.is_alive() for thread in threads)
    installation.mend_database()
    for thread in threads:
        thread.join()
    assert judge().states["succeeded"] >= 4


@pytest.mark.long
def test_a_database_that_takes_no_writes(client, judge, inputs, installation):
    """As after a failover: a running job waits, and requests are told to come back."""
    if installation.servers is None:
        pytest.skip("SQLite has no such state")
    job_id = begun(client, installation)
    installation.servers.postgres.only_read(True)
    installation.release("after_runner_start")
    body = {**inputs, "config": dict(CONFIG)}
    refused = httpx.post(f"{installation.url}/v1/jobs", json=body, timeout=PATIENCE_SECONDS)
    assert (refused.status_code, refused.json()["code"]) == (503, "database-unavailable")
    assert int(refused.headers["Retry-After"]) >= 1
    outlast_a_lease(installation, hangs=False)
    read = httpx.get(f"{installation.url}/v1/jobs/{job_id}", timeout=PATIENCE_SECONDS)
    assert (read.status_code, read.json()["state"]) == (200, "running")
    installation.servers.postgres.only_read(False)
    judge()
    undisturbed(installation, job_id)
    assert "reconcile.failed" not in installation.reconciler.said()
    assert all(process.alive for process in installation.processes)


def test_jobs_are_accepted_while_the_broker_is_away(client, judge, installation):
    needs_broker(installation)
    installation.break_broker()
    job_ids = [client.submit() for _ in range(2)]
    answer = httpx.get(f"{installation.url}/readyz", timeout=PATIENCE_SECONDS)
    assert (answer.status_code, answer.json()["checks"]["broker"]["outcome"]) == (200, "degraded")
    judge()
    undisturbed(installation, *job_ids)


@pytest.mark.long
def test_a_broker_that_comes_back_empty_while_a_job_runs(client, judge, installation):
    needs_broker(installation)
    running = begun(client, installation)
    waiting = [client.submit() for _ in range(2)]
    installation.lose_messages()
    installation.break_broker()
    installation.release("after_runner_start")
    installation.wait_for_state(running, "succeeded")
    judge()
    undisturbed(installation, running, *waiting)


@pytest.mark.long
def test_a_frozen_broker_holds_up_nobody(client, judge, installation):
    """It takes connections and answers nothing: submissions are answered all the same."""
    needs_broker(installation)
    with installation.paused(installation.servers.redis.process):
        job_ids = [client.submit() for _ in range(6)]
    judge()
    undisturbed(installation, *job_ids)


@pytest.mark.long
def test_every_message_three_times_and_two_workers(make_installation, tiny: Tiny):
    with make_installation(workers=2) as installation:
        needs_broker(installation)
        with told(installation, tiny) as client, ThreadPoolExecutor(4) as threads:
            job_ids = list(threads.map(lambda _: client.submit(), range(8)))
            sender = TaskSender(Settings(data_dir=installation.home, broker_url=installation.broker_url))
            for _ in range(2):
                for job_id in job_ids:
                    wait_for(lambda job_id=job_id: sent(sender, job_id))
            sender.close()
        undisturbed(installation, *job_ids)
        claimed = [process.said().count("job.claimed") for process in installation.workers]
        assert all(claimed), "a worker had nothing to do"


def needs_broker(installation) -> None:
    if installation.servers is None:
        pytest.skip("there is no broker")


def sent(sender, job_id) -> bool:
    """True once the broker, however busy, has taken a message."""
    try:
        sender.send(Released(job_id, "default", "quantize", "cpu", "short", 1, None))
    except DispatchError:
        return False
    return True
