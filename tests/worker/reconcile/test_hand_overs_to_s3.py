"""Files handed over to a real S3-compatible server by presigned URLs that its own client has made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.egress.addresses import parse_allowed
from service.egress.sending import Bounds, Egress
from service.settings import Settings
from tests.api.conftest import app, front
from tests.support import services
from tests.support.front import Front
from tests.support.hand_overs import carry, states, succeed
from tests.support.patience import PATIENCE_SECONDS
from tests.support.s3_server import Bucket, s3_server, s3_trouble
from tests.support.webhooks import PEPPER

__all__ = ["app", "front"]
pytestmark = pytest.mark.slow  # starts processes
DATA = bytes(range(256)) * 20_000
ONNX = {"Content-Type": "application/onnx"}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    services.require(s3_trouble())
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path, sqlite_url: str, bucket: Bucket) -> Settings:
    allowed = f"http://127.0.0.1:{bucket.port}"
    return Settings(
        data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0, key_pepper=PEPPER, egress_allowed=allowed
    )


def test_what_was_handed_over_lies_in_the_bucket(front: Front, bucket: Bucket, tmp_path: Path) -> None:
    urls = bucket.presigned(tmp_path, "q.onnx", "report.json")
    targets = [
        {"kind": "put", "artifact": "model", "url": urls["q.onnx"], "headers": ONNX},
        {"kind": "put", "artifact": "report", "url": urls["report.json"], "headers": ONNX},
    ]
    job_id = front.new_job(hand_over=targets)
    succeed(front, job_id, "pass", DATA)
    out = Egress(parse_allowed(front.app.settings.egress_allowed), Bounds(seconds=PATIENCE_SECONDS))
    assert carry(front, out) == 2
    assert states(front, job_id) == [("done", None)] * 2
    stored = bucket.stored("q.onnx")
    assert hashlib.sha256(stored.content).hexdigest() == hashlib.sha256(DATA).hexdigest()
    assert stored.headers["content-type"] == "application/onnx"
    assert bucket.stored("report.json").content == b"{}"
