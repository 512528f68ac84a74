"""Batches by both clients: submitted, followed through broken streams, waited for, canceled, retried."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from service.client import ApiError, AsyncClient, Client, NotFoundError
from tests.support.batches import fail, grid_body, job_of, shown, succeed
from tests.support.breaking import BreakingProxy
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess


def grid(worker: Front, models: int = 1) -> dict[str, Any]:
    """Arguments of ``submit_batch``."""
    body = grid_body(worker, models=models)
    return {
        "models": body["models"],
        "presets": body["presets"],
        "calibration": body["calibration_dataset_id"],
    }


def test_from_a_grid_to_its_summary(client: Client, worker: Front) -> None:
    made = client.submit_batch(**grid(worker), configs=[{"seed": 7}], name="of-a-client", labels={"a": "b"}, priority=2)
    assert (made.state, made.counts.queued) == ("queued", 2)
    (listed,) = client.batches(name="of-a-client")
    assert (listed.id, listed.counts) == (made.id, made.counts)
    first, second = (member.job_id for member in made.members)
    job = client.job(first)
    assert job.config is not None
    assert (job.priority, job.labels, job.config["seed"]) == (2, {"a": "b"}, 7)
    seen: list[tuple[str, int]] = []
    ended: list[str] = []

    def wait() -> None:
        with Client(client.place.url, patience_seconds=PATIENCE_SECONDS) as own:
            ended.append(own.wait_batch(made, on_event=lambda event: seen.append((event.job_id, event.seq))).state)

    waiting = threading.Thread(target=wait)
    waiting.start()
    succeed(worker, first)
    fail(worker, second)
    waiting.join(PATIENCE_SECONDS)
    assert ended == ["failed"]
    assert sorted(seen) == sorted((job_id, seq) for job_id in (first, second) for seq in (1, 2, 3))
    assert client.wait_batch(made).failing == [1]
    again = client.retry_batch(made)
    assert [member.attempts for member in again.members] == [1, 2]
    assert client.cancel_batch(made).members[1].state == "canceled"
    client.delete_batch(made)
    with pytest.raises(NotFoundError):
        client.batch(made)


def test_what_is_refused_names_its_members(client: Client, worker: Front) -> None:
    body = worker.job_body()
    with pytest.raises(ApiError) as caught:
        client.submit_batch(members=[body, {**body, "model_id": "mdl_none"}, {**body, "priority": 1000}])
    assert caught.value.code == "batch-refused"
    assert [member["member"] for member in caught.value.where["members"]] == [1, 2]
    with pytest.raises(ApiError) as both:
        client.submit_batch(members=[body], priority=3)
    assert [problem.pointer for problem in both.value.errors] == ["/priority"]


def test_events_come_once_through_a_connection_that_breaks(proxy: BreakingProxy, client: Client, worker: Front) -> None:
    made = client.submit_batch(**grid(worker, models=2)).model_dump(mode="json")
    for member in range(4):
        succeed(worker, job_of(made, member))
    wanted = [(event.job_id, event.seq) for event in client.follow_batch(made["id"])]
    assert len(wanted) == 12
    for trouble in ({"lose_after": 300}, {"cuts_streams": True}):
        before = proxy.broken
        vars(proxy).update(trouble)
        with Client(proxy.url, patience_seconds=PATIENCE_SECONDS) as broken:
            assert [(event.job_id, event.seq) for event in broken.follow_batch(made["id"])] == wanted
        assert proxy.broken > before
    middle = [event.position for event in client.follow_batch(made["id"])][4]
    assert [(event.job_id, event.seq) for event in client.follow_batch(made["id"], after=middle)] == wanted[5:]


def test_awaited(server: ApiProcess, worker: Front) -> None:
    async def go() -> tuple[str, int]:
        async with AsyncClient(server.url) as client:
            made = await client.submit_batch(**grid(worker))
            for member in made.members:
                await anyio.to_thread.run_sync(succeed, worker, member.job_id)
            events = [event async for event in client.follow_batch(made)]
            return (await client.wait_batch(made)).state, len(events)

    assert anyio.run(go) == ("succeeded", 6)


def test_the_summary_is_that_of_the_service(client: Client, worker: Front) -> None:
    made = client.submit_batch(**grid(worker))
    succeed(worker, made.members[0].job_id)
    found = client.batch(made)
    assert found.model_dump(mode="json", by_alias=True) == shown(worker, {"id": made.id})
