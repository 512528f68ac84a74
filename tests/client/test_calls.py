"""Calls of batches and schedules by the client, on a real service."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import quantmill
from service.client import Client
from service.contracts.regression import MaxDrop, RegressionGate
from tests.support.batches import fail, grid_body, job_of, shown, succeed
from tests.support.breaking import BreakingProxy
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.schedules import settle
from tests.support.schedules import succeed as pass_run


def grid(worker: Front, models: int = 1) -> dict[str, Any]:
    """Arguments of ``submit_batch``."""
    body = grid_body(worker, models=models)
    return {"models": body["models"], "presets": body["presets"], "calibration": body["calibration_dataset_id"]}


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
    found = client.batch(made)
    assert found.model_dump(mode="json", by_alias=True) == shown(worker, {"id": made.id})
    again = client.retry_batch(made)
    assert [member.attempts for member in again.members] == [1, 2]
    assert client.cancel_batch(made).members[1].state == "canceled"
    client.delete_batch(made)
    with pytest.raises(quantmill.NotFoundError):
        client.batch(made)


def test_what_is_refused_names_its_members(client: Client, worker: Front) -> None:
    body = worker.job_body()
    with pytest.raises(quantmill.ApiError) as caught:
        client.submit_batch(members=[body, {**body, "model_id": "mdl_none"}, {**body, "priority": 1000}])
    assert caught.value.code == "batch-refused"
    assert [member["member"] for member in caught.value.where["members"]] == [1, 2]


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
    with pytest.raises(quantmill.ApiError) as caught:
        client.change_schedule(made, {"overlap": "skip"})
    assert caught.value.code == "precondition-failed"
    assert client.pause_schedule(made.id).next_due_at is None
    assert client.resume_schedule(made.id).next_due_at == made.next_due_at
    run = client.run_schedule(made.id)
    assert run.job_id is not None
    waits = client.run_schedule(made.id)
    assert (waits.state, waits.job_id) == ("waiting", None)
    with pytest.raises(quantmill.ConflictError):
        client.run_schedule(made.id)
    pass_run(worker, run.job_id)
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
    with pytest.raises(quantmill.NotFoundError):
        client.schedule(made.id)
