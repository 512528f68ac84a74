"""Two API servers and three workers on PostgreSQL, Redis and a bucket, and on no disk that two of them share."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.fault.client import Client
from tests.fault.harness.installation import Installation
from tests.fault.harness.servers import Servers, servers_trouble
from tests.fault.ledger import Ledger, check
from tests.support.s3_faults import FaultyBucket
from tests.support.s3_server import Bucket
from tests.support.services import require
from tests.support.tiny import Tiny, make_tiny
from tests.support.webhooks import PEPPER

pytestmark = [pytest.mark.slow, pytest.mark.long]
JOBS = 12
AWAY_SECONDS = 60


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    (tmp_path / "tiny").mkdir()
    return make_tiny(tmp_path / "tiny")


@pytest.fixture
def installation(s3: Bucket, proxy: FaultyBucket, bucket_url: str, tmp_path: Path) -> Iterator[Installation]:
    require(servers_trouble())
    variables = s3.variables(proxy.port) | {"QUANTMILL_KEY_PEPPER": PEPPER}
    with ExitStack() as stack:
        servers = stack.enter_context(closing(Servers()))
        folder = tmp_path / "installation"
        yield stack.enter_context(
            Installation(folder, servers=servers, apis=2, workers=3, bucket_url=bucket_url, **variables)
        )


@pytest.fixture
def ledger(installation: Installation) -> Iterator[Ledger]:
    with closing(Ledger(installation.folder / "ledger.jsonl")) as found:
        yield found


def judge(installation: Installation, ledger: Ledger) -> None:
    installation.heal()
    installation.quiesce()
    found = check(ledger, installation.database, installation.store, leftovers={})
    print(found, dict(found.states))
    assert found.clean, f"{found.told()}\n{installation.tail()}"
    assert found.states["succeeded"] >= JOBS


def submit_all(client: Client) -> list[str]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: client.submit(), range(JOBS)))


def test_workers_killed_while_they_upload_results(installation: Installation, ledger: Ledger, tiny: Tiny) -> None:
    with closing(Client(installation.url, ledger, installation.upload(tiny))) as client:
        for place in ("before_artifact_fsync", "after_artifact_rename"):
            installation.hold(place)
            job_ids = submit_all(client) if place == "before_artifact_fsync" else [client.submit()]
            installation.wait_held(place)
            for worker in installation.workers:
                worker.send(signal.SIGKILL)
                worker.wait()
            installation.release(place)
            installation.start()
            for job_id in job_ids:
                installation.wait_for_state(job_id, "succeeded")
        judge(installation, ledger)
    shared = {os.path.realpath(path) for path in installation.home.iterdir()}
    assert len(shared) == len(installation.processes) + 2, "every process has its own folder, and the test two"


def test_a_bucket_that_is_away_for_a_minute(
    installation: Installation, ledger: Ledger, tiny: Tiny, proxy: FaultyBucket
) -> None:
    """Jobs are taken meanwhile, and end once it is back; nobody's attempt is charged."""
    with closing(Client(installation.url, ledger, installation.upload(tiny))) as client:
        installation.hold("after_runner_end")
        first = client.submit()
        installation.wait_held("after_runner_end")
        with proxy.broken("unavailable"), ThreadPoolExecutor(1) as pool:
            installation.release("after_runner_end")
            submitted = pool.submit(submit_all, client)
            away = re.compile("storage.away|storage.fault")
            installation.wait_for(
                lambda: any(away.search(worker.said()) for worker in installation.workers), "no worker noticed"
            )
            time.sleep(AWAY_SECONDS)
            job_ids = [first, *submitted.result()]
            assert all(installation.job(job_id).state != "failed" for job_id in job_ids)
        for job_id in job_ids:
            job = installation.wait_for_state(job_id, "succeeded")
            assert job.attempt - job.interruptions == 1
        judge(installation, ledger)
