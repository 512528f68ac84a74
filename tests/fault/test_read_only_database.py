"""A PostgreSQL that answers and takes no writes, as after a failover or with a full disk: nobody's job pays for it."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.fault.client import CONFIG
from tests.fault.harness.installation import LEASE_SECONDS
from tests.support.patience import PATIENCE_SECONDS


def test_a_running_job_waits_and_requests_are_told_to_come_back(client, judge, inputs, installation):
    if installation.servers is None:
        pytest.skip("SQLite has no such state")
    installation.hold("after_runner_start")
    job_id = client.submit()
    installation.wait_held("after_runner_start")
    installation.servers.postgres.only_read(True)
    installation.release("after_runner_start")
    refused = httpx.post(
        f"{installation.url}/v1/jobs", json={**inputs, "config": dict(CONFIG)}, timeout=PATIENCE_SECONDS
    )
    assert (refused.status_code, refused.json()["code"]) == (503, "database-unavailable")
    assert int(refused.headers["Retry-After"]) >= 1
    time.sleep(2.5 * LEASE_SECONDS)
    read = httpx.get(f"{installation.url}/v1/jobs/{job_id}", timeout=PATIENCE_SECONDS)
    assert (read.status_code, read.json()["state"]) == (200, "running")
    installation.servers.postgres.only_read(False)
    judge()
    job = installation.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("succeeded", 1, 0)
    assert "reconcile.failed" not in installation.reconciler.said()
    assert all(process.alive for process in installation.processes)
