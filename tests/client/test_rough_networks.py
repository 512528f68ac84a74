"""What the clients get through: connections that break, streams that are cut, answers that are lost, and limits."""

from __future__ import annotations

import hashlib
import secrets
import threading
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

import quantmill
from service.client import Client
from service.contracts.quota import Quota
from service.jobs import events, transitions
from service.jobs.outcome import QuantizeOutcome
from service.principal import COMMAND_LINE, DEFAULT_TENANT, Principal
from service.quotas import service as quotas
from tests.api.serving import Served
from tests.support.breaking import BreakingProxy
from tests.support.front import Front, make_report
from tests.support.patience import PATIENCE_SECONDS

MIB = 1024 * 1024
BREAKS = [3 * MIB, 5 * MIB, 4 * MIB]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file that no other test sends: what the service has already does not travel."""
    path = tmp_path / "large.npz"
    path.write_bytes(secrets.token_bytes(MIB) * 24)
    return path


def is_whole(server: Served, upload_id: str, path: Path) -> None:
    shown = httpx.get(f"{server.url}/v1/uploads/{upload_id}").json()
    assert (shown["state"], shown["sha256"]) == ("complete", hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.parametrize("awaited", [False, True])
def test_an_upload_gets_through_three_broken_connections(
    server: Served, proxy: BreakingProxy, large: Path, awaited: bool
) -> None:
    proxy.breaks = list(BREAKS)
    told: list[int] = []

    async def push() -> str:
        async with quantmill.AsyncClient(proxy.url, patience_seconds=PATIENCE_SECONDS) as client:
            return (await client.upload_file(large, progress=lambda sent, total: told.append(sent))).id

    if awaited:
        upload_id = anyio.run(push)
    else:
        with Client(proxy.url, patience_seconds=PATIENCE_SECONDS) as client:
            upload_id = client.upload_file(large, progress=lambda sent, total: told.append(sent)).id
    assert (proxy.broken, proxy.breaks) == (3, [])
    assert told[-1] == large.stat().st_size
    is_whole(server, upload_id, large)


def test_a_proxy_that_takes_no_large_body_gets_smaller_ones(server: Served, proxy: BreakingProxy, large: Path) -> None:
    proxy.most_bytes = 5 * MIB
    with Client(proxy.url, patience_seconds=PATIENCE_SECONDS) as client:
        upload = client.upload_file(large)
        is_whole(server, upload.id, large)
        assert proxy.refused == 3  # of 24, 12 and 6 MiB; 3 get through, and more are not tried again
        proxy.most_bytes = 0
        large.write_bytes(large.read_bytes()[::-1])
        with pytest.raises(quantmill.TooLargeError) as caught:
            client.upload_file(large)
    assert caught.value.code == "http-413"


def test_a_download_goes_on_where_it_broke_off(proxy: BreakingProxy, worker: Front, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 4 * 1024 * 8
    job_id = worker.succeeded_job(payload)
    with Client(proxy.url, patience_seconds=PATIENCE_SECONDS) as client:
        (artifact,) = (item for item in client.artifacts(job_id) if item.kind == "model")
        proxy.lose_after = 3 * MIB
        client.download(job_id, tmp_path / "q.onnx")
    assert proxy.broken == 1
    assert (tmp_path / "q.onnx").read_bytes() == payload
    assert artifact.sha256 == hashlib.sha256(payload).hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["q.onnx"]


def test_a_lost_answer_makes_no_second_job(proxy: BreakingProxy, worker: Front, client: Client) -> None:
    body = worker.job_body()
    before = len(list(client.jobs()))
    with Client(proxy.url, patience_seconds=PATIENCE_SECONDS) as shaky:
        proxy.lose_answers = 1
        job = shaky.submit(model=body["model_id"], calibration=body["calibration_dataset_id"])
    assert proxy.broken == 1
    assert len(list(client.jobs())) == before + 1
    assert client.job(job).state == "queued"


def end_later(worker: Front, job_id: str) -> None:
    """Claim the job, write to its log and end it, while somebody follows."""
    attempt = worker.claim(job_id).attempt
    with worker.app.database.write() as session:
        events.append(session, job_id, attempt, "log", {"message": "half way", "level": "info"})
    artifact = worker.kept("model", "q.onnx", b"quantized")
    with worker.app.database.write() as session:
        assert transitions.succeed(session, job_id, attempt, result=QuantizeOutcome(make_report("pass"), (artifact,)))


NAMES = ["job.queued", "job.claimed", None, "job.succeeded"]


def told(event: Any) -> tuple[int, str | None]:
    return event.seq, event.data.get("name")


@pytest.mark.parametrize("how", ["followed", "awaited", "waited for"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_job_is_followed_also_where_streams_are_cut(proxy: BreakingProxy, worker: Front, cut: bool, how: str) -> None:
    proxy.cuts_streams = cut
    job_id = worker.new_job()
    threading.Timer(0.1, end_later, (worker, job_id)).start()
    seen: list[tuple[int, str | None]] = []

    async def follow() -> str:
        async with quantmill.AsyncClient(proxy.url, patience_seconds=PATIENCE_SECONDS) as client:
            seen.extend([told(event) async for event in client.follow(job_id)])
            return (await client.wait_succeeded(job_id)).state

    with Client(proxy.url, patience_seconds=PATIENCE_SECONDS) as client:
        if how == "awaited":
            assert anyio.run(follow) == "succeeded"
        elif how == "followed":
            seen.extend(told(event) for event in client.follow(job_id))
        else:
            job = client.wait(job_id, on_event=lambda event: seen.append(told(event)))
            assert job.state == "succeeded"
    assert seen == list(enumerate(NAMES, start=1))
    assert bool(proxy.broken) is cut


@pytest.mark.parametrize("cut", [False, True])
def test_waiting_with_events_ends_in_time(proxy: BreakingProxy, worker: Front, cut: bool) -> None:
    proxy.cuts_streams = cut
    job_id = worker.new_job()
    seen: list[int] = []
    with Client(proxy.url) as client, pytest.raises(quantmill.WaitTimeoutError):
        client.wait(job_id, on_event=lambda event: seen.append(event.seq), timeout_seconds=0.5)
    assert seen == [1]


def test_a_quota_is_told_with_the_time_to_wait(
    client: Client, server: Served, worker: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(**limits: float) -> None:
        with worker.app.database.write() as session:
            by = Principal(DEFAULT_TENANT, COMMAND_LINE, "operator")
            quotas.set_quota(session, by, DEFAULT_TENANT, Quota.model_validate(limits))

    monkeypatch.setattr(quotas, "_LATER_SECONDS", 1.0)
    body = worker.job_body()
    inputs = {"model": body["model_id"], "calibration": body["calibration_dataset_id"]}
    limit(jobs_queued=0)
    with Client(server.url, patience_seconds=0.5) as hasty, pytest.raises(quantmill.QuotaExceededError) as caught:
        hasty.submit(**inputs)
    assert (caught.value.code, caught.value.status) == ("quota-exceeded", 429)
    assert caught.value.retry_after_seconds is not None
    assert caught.value.retry_after_seconds >= 1
    assert caught.value.where["quota"] == "jobs_queued"
    assert caught.value.request_id
    assert isinstance(caught.value, quantmill.RateLimitedError)
    # within its patience a client waits for room
    threading.Timer(0.1, limit).start()
    assert client.submit(**inputs).state == "queued"


def test_what_may_have_been_done_is_not_repeated(proxy: BreakingProxy) -> None:
    """A POST without a key, whose answer is lost: nobody knows whether it was done."""
    with Client(proxy.url, patience_seconds=PATIENCE_SECONDS) as client:
        proxy.lose_answers = 1
        with pytest.raises(quantmill.ServerUnreachableError):
            client._driver.run(client._json("POST", "/v1/jobs", json={}))
    assert proxy.broken == 1
