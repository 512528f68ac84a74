"""One S3 server for all, behind a proxy that can break it; each test has a bucket of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.storage.bucket import BucketStore
from tests.support.s3_faults import FaultyBucket
from tests.support.s3_server import Bucket, s3_server, s3_trouble
from tests.support.services import require


@pytest.fixture(scope="package")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    require(s3_trouble())
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="package")
def proxy(s3: Bucket) -> Iterator[FaultyBucket]:
    with FaultyBucket(s3.port).running() as running:
        yield running


@pytest.fixture
def bucket_url(s3: Bucket, proxy: FaultyBucket, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.variables(proxy.port).items():
        monkeypatch.setenv(name, value)
    return s3.make()


@pytest.fixture
def store(bucket_url: str, tmp_path: Path) -> BucketStore:
    return BucketStore(bucket_url, tmp_path / "copies", cache_bytes=1 << 20, may_begin=lambda: True)
