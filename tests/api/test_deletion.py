"""Deletion: what is needed stays and says by whom; what is not goes with its files, and leaves its number behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select

from service.contracts.errors import StateError
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.tables import Job, Upload
from tests.api.test_aliases import NEW, put
from tests.api.test_metric_submissions import graph_summary
from tests.api.test_model_versions import RANGES, job_with_ranges, new_version, version_body
from tests.api.test_references import CROWDED_NOUNS, NOUNS, get, make
from tests.db.test_concurrency import THREADS, at_once
from tests.support.front import Front, make_report, problem
from tests.support.schedules import add_schedule
from worker.upkeep.garbage import discard_garbage

OF_JOB = ("model_id", "calibration_dataset_id", "evaluation_dataset_id")


def remove(front: Front, noun: str, text: str) -> Any:
    return front.http.delete(f"/v1/{noun}s/{text}")


def needed_by(front: Front, noun: str, noun_id: str) -> list[tuple[str, str]]:
    told = problem(remove(front, noun, noun_id), 409, f"{noun}-in-use")
    assert told["errors"][0]["where"] == {"path": f"{noun}_id"}
    found = [(item["kind"], item["name"]) for item in told["where"]["needed_by"]]
    assert told["where"]["count"] >= len(found)
    assert all(f"{kind} {name}" in told["detail"] for kind, name in found)
    return found


def collect(front: Front) -> list[Path]:
    """What is left in the store once everything that nobody names was collected."""
    with front.desk.database.write() as session:
        session.execute(delete(Upload))
    discard_garbage(front.desk.database, front.desk.store, 100, age_seconds=-1.0)
    return [path for path in front.desk.store.blobs.rglob("*") if path.is_file()]


@NOUNS
def test_what_nobody_needs_goes(front: Front, noun: str) -> None:
    first, second = make(front, noun, "net"), make(front, noun, "net")
    assert remove(front, noun, second).status_code == 204
    assert remove(front, noun, second).status_code == remove(front, noun, "net@2").status_code == 204
    for text in (second, "net@2"):
        problem(get(front, noun, text), 404, f"{noun}-not-found")
    assert [item["id"] for item in front.http.get(f"/v1/{noun}s").json()["items"]] == [first]
    assert get(front, noun, "net@latest").json()["id"] == first
    third = make(front, noun, "net")
    assert get(front, noun, third).json()["version"] == 3
    assert remove(front, noun, "net@3").status_code == remove(front, noun, first).status_code == 204
    told = problem(get(front, noun, "net@latest"), 404, f"{noun}-not-found")
    assert "did you mean" not in told["detail"]
    assert get(front, noun, make(front, noun, "net")).json()["version"] == 4
    for method, path in (("PATCH", ""), ("PUT", "/aliases/prod"), ("GET", "/aliases")):
        answer = front.http.request(method, f"/v1/{noun}s/{first}{path}", headers={"If-Match": "*"}, json={})
        problem(answer, 404, f"{noun}-not-found")


@NOUNS
def test_only_a_version_or_an_id_can_be_deleted(front: Front, noun: str) -> None:
    make(front, noun, "net")
    for text in ("net@7", "other@1", "net"):
        problem(remove(front, noun, text), 404, f"{noun}-not-found")
    for text in ("net@latest", "net@prod"):
        told = problem(remove(front, noun, text), 422, "invalid-request")
        assert told["errors"][0]["where"] == {"path": f"{noun}_id"}


@NOUNS
def test_files_are_collected_once_nobody_names_them(front: Front, noun: str) -> None:
    first, second = make(front, noun, "net"), make(front, noun, "net")  # of equal files
    assert len(collect(front)) == 1
    remove(front, noun, first)
    assert len(collect(front)) == 1
    remove(front, noun, second)
    assert collect(front) == []
    assert front.http.get("/v1/quota").json()["usage"]["stored_bytes"] == 0


@NOUNS
def test_an_alias_keeps_what_it_stands_for(front: Front, noun: str) -> None:
    first, second = make(front, noun, "net"), make(front, noun, "net")
    put(front, noun, first, NEW)
    assert needed_by(front, noun, first) == [("alias", "prod")]
    put(front, noun, second, {"If-Match": "*"})
    assert remove(front, noun, first).status_code == 204
    moves = front.http.get(f"/v1/{noun}s/{second}/aliases/prod/moves").json()["items"]
    assert [move["id"] for move in moves] == [second, first]


def test_live_jobs_keep_what_they_need(front: Front) -> None:
    model, data, other = make(front, "model", "net"), make(front, "dataset", "some"), make(front, "dataset", "more")
    job_id = front.new_job(**dict(zip(OF_JOB, (model, data, other), strict=True)))
    nouns = (("model", model), ("dataset", data), ("dataset", other))
    for noun, noun_id in nouns:
        assert needed_by(front, noun, noun_id) == [("job", job_id)]
    artifact = NewArtifact("model", "model.onnx", "application/octet-stream", front.store(b"q"), 1)
    front.finish(job_id, QuantizeOutcome(make_report(), (artifact,)))
    for noun, noun_id in nouns:
        assert remove(front, noun, noun_id).status_code == 204
    # what was made of them stays
    seen = front.http.get(f"/v1/jobs/{job_id}").json()
    assert (seen["state"], seen["model_id"]) == ("succeeded", model)
    assert front.http.get(f"/v1/jobs/{job_id}/report").status_code == 200
    assert front.http.get(f"/v1/jobs/{job_id}/report.html").status_code == 200
    assert front.http.get(seen["artifacts"][0]["content"]).content == b"q"
    assert [job["id"] for job in front.http.get("/v1/jobs", params={"model_id": model}).json()["items"]] == [job_id]


def test_schedules_keep_what_their_next_job_would_be_on(front: Front) -> None:
    first, second = make(front, "model", "net"), make(front, "model", "net")
    data, other = make(front, "dataset", "some"), make(front, "dataset", "more")
    latest = add_schedule(front, {"model_id": "net@latest", "calibration_dataset_id": data})
    numbered = add_schedule(
        front, {"model_id": "net@1", "calibration_dataset_id": data, "evaluation_dataset_id": "more@1"}
    )
    assert needed_by(front, "model", first) == [("schedule", numbered["name"])]
    assert needed_by(front, "dataset", other) == [("schedule", numbered["name"])]
    assert needed_by(front, "dataset", data) == [
        ("schedule", name) for name in sorted([latest["name"], numbered["name"]])
    ]
    assert front.http.delete(f"/v1/schedules/{numbered['id']}").status_code == 204
    assert remove(front, "dataset", other).status_code == 204
    assert remove(front, "model", second).status_code == 204, "latest is the one before it then"
    assert needed_by(front, "model", first) == [("schedule", latest["name"])]
    assert front.http.delete(f"/v1/schedules/{latest['id']}").status_code == 204
    assert remove(front, "model", first).status_code == 204


@NOUNS
def test_what_is_being_validated_is_needed_by_its_job(front: Front, noun: str) -> None:
    noun_id = make(front, noun, "net", ready=False)
    assert needed_by(front, noun, noun_id) == [("job", front.inspect_job(**{f"{noun}_id": noun_id}))]
    rejected = front.rejected_model() if noun == "model" else front.rejected_dataset()
    assert remove(front, noun, rejected).status_code == 204


def test_a_skeleton_is_kept_while_new_weights_are_validated(front: Front) -> None:
    first = front.ready_model()
    made = front.http.post("/v1/models", json=version_body(front, first)).json()["id"]
    assert needed_by(front, "model", first) == [("model", made)]
    front.fail(front.inspect_job(model_id=made), StateError("It does not fit."))
    done = new_version(front, first)
    calibrated = job_with_ranges(front, first, RANGES)
    assert remove(front, "model", first).status_code == 204
    seen = get(front, "model", done).json()
    assert (seen["status"], seen["skeleton_model_id"]) == ("ready", first)
    # its graph is known still: ranges of a job that ran on it fit the new weights
    body = front.job_body(model_id=done, ranges_from=calibrated)
    assert front.http.post("/v1/jobs", json=body).status_code == 202
    problem(front.http.post("/v1/models", json=version_body(front, first)), 404, "model-not-found")


def test_jobs_keep_the_graph_of_a_metric_a_reference_and_a_model_that_is_inspected(front: Front) -> None:
    graph, reference = front.ready_model(graph_summary("y")), front.ready_model()
    metric = {"kind": "onnx", "name": "score", "graph": {"model_id": graph}}
    evaluation = {"model_id": front.ready_model(), "evaluation_dataset_id": front.ready_dataset()}
    made = front.http.post("/v1/evaluations", json={**evaluation, "reference_model_id": reference}).json()
    for noun_id, job_id in (
        (graph, front.new_job(config={"evaluation": {"metrics": [metric]}})),
        (reference, made["id"]),
    ):
        assert needed_by(front, "model", noun_id) == [("job", job_id)]
        front.http.post(f"/v1/jobs/{job_id}/cancel")
        assert remove(front, "model", noun_id).status_code == 204
    model_id = front.ready_model()
    made = front.http.post(f"/v1/models/{model_id}/inspect?target=onnxruntime_cpu").json()
    assert needed_by(front, "model", model_id) == [("job", made["job_id"])]


@pytest.mark.both_databases
def test_of_many_that_need_it_twenty_are_named(sqlite_front: Front) -> None:
    front = sqlite_front
    model_id, data = make(front, "model", "net"), make(front, "dataset", "some")
    for _ in range(21):
        front.new_job(model_id=model_id, calibration_dataset_id=data)
    put(front, "model", model_id, NEW)
    told = problem(remove(front, "model", model_id), 409, "model-in-use")
    assert (len(told["where"]["needed_by"]), told["where"]["count"]) == (20, 22)
    assert "and 2 more" in told["detail"]


@pytest.mark.both_databases
@CROWDED_NOUNS
def test_many_delete_it_at_once(front: Front, noun: str) -> None:
    noun_id = make(front, noun, "net")
    assert {answer.status_code for answer in at_once(THREADS, lambda _: remove(front, noun, noun_id))} == {204}


@pytest.mark.both_databases
@CROWDED_NOUNS
def test_a_job_and_a_deletion_at_once_do_not_both_succeed(front: Front, noun: str) -> None:
    """Nor an alias, nor new weights, nor an inspection: nothing ever needs what is gone."""
    for _ in range(4):
        model, data = make(front, "model", "net"), make(front, "dataset", "some")
        noun_id = model if noun == "model" else data
        weights = version_body(front, model)

        post = front.http.post
        deeds = [
            partial(remove, front, noun, noun_id),
            partial(post, "/v1/jobs", json={"model_id": model, "calibration_dataset_id": data}),
            partial(post, "/v1/models", json=weights)
            if noun == "model"
            else partial(put, front, noun, noun_id, {"If-Match": "*"}),
            partial(put, front, noun, noun_id, NEW, f"a{noun_id[-8:]}"),
            partial(post, f"/v1/models/{model}/inspect?target=onnxruntime_cpu"),
        ]
        gone, *others = at_once(5, lambda number, deeds=deeds: deeds[number]())
        assert gone.status_code in (204, 409), gone.text
        made = [answer for answer in others[: 4 if noun == "model" else 3] if answer.is_success]
        assert (gone.status_code == 204) == (not made), [answer.text for answer in (gone, *others)]
        assert all(answer.status_code in (404, 412) for answer in others if not answer.is_success)
        with front.desk.database.read() as session:
            columns = (Job.model_id, Job.dataset_id, Job.calibration_dataset_id)
            needed = set(session.execute(select(*columns).where(Job.state == "queued")).all())
        assert gone.status_code == 409 or not any(noun_id in row for row in needed)
