"""Models of new weights or an exported program, ranges taken over; datasets of pictures and sounds, with thumbnails."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from service.contracts.dataset import (
    ArraySummary,
    DatasetSummary,
    LabelSummary,
    MediaSummary,
    PreprocessingSpec,
    Thumbnails,
)
from service.contracts.model import MADE_MODEL
from service.contracts.specs import TensorRange
from service.files import repository as stored_files
from service.jobs.outcome import MadeModel, NewModelFile, QuantizeOutcome
from service.settings import Settings
from tests.api.conftest import front_of
from tests.support.front import Front, dataset_summary, make_report, model_summary, pointers, problem, taken

RANGES = {"x": TensorRange(minimum=-1.0, maximum=2.0), "r": TensorRange(minimum=0.0, maximum=3.0)}


def version_body(front: Front, skeleton: str | None, path: str = "state.safetensors", **changes: Any) -> dict[str, Any]:
    files = [{"upload_id": front.upload(path.encode(), path), "path": path}]
    return {"name": "v", "format": "safetensors", "skeleton_model_id": skeleton, "files": files, **changes}


def new_version(front: Front, skeleton: str) -> str:
    """A ready model of new weights."""
    model_id: str = taken(front.http.post("/v1/models", json=version_body(front, skeleton)), 201)["id"]
    data = b"onnx of " + model_id.encode()
    file = NewModelFile(MADE_MODEL, front.store(data), len(data))
    front.finish(front.inspect_job(model_id=model_id), MadeModel(model_summary(sha256="3" * 64), (file,)))
    return model_id


def job_with_ranges(front: Front, model_id: str, ranges: dict[str, TensorRange]) -> str:
    job_id = front.new_job(model_id=model_id)
    report = make_report().model_copy(update={"tensor_ranges": ranges})
    front.finish(job_id, QuantizeOutcome(report, (front.kept("model", "model.onnx", b"q"),)))
    return job_id


def test_new_weights_count_by_name_whatever_their_skeleton(front: Front) -> None:
    first = front.ready_model()
    assert front.http.get(f"/v1/models/{first}").json()["version"] == 1
    body = version_body(front, first)
    made = front.http.post("/v1/models", json=body).json()
    assert (made["name"], made["version"], made["skeleton_model_id"], made["status"]) == ("v", 1, first, "validating")
    second = new_version(front, first)
    third = new_version(front, second)
    seen = front.http.get(f"/v1/models/{third}").json()
    assert (seen["status"], seen["version"], seen["skeleton_model_id"]) == ("ready", 3, second)
    assert [file["path"] for file in seen["files"]] == [MADE_MODEL, "state.safetensors"]
    assert front.http.get(f"/v1/models/{first}").json()["skeleton_model_id"] is None


def test_new_weights_without_a_name_take_that_of_their_skeleton_and_whole_models_need_one(front: Front) -> None:
    first = front.ready_model()
    body = version_body(front, first)
    del body["name"]
    for name in ({}, {"name": None}):
        made = front.http.post("/v1/models", json={**body, **name})
        assert made.json()["name"] == front.http.get(f"/v1/models/{first}").json()["name"]
        whole = {"files": [{"upload_id": front.upload(), "path": "net.onnx"}], **name}
        told = problem(front.http.post("/v1/models", json=whole), 422, "invalid-request")
        assert [(error["pointer"], error["code"]) for error in told["errors"]] == [("/name", "missing")]
    assert made.json()["version"] == 3


def test_what_does_not_go_together_is_refused(front: Front) -> None:
    skeleton = front.ready_model()
    for changes, pointer in (
        ({"skeleton": None}, "/skeleton_model_id"),
        ({"format": "onnx"}, "/files"),
        ({"format": "pt2"}, "/files"),
        ({"path": "state.pt"}, "/files"),
        ({"format": "torchscript"}, "/format"),
        ({"path": "net.onnx", "format": "onnx"}, "/skeleton_model_id"),
    ):
        answer = front.http.post("/v1/models", json=version_body(front, **{"skeleton": skeleton, **changes}))
        assert pointer in pointers(problem(answer, 422, "invalid-request"))


def test_archives_of_torch_are_refused_unless_allowed(app, front: Front, tmp_path, sqlite_url) -> None:
    body = version_body(front, None, "net.pt2", format="pt2")
    refusal = problem(front.http.post("/v1/models", json=body), 403, "pt2-not-allowed")
    assert pointers(refusal) == ["/format"]
    assert "QUANTMILL_ALLOW_PT2" in refusal["hint"]
    assert "code" in refusal["hint"]
    settings = Settings(data_dir=tmp_path / "other", database_url=sqlite_url, min_free_bytes=0, allow_pt2=True)
    with front_of(app, settings) as allowing:
        made = allowing.http.post("/v1/models", json=version_body(allowing, None, "net.pt2", format="pt2"))
    assert (made.status_code, made.json()["format"]) == (201, "pt2")


def test_ranges_of_an_earlier_version_are_taken_over(front: Front) -> None:
    first = front.ready_model()
    calibrated = job_with_ranges(front, first, RANGES)
    own = {"x": {"minimum": -5.0, "maximum": 5.0}}
    body = front.job_body(model_id=new_version(front, first), ranges_from=calibrated, config={"tensor_ranges": own})
    expected = {**own, "r": {"minimum": 0.0, "maximum": 3.0}}
    assert front.http.post("/v1/jobs:validate", json=body).json()["config"]["tensor_ranges"] == expected
    job_id = front.new_job(**body)
    assert front.http.get(f"/v1/jobs/{job_id}").json()["config"]["tensor_ranges"] == expected
    events = front.http.get(f"/v1/jobs/{job_id}/events", headers={"Accept": "application/json"})
    assert calibrated in events.text
    # the same file, uploaded once more
    assert front.http.post("/v1/jobs", json={**body, "model_id": front.ready_model()}).status_code == 202


def test_ranges_that_cannot_be_taken_over_are_refused(front: Front) -> None:
    model = front.ready_model()

    def refused(job_id: str, status: int, code: str, **changes: Any) -> list[str]:
        body = front.job_body(**{"model_id": model, "ranges_from": job_id, **changes})
        return pointers(problem(front.http.post("/v1/jobs", json=body), status, code))

    assert refused("job_00000000000000000000000000", 404, "job-not-found") == ["/ranges_from"]
    assert refused(front.new_job(model_id=model), 422, "ranges-not-usable") == ["/ranges_from"]
    assert refused(job_with_ranges(front, model, {}), 422, "ranges-not-usable") == ["/ranges_from"]
    calibrated = job_with_ranges(front, model, RANGES)
    other = front.ready_model(model_summary(sha256="9" * 64))
    assert refused(calibrated, 422, "ranges-not-usable", model_id=other) == ["/ranges_from"]
    names = {name: {"minimum": 0, "maximum": 1} for name in ("x", "rr", "y/0")}
    body = front.job_body(model_id=model, ranges_from=calibrated, config={"tensor_ranges": names})
    told = problem(front.http.post("/v1/jobs", json=body), 422, "invalid-config")
    assert pointers(told) == ["/config/tensor_ranges/rr", "/config/tensor_ranges/y~10"]
    assert calibrated in told["detail"]
    prepared = {"config": {"preparation": {"fuse_gelu": False, "split_to_slice": True}}}
    places = ["/config/preparation/split_to_slice", "/config/preparation/fuse_gelu"]
    assert refused(calibrated, 422, "ranges-not-usable", **prepared) == places
    dynamic = {"config": {"mode": "dynamic"}}
    assert "/config/tensor_ranges" in refused(calibrated, 422, "invalid-config", **dynamic)


SHEET = b"\x89PNG a sheet of small pictures"
SHA256 = hashlib.sha256(SHEET).hexdigest()


def pictures_summary(**changes: Any) -> DatasetSummary:
    facts = {
        "format": "pictures",
        "samples": 9,
        "arrays": {"images": ArraySummary(dtype="uint8", shape=(9, 8, 8, 3))},
        "labels": LabelSummary(array="labels", count=9, minimum=0, maximum=1, dtype="int64", shape=(9,)),
        "preprocessing": PreprocessingSpec.model_validate("cifar10"),
        "size_bytes": 1000,
        "sha256": "1" * 64,
        "media": MediaSummary(
            archive="tar.gz", codecs={"PNG": 9}, classes=("cat", "dog"), smallest=(8, 8), largest=(20, 30)
        ),
        "thumbnails": Thumbnails(file="thumbnails.png", sha256=SHA256, size_bytes=len(SHEET)),
    }
    return DatasetSummary.model_validate({**facts, **changes})


def ready_pictures(front: Front) -> str:
    dataset_id = front.new_dataset()
    assert front.store(SHEET) == SHA256
    front.finish(front.inspect_job(dataset_id=dataset_id), pictures_summary())
    return dataset_id


def test_the_format_is_the_ending_of_the_name(front: Front) -> None:
    for filename, wanted in (("a.TAR.GZ", "tar.gz"), ("a.b.tgz", "tar.gz"), ("a.zip", "zip"), ("a.npz", "npz")):
        upload_id = front.upload(b"some bytes", filename)
        made = front.http.post("/v1/datasets", json={"name": "d", "upload_id": upload_id})
        assert (made.status_code, made.json()["format"]) == (201, wanted)
        body = {"name": "d", "upload_id": upload_id, "format": "safetensors"}
        assert front.http.post("/v1/datasets", json=body).json()["format"] == "safetensors", "it may be given"
    for filename in ("a.gz", "tar", "a.rar"):
        upload_id = front.upload(b"some bytes", filename)
        answer = front.http.post("/v1/datasets", json={"name": "d", "upload_id": upload_id})
        body = problem(answer, 422, "invalid-request")
        assert pointers(body) == ["/format"]
        assert "npz, safetensors, tar, tar.gz, zip" in body["hint"]


@pytest.mark.parametrize("name", ["imagenet_tf:NHWC", "timm:bicubic,0.9,clip,clip,64"])
def test_a_preprocessing_may_be_named(front: Front, name: str) -> None:
    dataset_id = front.new_dataset(preprocessing=name)
    seen = front.http.get(f"/v1/datasets/{dataset_id}").json()["preprocessing"]
    assert seen == PreprocessingSpec.model_validate(name).model_dump(mode="json")
    assert list(seen["inputs"]) == ["*"]


def test_names_that_are_none_are_refused(front: Front) -> None:
    upload_id = front.upload(b"x", "a.tar")
    for name, says in (
        ("imagenet-torchvison", "did you mean 'imagenet_torchvision'?"),
        ("nothing", "known: imagenet_torchvision, imagenet_tf, imagenet_caffe, cifar10, timm:"),
        ("timm:bicubic,2.0", "CROP_PCT"),
        ("timm:bicubic,0.9,0.5/0.5", "nor three"),
        ("timm:bicubic,0.9,imagenet,imagenet,224,squash", "crop mode 'squash' of"),
        ("timm:,,,,,border", "'border' of 'timm:,,,,,border' is not offered; it is 'center'"),
        ("timm:bicubic,0.9,imagenet,0", "std must not contain 0"),
    ):
        answer = front.http.post("/v1/datasets", json={"name": "d", "upload_id": upload_id, "preprocessing": name})
        body = problem(answer, 422, "invalid-request")
        assert all(place.startswith("/preprocessing") for place in pointers(body))
        assert says in body["detail"]


def test_thumbnails_are_served_with_their_digest(front: Front) -> None:
    dataset_id = ready_pictures(front)
    dataset = front.http.get(f"/v1/datasets/{dataset_id}").json()
    assert dataset["summary"]["media"]["classes"] == ["cat", "dog"]
    path = dataset["links"]["thumbnails"]
    assert path == f"/v1/datasets/{dataset_id}/thumbnails"
    answer = front.http.get(path)
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, SHEET, "image/png")
    tag = answer.headers["etag"]
    assert SHA256 in tag
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert front.http.get(path, headers={"If-None-Match": tag}).status_code == 304
    assert front.http.get(path, headers={"Range": "bytes=1-3"}).content == SHEET[1:4]
    with front.app.database.read() as session:
        assert stored_files.named(session, [SHA256, "f" * 64]) == {SHA256}


def test_datasets_without_thumbnails_and_with_damaged_ones(front: Front) -> None:
    for dataset_id in (front.new_dataset(), front.rejected_dataset(), front.ready_dataset(dataset_summary())):
        problem(front.http.get(f"/v1/datasets/{dataset_id}/thumbnails"), 404, "thumbnails-not-found")
        assert front.http.get(f"/v1/datasets/{dataset_id}").json()["links"]["thumbnails"] is None
    dataset_id = ready_pictures(front)
    path = front.app.store.path(SHA256)
    path.chmod(0o600)
    path.write_bytes(SHEET[:-1] + b"!")
    problem(front.http.get(f"/v1/datasets/{dataset_id}/thumbnails"), 500, "stored-file-corrupt")


def test_pictures_are_checked_against_the_model_whatever_its_input_is_called(front: Front) -> None:
    for width, status in ((8, 202), (9, 422)):
        dataset_id = front.new_dataset()
        summary = pictures_summary(arrays={"images": ArraySummary(dtype="uint8", shape=(9, 8, width, 3))})
        front.finish(front.inspect_job(dataset_id=dataset_id), summary)
        answer = front.http.post("/v1/jobs", json=front.job_body(calibration_dataset_id=dataset_id))
        assert answer.status_code == status, answer.text
    assert "'images'" in problem(answer, 422, "dataset-mismatch")["detail"]
