"""Every problem with an input names the place: a JSON pointer into the document, or a header or parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from service.contracts.errors import (
    DatasetFormatError,
    EngineError,
    ExternalDataError,
    NonFiniteDataError,
    NotOnnxError,
    QuantmillError,
)
from tests.api.test_uploads import DATA, chunked, open_upload, patch, put, sha256
from tests.support.front import Front, npz_bytes, pointers, problem

MISSING_UPLOAD = "upl_00000000000000000000000000"


def places(body: Mapping[str, Any]) -> list[dict[str, str]]:
    """Headers and parameters that a problem names; their pointer is empty."""
    assert pointers(body) == [""] * len(body["errors"])
    return [error["where"] for error in body["errors"]]


def test_bytes_that_are_not_as_declared_point_at_the_declaration(sqlite_front: Front) -> None:
    front = sqlite_front
    wrong = open_upload(front, size_bytes=len(DATA), sha256=sha256(b"something else"))
    assert pointers(problem(put(front, wrong, DATA), 422, "digest-mismatch")) == ["/sha256"]
    upload_id = open_upload(front, size_bytes=len(DATA))
    for longer in (DATA + b"!", chunked(DATA + b"!")):
        assert pointers(problem(put(front, upload_id, longer), 413, "upload-too-large")) == ["/size_bytes"]
    for longer in (DATA + b"!", chunked(DATA + b"!")):
        assert pointers(problem(patch(front, upload_id, longer, 0), 413, "upload-too-large")) == ["/size_bytes"]
    assert pointers(problem(put(front, upload_id, DATA[:-1]), 422, "upload-incomplete")) == ["/size_bytes"]
    unsized = open_upload(front)
    assert pointers(problem(patch(front, unsized, DATA, 0), 422, "upload-size-unknown")) == ["/size_bytes"]


def test_bytes_that_are_wrong_in_themselves_point_at_the_body(sqlite_front: Front) -> None:
    front = sqlite_front
    unsized = open_upload(front)
    assert pointers(problem(put(front, unsized, b""), 422, "empty-upload")) == [""]
    object.__setattr__(front.desk.settings, "max_upload_bytes", 10)
    assert pointers(problem(put(front, unsized, DATA), 413, "upload-too-large")) == [""]


def test_headers_of_uploads_are_named(sqlite_front: Front) -> None:
    front = sqlite_front
    upload_id = open_upload(front, size_bytes=len(DATA))
    digest = {"Content-Digest": f"sha-256=:{'A' * 43}=:"}
    refused = problem(patch(front, upload_id, DATA, 0, **digest), 422, "digest-mismatch")
    assert places(refused) == [{"header": "Content-Digest"}]
    malformed = problem(put(front, upload_id, DATA, **{"Content-Digest": "sha-256=abc"}), 422, "invalid-request")
    assert places(malformed) == [{"header": "Content-Digest"}]
    elsewhere = problem(patch(front, upload_id, DATA, 5), 409, "upload-offset-mismatch")
    assert places(elsewhere) == [{"header": "Upload-Offset"}]
    missing = problem(front.http.patch(f"/v1/uploads/{upload_id}", content=DATA), 422, "invalid-request")
    assert places(missing) == [{"header": "Upload-Offset"}]
    negative = problem(patch(front, upload_id, DATA, -1), 422, "invalid-request")
    assert places(negative) == [{"header": "Upload-Offset"}]


@pytest.mark.parametrize(
    ("query", "code", "name"),
    [
        ("limit=0", "invalid-request", "limit"),
        ("limit=x", "invalid-request", "limit"),
        ("state=poem", "invalid-request", "state"),
        ("created_after=yesterday", "invalid-request", "created_after"),
        ("stat=queued", "invalid-request", "stat"),
        ("label.=x", "invalid-request", "label."),
        ("cursor=abc", "invalid-cursor", "cursor"),
    ],
)
def test_query_parameters_are_named(sqlite_front: Front, query: str, code: str, name: str) -> None:
    assert places(problem(sqlite_front.http.get(f"/v1/jobs?{query}"), 422, code)) == [{"query": name}]


@pytest.mark.parametrize(
    ("path", "code", "name"),
    [
        ("/v1/uploads/x", "upload-not-found", "upload_id"),
        ("/v1/models/x", "model-not-found", "model_id"),
        ("/v1/datasets/x", "dataset-not-found", "dataset_id"),
        ("/v1/jobs/x", "job-not-found", "job_id"),
        ("/v1/artifacts/x", "artifact-not-found", "artifact_id"),
        ("/v1/presets/x", "preset-not-found", "name"),
    ],
)
def test_path_parameters_are_named(sqlite_front: Front, path: str, code: str, name: str) -> None:
    assert places(problem(sqlite_front.http.get(path), 404, code)) == [{"path": name}]


def test_other_headers_are_named(sqlite_front: Front) -> None:
    front = sqlite_front
    long_key = front.http.post("/v1/jobs", json=front.job_body(), headers={"Idempotency-Key": "a" * 256})
    named = [error.get("where") for error in problem(long_key, 422, "invalid-request")["errors"]]
    assert {"header": "Idempotency-Key"} in named
    body, key = front.job_body(), {"Idempotency-Key": "k"}
    front.http.post("/v1/jobs", json=body, headers=key)
    reused = front.http.post("/v1/jobs", json={**body, "name": "other"}, headers=key)
    assert places(problem(reused, 422, "idempotency-key-reuse")) == [{"header": "Idempotency-Key"}]
    artifact = front.http.get(f"/v1/jobs/{front.succeeded_job(b'12345')}/artifacts").json()["items"][0]
    outside = front.http.get(artifact["links"]["content"], headers={"Range": "bytes=9-"})
    assert places(problem(outside, 416, "range-not-satisfiable")) == [{"header": "Range"}]


@pytest.mark.parametrize(
    ("paths", "pointer"),
    [
        (["weights.bin"], "/files"),
        (["a.onnx", "b.onnx"], "/files"),
        (["a.onnx", "w", "w"], "/files/2/path"),
        (["w", "a.onnx", "w", "w"], "/files/2/path"),
    ],
)
def test_faults_of_a_list_of_files_point_into_it(sqlite_front: Front, paths: list[str], pointer: str) -> None:
    body = {"name": "m", "files": [{"upload_id": MISSING_UPLOAD, "path": path} for path in paths]}
    answer = problem(sqlite_front.http.post("/v1/models", json=body), 422, "invalid-request")
    assert pointers(answer) == [pointer]
    assert pointer in answer["detail"]


def rejected_model(front: Front, error: QuantmillError) -> list[Any]:
    """Pointers of the problem of a model of net.onnx and a.bin that was rejected with ``error``."""
    files = [{"upload_id": front.upload(path.encode()), "path": path} for path in ("net.onnx", "a.bin")]
    model_id = front.http.post("/v1/models", json={"name": "m", "files": files}).json()["id"]
    front.fail(front.inspect_job(model_id=model_id), error)
    (found,) = front.http.get(f"/v1/models/{model_id}").json()["problems"]
    return pointers(found)


def test_rejected_models_point_at_the_file(front: Front) -> None:
    # a model shows its files in the order of their names
    assert rejected_model(front, NotOnnxError("It is no ONNX model.")) == ["/files/1"]
    assert rejected_model(front, ExternalDataError("It is too short.", path="a.bin")) == ["/files/0"]
    assert rejected_model(front, ExternalDataError("It is missing.", path="b.bin")) == ["/files/1"]
    assert rejected_model(front, NotOnnxError("Bad opset.", pointer="/opset")) == ["/opset"]
    assert rejected_model(front, EngineError("It broke.")) == [], "that is no fault of the file"


def test_rejected_datasets_point_at_the_upload_or_the_array(front: Front) -> None:
    def rejected(error: QuantmillError) -> list[Any]:
        body = {"name": "d", "upload_id": front.upload(npz_bytes(), "data.npz")}
        dataset_id = front.http.post("/v1/datasets", json=body).json()["id"]
        front.fail(front.inspect_job(dataset_id=dataset_id), error)
        return pointers(front.http.get(f"/v1/datasets/{dataset_id}").json()["problems"][0])

    assert rejected(DatasetFormatError("It is no archive.")) == ["/upload_id"]
    assert rejected(NonFiniteDataError("NaN.", pointer="/arrays/x")) == ["/arrays/x"]


def test_the_convention_is_documented(sqlite_front: Front) -> None:
    schema = sqlite_front.http.get("/openapi.json").json()["components"]["schemas"]["FieldProblem"]
    assert "header" in schema["properties"]["where"]["description"]
    assert "RFC 6901" in schema["properties"]["pointer"]["description"]
