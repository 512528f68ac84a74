"""Calls of batches and schedules by the client, on a real service."""

from __future__ import annotations

from typing import Any

import pytest

import quantmill
from service.client import Client
from service.contracts.regression import MaxDrop, RegressionGate
from tests.support.batches import grid_body, job_of, succeed
from tests.support.breaking import BreakingProxy
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.schedules import settle
from tests.support.schedules import succeed as pass_run


def grid(worker: Front, models: int = 1) -> dict[str, Any]:
    """Arguments of ``submit_batch``."""
    body = grid_body(worker, models=models)
    return {"models": body["models"], "presets": body["presets"], "calibration": body["calibration_dataset_id"]}


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


def test_a_schedule_is_changed_as_it_was_seen_and_runs_one_after_the_other(client: Client, worker: Front) -> None:
    gate = RegressionGate(clauses=(MaxDrop(kind="max_drop", metric="top1", max_drop=0.5),))
    made = client.create_schedule("life", "0 3 * * 1-5", worker.job_body(), timezone="Asia/Tokyo", gate=gate)
    assert (made.cron, made.gate) == ("0 3 * * 1-5", gate)
    assert client.schedule(made.id) == made.model_copy(update={"warnings": []})
    changed = client.change_schedule(made, {"overlap": "queue", "promote_to": "nightly"})
    assert (changed.overlap, changed.next_due_at) == ("queue", made.next_due_at)
    with pytest.raises(quantmill.ApiError) as caught:
        client.change_schedule(made, {"overlap": "skip"})
    assert caught.value.code == "precondition-failed"
    run, waits = client.run_schedule(made.id), client.run_schedule(made.id)
    assert (waits.state, waits.job_id) == ("waiting", None)
    with pytest.raises(quantmill.ConflictError):
        client.run_schedule(made.id)
    pass_run(worker, str(run.job_id))
    assert settle(worker.app) == 1
    assert client.schedule_run(made.id, run.id).promoted_to == "nightly"
    page = client.schedule_runs(made.id, limit=1)
    assert ([one.id for one in page.items], page.has_more) == ([waits.id], True)
