"""Models and datasets: made of uploads, validated by a job, ready or rejected with reasons."""

from __future__ import annotations

import threading

import pytest

from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import EngineError
from tests.support.front import Front, dataset_summary, model_summary, npz_bytes, pointers, problem
from tests.worker.workbench import wait_for

MISSING_UPLOAD = "upl_00000000000000000000000000"


def model_body(front: Front, *paths: str) -> dict[str, object]:
    files = [{"upload_id": front.upload(path.encode()), "path": path} for path in paths]
    return {"name": "m", "files": files}


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


@pytest.mark.parametrize("noun", ["model", "dataset"])
def test_what_was_not_validated_in_time_says_so_and_is_tried_again(front: Front, noun: str) -> None:
    """That the installation had no time is no reason to reject anything."""
    noun_id = front.new_model() if noun == "model" else front.new_dataset()
    path, job_id = f"/v1/{noun}s/{noun_id}", front.inspect_job(**{f"{noun}_id": noun_id})
    before = front.http.get(path)
    assert before.json()["waiting"] is None
    front.run_late(job_id)
    late = front.http.get(path)
    assert (late.json()["status"], late.json()["problems"]) == ("validating", [])
    assert late.json()["waiting"]["code"] == "validation-overdue"
    assert late.headers["etag"] != before.headers["etag"]
    job = front.http.get(f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["error"], job["waiting"]) == ("queued", None, late.json()["waiting"])
    front.finish(job_id, model_summary() if noun == "model" else dataset_summary())
    ready = front.http.get(path).json()
    assert (ready["status"], ready["waiting"]) == ("ready", None)


def test_a_rejected_model_says_why(front: Front) -> None:
    model_id = front.rejected_model()
    seen = front.http.get(f"/v1/models/{model_id}").json()
    assert seen["status"] == "rejected"
    assert [(p["code"], p["detail"]) for p in seen["problems"]] == [("not-onnx", "The file is no ONNX model.")]
    assert seen["problems"][0]["hint"] == "Export again."


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


def test_an_inspection_that_breaks_down_rejects(front: Front) -> None:
    dataset_id = front.new_dataset()
    front.fail(front.inspect_job(dataset_id=dataset_id), EngineError("It broke."))
    seen = front.http.get(f"/v1/datasets/{dataset_id}").json()
    assert (seen["status"], seen["problems"][0]["code"]) == ("rejected", "engine-error")


@pytest.mark.parametrize("given", ["npz", "safetensors"])
def test_a_dataset_format_may_be_given(sqlite_front: Front, given: str) -> None:
    upload_id = sqlite_front.upload(npz_bytes(), "data")
    body = {"name": "d", "upload_id": upload_id, "format": given}
    assert sqlite_front.http.post("/v1/datasets", json=body).json()["format"] == given


def test_a_dataset_format_must_be_known(sqlite_front: Front) -> None:
    upload_id = sqlite_front.upload(npz_bytes(), "data.csv")
    answer = sqlite_front.http.post("/v1/datasets", json={"name": "d", "upload_id": upload_id})
    assert pointers(problem(answer, 422, "invalid-request")) == ["/format"]


@pytest.mark.parametrize("noun", ["models", "datasets"])
def test_waiting_ends_with_the_time_given(front: Front, noun: str) -> None:
    noun_id = front.new_model() if noun == "models" else front.new_dataset()
    waited = front.http.get(f"/v1/{noun}/{noun_id}?wait=0.3")
    assert (waited.json()["status"], waited.headers["retry-after"]) == ("validating", "1")


@pytest.mark.parametrize("noun", ["models", "datasets"])
def test_waiting_ends_with_the_validation(front: Front, endless_wait: None, noun: str) -> None:
    if noun == "models":
        noun_id, result = front.new_model(), model_summary()
        job_id = front.inspect_job(model_id=noun_id)
    else:
        noun_id, result = front.new_dataset(), dataset_summary()
        job_id = front.inspect_job(dataset_id=noun_id)
    timer = threading.Timer(0.3, front.finish, (job_id, result))
    timer.start()
    waited = front.http.get(f"/v1/{noun}/{noun_id}?wait=20")
    timer.join()
    assert waited.json()["status"] == "ready"


@pytest.mark.parametrize("noun", ["models", "datasets"])
def test_entity_tags(front: Front, noun: str) -> None:
    noun_id = front.new_model() if noun == "models" else front.new_dataset()
    path = f"/v1/{noun}/{noun_id}"
    tag = front.http.get(path).headers["etag"]
    again = front.http.get(path, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    kind = "model_id" if noun == "models" else "dataset_id"
    front.finish(front.inspect_job(**{kind: noun_id}), model_summary() if noun == "models" else dataset_summary())
    assert front.http.get(path, headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize("noun", ["models", "datasets"])
def test_lists(front: Front, noun: str) -> None:
    make = front.new_model if noun == "models" else front.new_dataset
    ready = front.ready_model if noun == "models" else front.ready_dataset
    ids = [make(), make(), ready()]
    seen, cursor, pages = [], None, 0
    while True:
        page = front.http.get(f"/v1/{noun}", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        assert page.status_code == 200, page.text
        seen += [item["id"] for item in page.json()["items"]]
        cursor, pages = page.json()["next_cursor"], pages + 1
        assert page.json()["has_more"] == (cursor is not None) == ("link" in page.headers)
        if cursor is None:
            break
    assert seen == ids[::-1]
    assert pages == 2
    found = front.http.get(f"/v1/{noun}?status=ready").json()["items"]
    assert [item["id"] for item in found] == ids[2:]


@pytest.mark.parametrize("noun", ["models", "datasets"])
@pytest.mark.parametrize("tail", ["00000000000000000000000000", "x", "%00", "%FF"])
def test_unknown_nouns(front: Front, noun: str, tail: str) -> None:
    prefix = "mdl" if noun == "models" else "dst"
    problem(front.http.get(f"/v1/{noun}/{prefix}_{tail}"), 404, f"{noun[:-1]}-not-found")


def test_a_model_of_an_unknown_upload(front: Front) -> None:
    body = model_body(front, "net.onnx")
    body["files"].append({"upload_id": MISSING_UPLOAD, "path": "weights.bin"})
    answer = front.http.post("/v1/models", json=body)
    assert pointers(problem(answer, 404, "upload-not-found")) == ["/files/1/upload_id"]
    assert front.http.get("/v1/models").json()["items"] == []


def test_a_noun_of_an_unfinished_upload(front: Front) -> None:
    upload_id = front.http.post("/v1/uploads", json={"filename": "net.onnx", "size_bytes": 9}).json()["id"]
    body = {"name": "m", "files": [{"upload_id": upload_id, "path": "net.onnx"}]}
    answer = front.http.post("/v1/models", json=body)
    assert pointers(problem(answer, 409, "upload-not-complete")) == ["/files/0/upload_id"]
    answer = front.http.post("/v1/datasets", json={"name": "d", "upload_id": upload_id, "format": "npz"})
    assert pointers(problem(answer, 409, "upload-not-complete")) == ["/upload_id"]
    assert front.http.get("/v1/models").json()["items"] == front.http.get("/v1/datasets").json()["items"] == []


@pytest.mark.parametrize(
    "path",
    ["../net.onnx", "/net.onnx", "a/net.onnx", "a\\net.onnx", "..", ".", "", "net\n.onnx", "ü" * 130 + ".onnx"],
)
def test_model_files_have_plain_names(sqlite_front: Front, path: str) -> None:
    body = {"name": "m", "files": [{"upload_id": MISSING_UPLOAD, "path": path}]}
    answer = sqlite_front.http.post("/v1/models", json=body)
    assert pointers(problem(answer, 422, "invalid-request")) == ["/files/0/path"]


@pytest.mark.parametrize("paths", [["weights.bin"], ["a.onnx", "b.onnx"], ["a.onnx", "w", "w"]])
def test_a_model_has_one_main_file_and_no_name_twice(sqlite_front: Front, paths: list[str]) -> None:
    body = {"name": "m", "files": [{"upload_id": MISSING_UPLOAD, "path": path} for path in paths]}
    problem(sqlite_front.http.post("/v1/models", json=body), 422, "invalid-request")


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ({"input": {}}, "/preprocessing/input"),
        ({"inputs": {"x": {"layot": "NHWC"}}}, "/preprocessing/inputs/x/layot"),
        ({"inputs": {"x": {"layout": "CHW"}}}, "/preprocessing/inputs/x/layout"),
        ({"inputs": {"x": {"std": [0.0]}}}, "/preprocessing/inputs/x/std"),
    ],
)
def test_bad_preprocessing(sqlite_front: Front, spec: dict[str, object], pointer: str) -> None:
    body = {"name": "d", "upload_id": MISSING_UPLOAD, "preprocessing": spec}
    answer = sqlite_front.http.post("/v1/datasets", json=body)
    assert pointers(problem(answer, 422, "invalid-request")) == [pointer]
