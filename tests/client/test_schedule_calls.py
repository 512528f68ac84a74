"""Calls of schedules by both clients, on a real service."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from service.client import ApiError, AsyncClient, Client, ConflictError, NotFoundError
from service.contracts.regression import MaxDrop, RegressionGate
from tests.support.front import Front
from tests.support.schedules import settle, succeed
from tests.support.server import ApiProcess


@pytest.fixture
def template(worker: Front) -> dict[str, Any]:
    return worker.job_body()


def test_a_schedules_life_blocking(client: Client, worker: Front, template: dict[str, Any]) -> None:
    gate = RegressionGate(clauses=(MaxDrop(kind="max_drop", metric="top1", max_drop=0.5),))
    made = client.create_schedule("life", "0 3 * * 1-5", template, timezone="Asia/Tokyo", gate=gate)
    assert (made.cron, made.gate, made.template["model_id"]) == ("0 3 * * 1-5", gate, template["model_id"])
    assert client.schedule(made.id) == made.model_copy(update={"warnings": []})
    assert made.id in [one.id for one in client.schedules()]
    changed = client.change_schedule(made, {"overlap": "queue", "promote_to": "nightly"})
    assert (changed.overlap, changed.promote_to, changed.next_due_at) == ("queue", "nightly", made.next_due_at)
    with pytest.raises(ApiError) as caught:
        client.change_schedule(made, {"overlap": "skip"})
    assert caught.value.code == "precondition-failed"
    assert client.pause_schedule(made.id).next_due_at is None
    assert client.resume_schedule(made.id).next_due_at == made.next_due_at
    run = client.run_schedule(made.id)
    assert run.job_id is not None
    waits = client.run_schedule(made.id)
    assert (waits.state, waits.job_id) == ("waiting", None)
    with pytest.raises(ConflictError):
        client.run_schedule(made.id)
    succeed(worker, run.job_id)
    assert settle(worker.desk) == 1
    done = client.schedule_run(made.id, run.id)
    assert (done.state, done.promoted_to) == ("passed", "nightly")
    scheduled = client.job(run.job_id).scheduled
    assert scheduled is not None
    assert (scheduled.run_id, scheduled.state) == (run.id, "passed")
    page = client.schedule_runs(made.id, limit=1)
    assert ([one.id for one in page.items], page.has_more) == ([waits.id], True)
    assert [one.id for one in client.schedule_runs(made.id, state="passed").items] == [run.id]
    client.delete_schedule(made.id)
    with pytest.raises(NotFoundError):
        client.schedule(made.id)


def test_a_schedule_awaited(server: ApiProcess, template: dict[str, Any]) -> None:
    async def go() -> tuple[str, list[str]]:
        async with AsyncClient(server.url) as client:
            body = {"idempotency_key": "one-of-these-calls"}
            first = await client.create_schedule("awaited", "0 4 * * *", template, **body)
            again = await client.create_schedule("awaited", "0 4 * * *", template, **body)
            assert first == again
            found = [one.id async for one in client.schedules()]
            await client.delete_schedule(first.id)
            return first.id, found

    made, found = anyio.run(go)
    assert found.count(made) == 1
