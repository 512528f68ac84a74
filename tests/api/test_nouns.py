"""Models and datasets: made of uploads, validated by a job, ready or rejected with reasons."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import (
    DatasetFormatError,
    EngineError,
    ExternalDataError,
    NonFiniteDataError,
    NotOnnxError,
    QuantmillError,
)
from tests.support.front import Front, dataset_summary, model_summary, npz_bytes, pointers, problem
from tests.worker.workbench import wait_for

MISSING_UPLOAD = f"upl_{'0' * 26}"
SUMMARIES: dict[str, Any] = {"model": model_summary, "dataset": dataset_summary}
NOUNS = pytest.mark.parametrize("noun", SUMMARIES)


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
    wait_for(lambda: len(list((front.desk.settings.broker_dir / "queue").glob("*.inspect.msg"))) == 1)

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


@NOUNS
def test_waiting_that_is_in_vain_ends(sqlite_front: Front, noun: str) -> None:
    path, _ = in_validation(sqlite_front, noun)
    assert sqlite_front.http.get(f"{path}?wait=0.1").json()["status"] == "validating"


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


def test_a_dataset_format_may_be_given_and_must_be_known(sqlite_front: Front) -> None:
    body = {"name": "d", "upload_id": sqlite_front.upload(npz_bytes(), "data.csv")}
    for given in ("npz", "safetensors"):
        assert sqlite_front.http.post("/v1/datasets", json={**body, "format": given}).json()["format"] == given
    told = problem(sqlite_front.http.post("/v1/datasets", json=body), 422, "invalid-request")
    assert pointers(told) == ["/format"]


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


@pytest.mark.parametrize(
    ("paths", "pointer"),
    [
        *[([path], "/files/0/path") for path in ("../net.onnx", "/net.onnx", "a\\net.onnx", "..", "", "net\n.onnx")],
        (["ü" * 130 + ".onnx"], "/files/0/path"),
        (["weights.bin"], "/files"),
        (["a.onnx", "b.onnx"], "/files"),
        (["w", "a.onnx", "w", "w"], "/files/2/path"),
    ],
)
def test_a_model_has_one_main_file_and_plain_names_each_once(
    sqlite_front: Front, paths: list[str], pointer: str
) -> None:
    body = {"name": "m", "files": [{"upload_id": MISSING_UPLOAD, "path": path} for path in paths]}
    told = problem(sqlite_front.http.post("/v1/models", json=body), 422, "invalid-request")
    assert pointers(told) == [pointer]
    assert pointer in told["detail"]


@pytest.mark.parametrize(
    ("spec", "place"), [({"input": {}}, "input"), ({"inputs": {"x": {"layout": "CHW"}}}, "inputs/x/layout")]
)
def test_bad_preprocessing(sqlite_front: Front, spec: dict[str, object], place: str) -> None:
    body = {"name": "d", "upload_id": MISSING_UPLOAD, "preprocessing": spec}
    answer = sqlite_front.http.post("/v1/datasets", json=body)
    assert pointers(problem(answer, 422, "invalid-request")) == [f"/preprocessing/{place}"]
