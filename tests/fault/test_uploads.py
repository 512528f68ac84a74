"""An API that is killed amid an upload, and files that are damaged where they lie."""

from __future__ import annotations

import hashlib
import os
import threading

import httpx
import pytest

from tests.support.patience import PATIENCE_SECONDS
from worker.upkeep.scrub import Scrubber

DAY_SECONDS = 24 * 3600.0
SIZE_BYTES = 8 * 1024 * 1024
BLOCK_BYTES = 64 * 1024


def test_an_api_killed_amid_an_upload(installation, judge):
    """The bytes that it said were there are there; the upload goes on and is whole."""
    data = os.urandom(SIZE_BYTES)
    half = threading.Event()
    with httpx.Client(base_url=installation.url, timeout=PATIENCE_SECONDS) as http:
        body = {"filename": "big.onnx", "size_bytes": SIZE_BYTES, "sha256": hashlib.sha256(data).hexdigest()}
        upload_id = http.post("/v1/uploads", json=body).raise_for_status().json()["id"]
        url = f"/v1/uploads/{upload_id}"
        first = http.patch(url, content=data[:BLOCK_BYTES], headers={"Upload-Offset": "0"}).raise_for_status()
        promised = int(first.headers["Upload-Offset"])

        def blocks():
            for start in range(promised, SIZE_BYTES, BLOCK_BYTES):
                if start > SIZE_BYTES // 2:
                    half.set()
                    gone.wait()
                yield data[start : start + BLOCK_BYTES]

        gone = threading.Event()

        def send():
            headers = {"Upload-Offset": str(promised), "Content-Length": str(SIZE_BYTES - promised)}
            with (
                httpx.Client(base_url=installation.url, timeout=PATIENCE_SECONDS) as other,
                pytest.raises(httpx.TransportError),
            ):
                other.patch(url, content=blocks(), headers=headers)

        sender = threading.Thread(target=send)
        sender.start()
        half.wait()
        installation.api.kill()
        gone.set()
        sender.join()
        installation.start(installation.api)
        reached = int(http.head(url).raise_for_status().headers["Upload-Offset"])
        assert promised <= reached < SIZE_BYTES
        rest = http.patch(url, content=data[reached:], headers={"Upload-Offset": str(reached)}).raise_for_status()
        assert int(rest.headers["Upload-Offset"]) == SIZE_BYTES
        assert http.get(url).json()["sha256"] == body["sha256"]
    judge()


@pytest.mark.parametrize("damage", ["a flipped byte", "cut short", "gone"])
def test_an_artifact_damaged_at_rest_is_not_served_as_whole(damage, installation, client, judge):
    job_id = client.submit()
    installation.wait_for_state(job_id, "succeeded")
    with installation.client() as http:
        (artifact,) = [item for item in http.artifacts(job_id) if item.kind == "model"]
    path = installation.store.path(artifact.sha256)
    whole = path.read_bytes()
    try:
        path.unlink()
        if damage == "a flipped byte":
            path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        elif damage == "cut short":
            path.write_bytes(whole[:-7])
        assert download(installation.url, artifact.links.content) == (None, 500)
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(whole)
    verify(installation)
    assert download(installation.url, artifact.links.content) == (whole, 200)
    judge()


def verify(installation):
    """As ``quantmill scrub --all``: what was found damaged is refused until somebody has looked at it again."""
    scrubber = Scrubber(installation.database, installation.store, period_seconds=DAY_SECONDS)
    scrubber.begin_anew()
    while scrubber.step() is not None:
        pass


def download(url, path):
    """The bytes that are served, if any, and the status."""
    answer = httpx.get(url + path, timeout=PATIENCE_SECONDS)
    return (answer.content if answer.is_success else None), answer.status_code
