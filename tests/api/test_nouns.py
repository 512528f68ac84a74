"""Models and datasets: made of uploads, validated by a job, ready or rejected; deleted if nobody needs them."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select

from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import (
    DatasetFormatError,
    EngineError,
    ExternalDataError,
    FieldProblem,
    NonFiniteDataError,
    NotOnnxError,
    QuantmillError,
    StateError,
)
from service.jobs.outcome import QuantizeOutcome
from service.tables import Job, Upload
from tests.api.test_model_versions import RANGES, job_with_ranges, new_version, version_body
from tests.api.test_names import CROWDED_NOUNS, NEW, NOUNS, get, make, put
from tests.api.test_submissions import graph_summary
from tests.db.test_concurrency import THREADS, at_once
from tests.support.front import Front, dataset_summary, make_report, model_summary, pointers, problem
from tests.support.schedules import add_schedule
from worker.upkeep.garbage import discard_garbage

MISSING_UPLOAD = f"upl_{'0' * 26}"
SUMMARIES: dict[str, Any] = {"model": model_summary, "dataset": dataset_summary}


def model_body(front: Front, *paths: str) -> dict[str, Any]:
    files = [{"upload_id": front.upload(path.encode()), "path": path} for path in paths]
    return {"name": "m", "files": files}


def in_validation(front: Front, noun: str) -> tuple[str, str]:
    """Path of a new noun, and the job that validates it."""
    noun_id = getattr(front, f"new_{noun}")()
    return f"/v1/{noun}s/{noun_id}", front.inspect_job(**{f"{noun}_id": noun_id})


def test_a_model_is_validated_by_a_job(front: Front) -> None:
    made = front.http.post("/v1/models", json=model_body(front, "net.onnx", "weights.bin"))
    assert made.status_code == 201
    model = made.json()
    assert made.headers["location"] == model["links"]["self"] == f"/v1/models/{model['id']}"
    assert (model["status"], model["summary"], model["problems"]) == ("validating", None, [])
    assert [file["path"] for file in model["files"]] == ["net.onnx", "weights.bin"]

    job_id = front.inspect_job(model_id=model["id"])
    job = front.http.get(f"/v1/jobs/{job_id}").json()
    assert (job["kind"], job["state"], job["request_id"]) == ("inspect_model", "queued", made.headers["x-request-id"])

    front.finish(job_id, model_summary())
    seen = front.http.get(f"/v1/models/{model['id']}")
    assert seen.json()["status"] == "ready"
    assert seen.json()["summary"] == model_summary().model_dump(mode="json")
    assert "retry-after" not in seen.headers


def test_a_dataset_is_validated_by_a_job(front: Front) -> None:
    spec = {"inputs": {"x": {"array": "images", "layout": "NHWC", "scale": 0.5}}, "labels": "y"}
    dataset_id = front.new_dataset(preprocessing=spec)
    seen = front.http.get(f"/v1/datasets/{dataset_id}").json()
    assert (seen["status"], seen["format"]) == ("validating", "npz")
    assert seen["preprocessing"] == PreprocessingSpec.model_validate(spec).model_dump(mode="json")
    front.finish(front.inspect_job(dataset_id=dataset_id), dataset_summary())
    seen = front.http.get(f"/v1/datasets/{dataset_id}").json()
    assert seen["status"] == "ready"
    assert seen["summary"] == dataset_summary().model_dump(mode="json")


@NOUNS
def test_what_was_not_validated_in_time_says_so_and_is_tried_again(front: Front, noun: str) -> None:
    """That the installation had no time is no reason to reject anything."""
    path, job_id = in_validation(front, noun)
    before = front.http.get(path)
    assert before.json()["waiting"] is None
    front.run_late(job_id)
    late = front.http.get(path)
    assert (late.json()["status"], late.json()["problems"]) == ("validating", [])
    assert late.json()["waiting"]["code"] == "validation-overdue"
    assert late.headers["etag"] != before.headers["etag"]
    job = front.http.get(f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["error"], job["waiting"]) == ("queued", None, late.json()["waiting"])
    front.finish(job_id, SUMMARIES[noun]())
    ready = front.http.get(path).json()
    assert (ready["status"], ready["waiting"]) == ("ready", None)


@NOUNS
def test_waiting_ends_with_the_time_given_or_with_the_validation(front: Front, endless_wait: None, noun: str) -> None:
    path, job_id = in_validation(front, noun)
    first = front.http.get(f"{path}?wait=0")
    assert (first.json()["status"], first.headers["retry-after"]) == ("validating", "1")
    tag = {"If-None-Match": first.headers["etag"]}
    again = front.http.get(path, headers=tag)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    timer = threading.Timer(0.1, front.finish, (job_id, SUMMARIES[noun]()))
    timer.start()
    waited = front.http.get(f"{path}?wait=20")
    timer.join()
    assert waited.json()["status"] == "ready"
    assert front.http.get(path, headers=tag).status_code == 200


def test_rejected_models_say_why_and_point_at_the_file(front: Front) -> None:
    def rejected(error: QuantmillError) -> list[str]:
        made = front.http.post("/v1/models", json=model_body(front, "net.onnx", "a.bin")).json()
        front.fail(front.inspect_job(model_id=made["id"]), error)
        seen = front.http.get(made["links"]["self"]).json()
        (found,) = seen["problems"]
        assert (seen["status"], found["detail"], found["hint"]) == ("rejected", str(error), error.hint)
        assert found["code"] == error.code
        return pointers(found)

    # a model shows its files in the order of their names
    assert rejected(NotOnnxError("It is no ONNX model.", hint="Export again.")) == ["/files/1"]
    assert rejected(ExternalDataError("It is too short.", path="a.bin")) == ["/files/0"]
    assert rejected(ExternalDataError("It is missing.", path="b.bin")) == ["/files/1"]
    assert rejected(NotOnnxError("Bad opset.", pointer="/opset")) == ["/opset"]
    assert rejected(EngineError("It broke.")) == [], "that is no fault of the file"
    faults = tuple(FieldProblem(pointer=f"/state/{name}", code="tensor-missing", message="is missing") for name in "ab")
    assert rejected(StateError("It does not fit.", errors=faults)) == ["/state/a", "/state/b"]


def test_rejected_datasets_point_at_the_upload_or_the_array(front: Front) -> None:
    def rejected(error: QuantmillError) -> list[str]:
        dataset_id = front.new_dataset()
        front.fail(front.inspect_job(dataset_id=dataset_id), error)
        seen = front.http.get(f"/v1/datasets/{dataset_id}").json()
        assert (seen["status"], seen["problems"][0]["code"]) == ("rejected", error.code)
        return pointers(seen["problems"][0])

    assert rejected(DatasetFormatError("It is no archive.")) == ["/upload_id"]
    assert rejected(NonFiniteDataError("NaN.", pointer="/arrays/x")) == ["/arrays/x"]
    assert rejected(EngineError("It broke.")) == []


def test_an_upload_that_is_not_there_or_not_complete_makes_nothing(front: Front) -> None:
    unfinished = front.http.post("/v1/uploads", json={"filename": "net.onnx", "size_bytes": 9}).json()["id"]
    for upload_id, status, code in (
        (MISSING_UPLOAD, 404, "upload-not-found"),
        (unfinished, 409, "upload-not-complete"),
    ):
        body = model_body(front, "net.onnx")
        body["files"].append({"upload_id": upload_id, "path": "weights.bin"})
        refused = problem(front.http.post("/v1/models", json=body), status, code)
        assert pointers(refused) == ["/files/1/upload_id"]
        data = {"name": "d", "upload_id": upload_id, "format": "npz"}
        refused = problem(front.http.post("/v1/datasets", json=data), status, code)
        assert pointers(refused) == ["/upload_id"]
    assert front.http.get("/v1/models").json()["items"] == front.http.get("/v1/datasets").json()["items"] == []


def test_a_model_has_one_main_file_and_plain_names_each_once(front: Front) -> None:
    odd = ("../net.onnx", "/net.onnx", "a\\net.onnx", "..", "", "net\n.onnx", "ü" * 130 + ".onnx")
    for paths, pointer in (
        *(([path], "/files/0/path") for path in odd),
        (["weights.bin"], "/files"),
        (["a.onnx", "b.onnx"], "/files"),
        (["w", "a.onnx", "w", "w"], "/files/2/path"),
    ):
        body = {"name": "m", "files": [{"upload_id": MISSING_UPLOAD, "path": path} for path in paths]}
        told = problem(front.http.post("/v1/models", json=body), 422, "invalid-request")
        assert pointers(told) == [pointer]
        assert pointer in told["detail"]


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
    with front.app.database.write() as session:
        session.execute(delete(Upload))
    discard_garbage(front.app.database, front.app.store, 100, age_seconds=-1.0)
    return [path for path in front.app.store.blobs.rglob("*") if path.is_file()]


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
    # by nothing but a version or an id
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
    front.finish(job_id, QuantizeOutcome(make_report(), (front.kept("model", "model.onnx", b"q"),)))
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
def test_of_many_that_need_it_twenty_are_named(front: Front) -> None:
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
        with front.app.database.read() as session:
            columns = (Job.model_id, Job.dataset_id, Job.calibration_dataset_id)
            needed = set(session.execute(select(*columns).where(Job.state == "queued")).all())
        assert gone.status_code == 409 or not any(noun_id in row for row in needed)
