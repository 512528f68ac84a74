"""Batches over HTTP: a grid of jobs or a list of them, all or none, one summary. On both databases."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import func, select

from service.contracts.quota import Quota
from service.jobs import transitions
from service.principal import COMMAND_LINE, DEFAULT_TENANT, Principal
from service.quotas import service as quotas
from service.tables import Batch, BatchMember, Job
from tests.support.batches import fail, grid_body, job_of, shown, submitted, succeed
from tests.support.front import Front, pointers, problem, taken
from tests.support.patience import PATIENCE_SECONDS

BY = Principal(DEFAULT_TENANT, COMMAND_LINE, "operator")


def stored(front: Front) -> tuple[int, int, int]:
    """Batches, members and quantize jobs that there are."""
    with front.app.database.read() as session:
        counts = [session.scalar(select(func.count()).select_from(table)) or 0 for table in (Batch, BatchMember)]
        jobs = session.scalar(select(func.count()).select_from(Job).where(Job.kind == "quantize")) or 0
    return counts[0], counts[1], jobs


@pytest.mark.both_databases
def test_a_grid_is_every_model_by_every_preset_by_every_config(front: Front) -> None:
    body = grid_body(front, configs=[{}, {"seed": 7}], name="nightly", labels={"run": "1"}, priority=3)
    answer = front.http.post("/v1/batches", json=body)
    assert answer.status_code == 202, answer.text
    batch = answer.json()
    assert answer.headers["location"] == batch["links"]["self"] == f"/v1/batches/{batch['id']}"
    wanted = [(m, p, c) for m in body["models"] for p in body["presets"] for c in (0, 1)]
    assert [(m["model"], m["preset"], m["config"]) for m in batch["members"]] == wanted
    assert [m["member"] for m in batch["members"]] == list(range(8))
    assert (batch["state"], batch["counts"]["total"], batch["counts"]["queued"]) == ("queued", 8, 8)
    assert batch["grid"] == {"models": body["models"], "presets": body["presets"], "configs": 2}
    for member, (model, preset, config) in zip(batch["members"], wanted, strict=True):
        job = front.http.get(f"/v1/jobs/{member['job_id']}").json()
        assert (job["model_id"], job["config"]["preset"], job["config"]["seed"]) == (model, preset, 7 if config else 0)
        assert (job["name"], job["labels"], job["priority"]) == ("nightly", {"run": "1"}, 3)
    again = shown(front, batch)
    assert again == batch


def test_a_list_is_of_requests_for_jobs_and_a_grid_may_be_of_configs_alone(front: Front) -> None:
    body = grid_body(front, models=1, presets=(), configs=[{"preset": "xint8"}, {}])
    assert [(m["preset"], m["config"]) for m in submitted(front, body)["members"]] == [("xint8", 0), ("int8", 1)]
    members = [front.job_body(name="one"), front.job_body(name="two", config={"preset": "xint8"}, device="cpu")]
    batch = submitted(front, {"name": "both", "members": members})
    assert batch["grid"] is None
    names = [front.http.get(f"/v1/jobs/{m['job_id']}").json()["name"] for m in batch["members"]]
    assert names == ["one", "two"]
    assert [m["model"] for m in batch["members"]] == [body["model_id"] for body in members]
    # a reference means the same for all members
    batch = submitted(front, {**grid_body(front, models=0), "models": ["tiny@latest"]})
    assert {m["model"] for m in batch["members"]} == {"tiny@latest"}
    assert {m["model_id"] for m in batch["members"]} == {members[1]["model_id"]}


def test_all_members_that_are_wrong_are_told_at_once_and_none_is_stored(front: Front) -> None:
    good = front.job_body()
    before = stored(front)
    members = [
        good,
        {**good, "model_id": "mdl_none"},
        {**good, "config": {"activation": {"dtype": "int7"}}},
        {**good, "calibration_dataset_id": front.rejected_dataset()},
        {**good, "config": {"format": "quark", "config": {"global_quant_config": {"nothing": 1}}}},
    ]
    told = problem(front.http.post("/v1/batches", json={"members": members}), 422, "batch-refused")
    assert [member["member"] for member in told["where"]["members"]] == [1, 2, 3, 4]
    codes = [member["code"] for member in told["where"]["members"]]
    assert (codes[0], codes[2]) == ("model-not-found", "dataset-rejected")
    assert {pointer.split("/")[2] for pointer in pointers(told)} == {"1", "2", "3", "4"}
    places = ("1/model_id", "2/config/activation/dtype", "3/calibration_dataset_id")
    assert {f"/members/{place}" for place in places} <= set(pointers(told))
    assert all(error["message"].startswith(f"member {error['pointer'].split('/')[2]}: ") for error in told["errors"])
    assert stored(front) == before


def test_problems_of_a_grid_point_at_what_was_multiplied(front: Front) -> None:
    body = grid_body(front, models=1, configs=[{}, {"activation": {"dtype": "int7"}}])
    body["models"].append("nobody@3")
    told = problem(front.http.post("/v1/batches", json=body), 422, "batch-refused")
    # model 0: presets 0, 1 by the bad config; model 1: all
    assert [member["member"] for member in told["where"]["members"]] == [1, 3, 4, 5, 6, 7]
    assert set(pointers(told)) == {"/configs/1/activation/dtype", "/models/1"}
    unknown = {**grid_body(front, models=1), "presets": ["int8", "int9"]}
    told = problem(front.http.post("/v1/batches", json=unknown), 422, "batch-refused")
    assert set(pointers(told)) == {"/presets/1"}
    without = {"models": [front.ready_model()], "presets": ["int8"]}
    told = problem(front.http.post("/v1/batches", json=without), 422, "batch-refused")
    assert told["where"]["members"][0]["member"] == 0


def test_what_is_no_batch_is_refused(front: Front) -> None:
    int8 = {"models": ["a@1"], "presets": ["int8"]}
    bodies: list[tuple[dict[str, Any], str]] = [
        ({}, ""),
        ({"presets": ["int8"]}, ""),
        ({"models": ["a@1"], "members": [{}]}, "/models"),
        ({"members": [{}], "priority": 3}, "/priority"),
        ({"models": ["a@1"] * 11, "presets": ["int8"] * 10}, ""),
        ({**int8, "configs": [{"preset": "xint8"}]}, "/configs/0/preset"),
        ({**int8, "configs": [{"format": "quark"}]}, "/configs/0/format"),
        ({"models": ["a@1"] * 101}, "/models"),
        ({"members": [{}] * 101}, "/members"),
        ({"models": ["a@1"], "model": "a@2"}, "/model"),
        ({"members": [1]}, "/members/0"),
    ]
    for body, pointer in bodies:
        told = problem(front.http.post("/v1/batches", json=body), 422, "invalid-request")
        assert pointer in pointers(told)


def test_configs_are_bounded_as_often_as_they_are_used(front: Front) -> None:
    config = {"exclude": [{"names": ["n" * 4000] * 100}]}
    body = {"models": ["a@1"] * 90, "configs": [config]}
    told = problem(front.http.post("/v1/batches", json=body), 422, "invalid-request")
    assert pointers(told) == ["/configs"]
    deep: Any = {}
    for _ in range(900):
        deep = {"a": deep}
    told = problem(front.http.post("/v1/batches", json={"members": [deep]}), 422, "batch-refused")
    assert told["where"]["members"][0]["member"] == 0


@pytest.mark.both_databases
@pytest.mark.parametrize("name", ["jobs_queued", "jobs_per_day"])
def test_the_quota_is_for_all_or_none(front: Front, name: str) -> None:
    with front.app.database.write() as session:
        quotas.set_quota(session, BY, DEFAULT_TENANT, Quota.model_validate({name: 3}))
    body = grid_body(front)
    before = stored(front)
    told = problem(front.http.post("/v1/batches", json=body), 429, "quota-exceeded")
    assert (told["where"]["quota"], told["where"]["used"]) == (name, 0)
    assert "4 more" in told["detail"]
    assert stored(front) == before
    assert len(submitted(front, {**body, "presets": ["int8"]})["members"]) == 2


def test_reused_jobs_are_members_but_not_the_batches_own(front: Front) -> None:
    body = grid_body(front, models=1)
    job = front.new_job(
        model_id=body["models"][0], calibration_dataset_id=body["calibration_dataset_id"], config={"preset": "int8"}
    )
    batch = submitted(front, {**body, "presets": ["int8", "xint8", "xint8"], "reuse": True})
    assert [m["reused"] for m in batch["members"]] == [True, False, False]
    assert job_of(batch, 0) == job
    assert job_of(batch, 1) == job_of(batch, 2), "equal members have one job"
    canceled = taken(front.http.post(f"/v1/batches/{batch['id']}/cancel"), 202)
    assert [m["state"] for m in canceled["members"]] == ["queued", "canceled", "canceled"]


@pytest.mark.both_databases
def test_one_summary_of_what_became_of_its_jobs(front: Front) -> None:
    batch = submitted(front, grid_body(front, presets=("int8", "xint8", "bf16"), name="nightly"))
    path = f"/v1/batches/{batch['id']}"
    seen = {"If-None-Match": front.http.get(path).headers["etag"]}
    assert front.http.get(path, headers=seen).status_code == 304
    succeed(front, job_of(batch, 0), drop=0.5, size_bytes=900)
    assert shown(front, batch)["state"] == "running"
    succeed(front, job_of(batch, 1), drop=0.1, size_bytes=800)
    succeed(front, job_of(batch, 2), drop=0.0, verdict="fail")
    succeed(front, job_of(batch, 3), drop=0.3, size_bytes=700)
    succeed(front, job_of(batch, 4), drop=0.3, size_bytes=600)
    assert front.http.get(path, headers=seen).status_code == 200
    fail(front, job_of(batch, 5))
    ended = front.http.get(f"{path}?wait=20").json()
    assert ended["state"] == "failed"
    assert ended["counts"] == {
        "total": 6, "queued": 0, "running": 0, "canceling": 0, "succeeded": 5, "failed": 1, "canceled": 0, "gone": 0,
    }  # fmt: skip
    assert ended["failing"] == [5]
    assert ended["members"][5]["error"]["code"] == "engine-error"
    best = ended["best"]
    assert [(b["member"], b["metric"], b["drop"], b["size_bytes"]) for b in best] == [
        (1, "top1", 0.1, 800),
        (4, "top1", 0.3, 600),
    ], "of what the gate refuses nothing is best; of equals it is the smaller"
    assert ended["members"][0]["figures"]["metrics"][0]["drop"] == 0.5
    assert ended["started_at"] <= ended["finished_at"]
    assert ended["members"][0]["seconds"] >= 0
    submitted(front, grid_body(front, models=1, name="other"))
    (listed,) = front.http.get("/v1/batches?name=nightly").json()["items"]
    assert (listed["id"], listed["state"], listed["counts"]) == (batch["id"], "failed", ended["counts"])
    problem(front.http.get("/v1/batches?state=queued"), 422, "invalid-request")


def test_a_job_that_was_deleted_counts_as_gone(front: Front) -> None:
    batch = submitted(front, grid_body(front, models=1))
    succeed(front, job_of(batch, 0))
    before = front.http.get(f"/v1/batches/{batch['id']}").headers["etag"]
    assert front.http.delete(f"/v1/jobs/{job_of(batch, 0)}").status_code == 204
    answer = front.http.get(f"/v1/batches/{batch['id']}")
    assert answer.headers["etag"] != before
    found = answer.json()
    assert (found["counts"]["total"], found["counts"]["gone"], found["counts"]["queued"]) == (2, 1, 1)
    assert (found["members"][0]["state"], found["members"][0]["job_id"]) == ("gone", job_of(batch, 0))
    succeed(front, job_of(batch, 1))
    assert shown(front, batch)["state"] == "succeeded"
    # a batch is forgotten and its jobs stay
    assert front.http.delete(f"/v1/batches/{batch['id']}").status_code == 204
    problem(front.http.get(f"/v1/batches/{batch['id']}"), 404, "batch-not-found")
    assert front.http.get(f"/v1/jobs/{job_of(batch, 1)}").status_code == 200
    assert stored(front)[:2] == (0, 0)


@pytest.mark.both_databases
def test_a_batch_is_canceled_whole(front: Front) -> None:
    batch = submitted(front, grid_body(front))
    succeed(front, job_of(batch, 0))
    front.claim(job_of(batch, 1))
    answer = taken(front.http.post(f"/v1/batches/{batch['id']}/cancel"), 202)
    assert [m["state"] for m in answer["members"]] == ["succeeded", "canceling", "canceled", "canceled"]
    assert answer["state"] == "running"
    problem(front.http.delete(f"/v1/batches/{batch['id']}"), 409, "batch-not-ended")
    assert front.http.post(f"/v1/batches/{batch['id']}/cancel").status_code == 202
    front.http.post(f"/v1/jobs/{job_of(batch, 1)}/cancel")
    with front.app.database.write() as session:
        transitions.finish_cancel(session, job_of(batch, 1), 1)
    assert front.http.post(f"/v1/batches/{batch['id']}/retry-failed").status_code == 202


def test_what_failed_is_run_once_more(front: Front) -> None:
    batch = submitted(front, grid_body(front))
    path = f"/v1/batches/{batch['id']}/retry-failed"
    problem(front.http.post(path), 409, "batch-not-ended")
    for member in (0, 1):
        succeed(front, job_of(batch, member))
    fail(front, job_of(batch, 2))
    front.http.post(f"/v1/jobs/{job_of(batch, 3)}/cancel")
    found = taken(front.http.post(path), 202)
    assert [m["state"] for m in found["members"]] == ["succeeded", "succeeded", "queued", "queued"]
    assert [m["attempts"] for m in found["members"]] == [1, 1, 2, 2]
    assert [m["job_id"] for m in found["members"][:2]] == [m["job_id"] for m in batch["members"][:2]]
    for member in (2, 3):
        job = front.http.get(f"/v1/jobs/{job_of(found, member)}").json()
        assert job["retry_of"] == job_of(batch, member)
        assert job["config"]["preset"] == batch["members"][member]["preset"]
    for member in (2, 3):
        succeed(front, job_of(found, member))
    assert shown(front, batch)["state"] == "succeeded"
    problem(front.http.post(path), 409, "nothing-to-retry")


def test_a_long_poll_ends_with_the_last_job(front: Front, endless_wait: None) -> None:
    batch = submitted(front, grid_body(front, models=1))
    succeed(front, job_of(batch, 0))
    seen: list[Any] = []
    waiting = threading.Thread(
        target=lambda: seen.append(front.http.get(f"/v1/batches/{batch['id']}?wait=20").json()["state"])
    )
    waiting.start()
    succeed(front, job_of(batch, 1))
    waiting.join(PATIENCE_SECONDS)
    assert seen == ["succeeded"]
