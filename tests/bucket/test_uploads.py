"""Uploads to a bucket by two API servers that share a database and no disk."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from service.app import create_app
from service.settings import Settings
from service.storage.bucket import BucketStore
from service.storage.objects import PART_BYTES
from service.tables import Upload
from tests.api.conftest import front_of
from tests.api.test_uploads import offset, open_upload, patch, put
from tests.support.front import Front, pointers, problem
from tests.support.s3_faults import FaultyBucket
from tests.support.webhooks import PEPPER
from worker.upkeep.collector import Tally
from worker.upkeep.garbage import expire_uploads, remove_leftovers

pytestmark = pytest.mark.slow  # needs a server
DATA = bytes(range(256)) * 40
LARGE = hashlib.sha256(b"seed").digest() * ((PART_BYTES + 1000) // 32)


@pytest.fixture
def fronts(bucket_url: str, tmp_path: Path, database_url: str) -> Iterator[tuple[Front, Front]]:
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                front_of(
                    create_app(settings),
                    settings,
                )
            )
            for settings in (
                Settings(
                    data_dir=tmp_path / name, database_url=database_url, storage_url=bucket_url, min_free_bytes=0,
                    key_pepper=PEPPER, storage_signed_url_seconds=60,
                )
                for name in ("first", "second")
            )
        )  # fmt: skip
        yield first, second


def stored(front: Front) -> list[str]:
    return [found.name.rpartition("/")[2] for found in bucket(front).objects.list("sha256")]


def incoming(front: Front) -> list[str]:
    return [found.name for found in bucket(front).objects.list("incoming")]


def bucket(front: Front) -> BucketStore:
    assert isinstance(front.app.store, BucketStore)
    return front.app.store


@pytest.mark.both_databases
@pytest.mark.parametrize("declared", [True, False])
def test_servers_take_turns_at_an_upload(fronts: tuple[Front, Front], declared: bool) -> None:
    sha256 = hashlib.sha256(LARGE).hexdigest()
    upload = open_upload(fronts[0], size_bytes=len(LARGE), **({"sha256": sha256} if declared else {}))
    at = 0
    for number, size in enumerate((100, PART_BYTES + 10, len(LARGE))):
        front, other = fronts[number % 2], fronts[1 - number % 2]
        assert patch(front, upload, LARGE[at : at + size], at).status_code == 204
        at = min(at + size, len(LARGE))
        assert offset(other, upload) == at
    assert stored(fronts[0]) == [sha256]
    assert not incoming(fronts[0])
    with fronts[1].app.store.open(sha256, len(LARGE)) as stream:
        assert stream.read() == LARGE


def test_what_is_wrong_with_bytes_throws_away_as_much_as_in_a_folder(fronts: tuple[Front, Front]) -> None:
    first, second = fronts
    upload = open_upload(first, size_bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
    wrong = base64.b64encode(hashlib.sha256(b"no").digest()).decode()
    refused = patch(first, upload, DATA[:100], 0, **{"Content-Digest": f"sha-256=:{wrong}:"})
    problem(refused, 422, "digest-mismatch")
    assert offset(second, upload) == 0
    assert patch(first, upload, DATA[:100], 0).status_code == 204
    problem(patch(second, upload, DATA[:100], 0), 409, "upload-offset-mismatch")
    problem(put(second, upload, DATA[:-1]), 422, "upload-incomplete")
    problem(put(second, upload, bytes(len(DATA))), 422, "digest-mismatch")
    assert offset(first, upload) == 100, "a refused file leaves the earlier bytes alone"
    body = problem(patch(second, upload, bytes(len(DATA) - 100), 100), 422, "digest-mismatch")
    assert pointers(body) == ["/sha256"]
    assert offset(first, upload) == 0, "nobody can tell which of the parts is wrong"
    assert not incoming(first)
    assert put(first, upload, DATA).status_code == 200
    problem(put(second, upload, DATA), 409, "upload-complete")
    assert not incoming(first)


def test_two_writers_at_one_place_are_not_both_right(fronts: tuple[Front, Front]) -> None:
    first, second = fronts
    upload = open_upload(first, size_bytes=len(DATA))

    def slowly() -> Iterator[bytes]:
        yield DATA[:10]
        assert patch(second, upload, DATA[:500], 0).status_code == 204
        yield DATA[10:20]

    problem(patch(first, upload, slowly(), 0), 409, "upload-busy")
    assert offset(first, upload) == 500
    assert patch(first, upload, DATA[500:], 500).status_code == 204
    assert stored(first) == [hashlib.sha256(DATA).hexdigest()]


def test_a_request_without_bytes_changes_nothing(fronts: tuple[Front, Front]) -> None:
    first, second = fronts
    upload = open_upload(first, size_bytes=len(DATA))
    for front in (first, second):
        assert patch(front, upload, b"", 0).status_code == 204
    assert patch(first, upload, DATA[:100], 0).status_code == 204
    for front in (first, second):
        assert patch(front, upload, b"", 100).status_code == 204
        problem(put(front, upload, b""), 422, "empty-upload")
    assert offset(second, upload) == 100
    assert patch(second, upload, DATA[100:], 100).status_code == 204
    problem(patch(first, upload, b"", len(DATA)), 409, "upload-complete")


def test_a_bucket_that_is_away_is_a_503_and_the_bytes_before_stay(
    fronts: tuple[Front, Front], proxy: FaultyBucket
) -> None:
    first, second = fronts
    upload = open_upload(first, size_bytes=len(DATA))
    assert patch(first, upload, DATA[:100], 0).status_code == 204
    with proxy.broken("unavailable"):
        answer = patch(second, upload, DATA[100:], 100)
        problem(answer, 503, "storage-away")
        assert "retry-after" in answer.headers
        ready = first.http.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["storage"]["outcome"]) == (503, "failed")
    assert offset(first, upload) == 100
    assert patch(first, upload, DATA[100:], 100).status_code == 204


def test_an_artifact_is_at_a_signed_url_for_those_who_ask(fronts: tuple[Front, Front]) -> None:
    first, second = fronts
    job = first.succeeded_job(DATA)
    (artifact, *_) = first.http.get(f"/v1/jobs/{job}/artifacts").json()["items"]
    content = f"/v1/artifacts/{artifact['id']}/content"
    assert second.http.get(content).content == DATA
    part = second.http.get(content, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, DATA[10:20])
    answer = second.http.get(content, params={"redirect": "true"}, follow_redirects=False)
    assert answer.status_code == 307
    assert httpx.get(answer.headers["location"], trust_env=False).content == DATA


def test_what_is_left_of_uploads_is_collected(fronts: tuple[Front, Front]) -> None:
    first, second = fronts
    upload = open_upload(first, size_bytes=len(DATA))
    assert patch(first, upload, DATA[:100], 0).status_code == 204
    bucket(first).objects.put("incoming/upl_gone/1", b"left")
    bucket(first).objects.put(f"incoming/{upload}/of-nobody", b"left")
    time.sleep(0.01)
    app = second.app
    assert remove_leftovers(app.database, app.store, 10, age_seconds=-1) == Tally(1, 4)
    assert len(incoming(first)) == 2
    with app.database.write() as session:
        session.get(Upload, upload).expires_at = session.get(Upload, upload).created_at
    assert expire_uploads(app.database, app.store, 10, expiry_seconds=1) == Tally(1, 104)
    assert not incoming(first)
    problem(patch(first, upload, DATA[100:], 100), 404, "upload-not-found")
