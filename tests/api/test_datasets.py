"""Datasets of pictures and sounds: formats by name, preprocessing by name, thumbnails."""

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
from service.files import repository as stored_files
from tests.support.front import Front, dataset_summary, pointers, problem

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


def test_the_format_is_the_ending_of_the_name(sqlite_front: Front) -> None:
    for filename, wanted in (("a.TAR.GZ", "tar.gz"), ("a.b.tgz", "tar.gz"), ("a.zip", "zip"), ("a.npz", "npz")):
        upload_id = sqlite_front.upload(b"some bytes", filename)
        made = sqlite_front.http.post("/v1/datasets", json={"name": "d", "upload_id": upload_id})
        assert (made.status_code, made.json()["format"]) == (201, wanted)
    for filename in ("a.gz", "tar", "a.rar"):
        upload_id = sqlite_front.upload(b"some bytes", filename)
        answer = sqlite_front.http.post("/v1/datasets", json={"name": "d", "upload_id": upload_id})
        body = problem(answer, 422, "invalid-request")
        assert pointers(body) == ["/format"]
        assert "npz, safetensors, tar, tar.gz, zip" in body["hint"]


@pytest.mark.parametrize("name", ["imagenet_tf:NHWC", "timm:bicubic,0.9,clip,clip,64"])
def test_a_preprocessing_may_be_named(sqlite_front: Front, name: str) -> None:
    dataset_id = sqlite_front.new_dataset(preprocessing=name)
    seen = sqlite_front.http.get(f"/v1/datasets/{dataset_id}").json()["preprocessing"]
    assert seen == PreprocessingSpec.model_validate(name).model_dump(mode="json")
    assert list(seen["inputs"]) == ["*"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("imagenet-torchvison", "did you mean 'imagenet_torchvision'?"),
        ("nothing", "known: imagenet_torchvision, imagenet_tf, cifar10, timm:"),
        ("timm:bicubic,2.0", "CROP_PCT"),
        ("timm:hamming", "none of bicubic, bilinear, lanczos, nearest"),
        ("timm:bicubic,0.9,0.5/0.5", "nor three"),
        ("timm:bicubic,0.9,mean", "is no number"),
        ("timm:bicubic,0.9,imagenet,imagenet,224,center,1", "holds 7 values"),
        ("timm:bicubic,0.9,imagenet,imagenet,224,squash", "crop mode 'squash' of"),
        ("timm:,,,,,border", "'border' of 'timm:,,,,,border' is not offered; it is 'center'"),
        ("timm:,,,,,middle", "'middle' of 'timm:,,,,,middle' is unknown; it is 'center'"),
        ("timm:bicubic,0.9,imagenet,0", "std must not hold 0"),
    ],
)
def test_names_that_are_none_are_refused(sqlite_front: Front, name: str, says: str) -> None:
    upload_id = sqlite_front.upload(b"x", "a.tar")
    answer = sqlite_front.http.post("/v1/datasets", json={"name": "d", "upload_id": upload_id, "preprocessing": name})
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
    with front.desk.database.read() as session:
        assert stored_files.named(session, [SHA256, "f" * 64]) == {SHA256}


def test_datasets_without_thumbnails_and_with_damaged_ones(front: Front) -> None:
    for dataset_id in (front.new_dataset(), front.rejected_dataset(), front.ready_dataset(dataset_summary())):
        problem(front.http.get(f"/v1/datasets/{dataset_id}/thumbnails"), 404, "thumbnails-not-found")
        assert front.http.get(f"/v1/datasets/{dataset_id}").json()["links"]["thumbnails"] is None
    dataset_id = ready_pictures(front)
    path = front.desk.store.path(SHA256)
    path.chmod(0o600)
    path.write_bytes(SHEET[:-1] + b"!")
    problem(front.http.get(f"/v1/datasets/{dataset_id}/thumbnails"), 500, "stored-file-corrupt")


@pytest.mark.parametrize("shape", [(9, 8, 8, 3), (9, 8, 9, 3)])
def test_pictures_are_checked_against_the_model_whatever_its_input_is_called(
    sqlite_front: Front, shape: tuple[int, ...]
) -> None:
    front = sqlite_front
    dataset_id = front.new_dataset()
    summary = pictures_summary(arrays={"images": ArraySummary(dtype="uint8", shape=shape)})
    front.finish(front.inspect_job(dataset_id=dataset_id), summary)
    answer = front.http.post("/v1/jobs", json=front.job_body(calibration_dataset_id=dataset_id))
    if shape[2] == 8:
        assert answer.status_code == 202, answer.text
    else:
        assert "'images'" in problem(answer, 422, "dataset-mismatch")["detail"]
