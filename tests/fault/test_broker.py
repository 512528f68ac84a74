"""The broker away, emptied, frozen, or saying everything three times: messages are hints, the rows are what counts."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.jobs.dispatch import Dispatcher
from service.jobs.errors import DispatchError
from service.settings import Settings
from tests.fault.client import Client
from tests.fault.harness import LONG
from tests.fault.ledger import Ledger, check
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.workbench import wait_for


def broker_check(installation):
    answer = httpx.get(f"{installation.url}/readyz", timeout=PATIENCE_SECONDS)
    return answer.status_code, answer.json()["checks"]["broker"]["outcome"]


def test_jobs_are_accepted_while_the_broker_is_away(client, judge, installation):
    installation.break_broker()
    job_ids = [client.submit() for _ in range(3)]
    if installation.servers is not None:
        assert broker_check(installation) == (200, "degraded")
    judge()
    assert [installation.job(job_id).attempt for job_id in job_ids] == [1, 1, 1]


def test_a_broker_that_comes_back_empty_while_a_job_runs(client, judge, installation):
    """The job that runs is not disturbed; those that wait are sent again."""
    installation.hold("after_runner_start")
    running = client.submit()
    installation.wait_held("after_runner_start")
    waiting = [client.submit() for _ in range(2)]
    installation.lose_messages()
    installation.break_broker()
    installation.release("after_runner_start")
    installation.wait_for_state(running, "succeeded")
    judge()
    assert [installation.job(job_id).attempt for job_id in (running, *waiting)] == [1, 1, 1]


def test_lost_messages_are_sent_again(client, judge, installation):
    with installation.paused(installation.worker):
        job_ids = [client.submit() for _ in range(3)]
        installation.lose_messages()
    judge()
    assert [installation.job(job_id).attempt for job_id in job_ids] == [1, 1, 1]


def test_a_frozen_broker_holds_up_nobody(client, judge, installation):
    """It takes connections and answers nothing: submissions are answered all the same."""
    if installation.servers is None:
        pytest.skip("files do not freeze")
    redis = installation.servers.redis.process
    with installation.paused(redis):
        job_ids = [client.submit() for _ in range(6)]
    judge()
    assert [installation.job(job_id).attempt for job_id in job_ids] == [1] * 6


def test_every_message_three_times_and_two_workers(make_installation, tiny: Tiny):
    """Each job is claimed once, runs once and is published once."""
    count = 200 if LONG else 8
    with make_installation(workers=2) as installation:
        ledger = Ledger(installation.folder / "ledger.jsonl")
        client = Client(installation.url, ledger, installation.upload(tiny))
        with ThreadPoolExecutor(4) as threads:
            job_ids = list(threads.map(lambda _: client.submit(), range(count)))
        places = {"data_dir": installation.home, "database_url": installation.database_url}
        dispatcher = Dispatcher(Settings(**places, broker_url=installation.broker_url))
        for _ in range(2):
            for job_id in job_ids:
                send(dispatcher, job_id)
        installation.quiesce(seconds=1200)
        client.close()
        ledger.close()
        dispatcher.close()
        verdict = check(ledger, installation.database, installation.store)
        assert verdict.clean, verdict.told()
        assert [installation.job(job_id).attempt for job_id in job_ids] == [1] * count
        claimed = [worker.said().count("job.claimed") for worker in installation.workers]
        assert all(claimed), "a worker had nothing to do"


def send(dispatcher, job_id):
    """One message, however busy the machine is."""

    def sent():
        try:
            dispatcher.publish(job_id, "cpu")
        except DispatchError:
            time.sleep(0.1)
            return False
        return True

    wait_for(sent)
