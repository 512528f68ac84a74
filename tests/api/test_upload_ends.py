"""The end of an upload: its bytes outlive a database that cannot note them, and hashing keeps nobody waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from service.client import Client
from service.settings import Settings
from service.uploads import repository
from service.uploads.writer import UploadFile
from tests.api.conftest import front_of
from tests.api.test_locked_database import locked
from tests.api.test_uploads import DATA, offset, open_upload, part_file, patch, put, sha256, stored
from tests.support.front import Front, problem
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess
from tests.worker.workbench import wait_for


@pytest.fixture
def place(tmp_path: Path, sqlite_url: str) -> Settings:
    return Settings(
        data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0, api_lock_seconds=0.2, api_writers=1
    )


@pytest.fixture
def front(app, place: Settings) -> Iterator[Front]:
    with front_of(app, place) as front:
        yield front


def is_complete(front: Front, upload_id: str) -> None:
    """It is, and nothing of it is left anywhere but in its place."""
    found = front.http.get(f"/v1/uploads/{upload_id}").json()
    assert (found["state"], found["sha256"], found["size_bytes"]) == ("complete", sha256(DATA), len(DATA))
    assert stored(front) == [sha256(DATA)]
    assert front.desk.store.path(sha256(DATA)).read_bytes() == DATA
    assert front.desk.store.path(sha256(DATA)).stat().st_mode & 0o222 == 0
    assert list(front.desk.store.incoming.iterdir()) == []


def test_a_lock_at_the_end_of_a_part_or_of_all_costs_no_bytes(front: Front, tmp_path: Path) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), sha256=sha256(DATA))
    with locked(tmp_path / "service.db", "IMMEDIATE"):
        for part, at in ((DATA[:5000], 0), (DATA[5000:], 5000), (b"", len(DATA))):
            problem(patch(front, upload_id, part, at), 503, "database-unavailable")
            assert offset(front, upload_id) == at + len(part)
        assert front.http.get(f"/v1/uploads/{upload_id}").json()["state"] == "open"
    assert patch(front, upload_id, b"", len(DATA)).status_code == 204
    is_complete(front, upload_id)


def test_a_whole_file_can_be_sent_anew_after_a_lock(front: Front, tmp_path: Path) -> None:
    """The bytes of the first time lie in the store as well, and are not written over."""
    upload_id, other = open_upload(front), open_upload(front)
    with locked(tmp_path / "service.db", "IMMEDIATE"):
        problem(put(front, upload_id, DATA), 503, "database-unavailable")
    assert put(front, other, b"x" * 100).status_code == 200
    assert put(front, upload_id, DATA[::-1]).json()["sha256"] == sha256(DATA[::-1])
    assert front.desk.store.path(sha256(DATA)).read_bytes() == DATA
    assert list(front.desk.store.incoming.iterdir()) == []


def test_a_commit_that_fails_costs_no_bytes(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as on a disk that has become full: it shows when the transaction ends, after the file was put away."""
    upload_id = open_upload(front, size_bytes=len(DATA))
    real = repository.complete

    def refused(*given: object, **named: object) -> None:
        real(*given, **named)
        raise OperationalError("COMMIT", {}, OSError("database or disk is full"))

    with monkeypatch.context() as full:
        full.setattr(repository, "complete", refused)
        assert patch(front, upload_id, DATA, 0).status_code == 503
    assert offset(front, upload_id) == len(DATA)
    assert patch(front, upload_id, b"", len(DATA)).status_code == 204
    is_complete(front, upload_id)


def test_the_client_goes_on_until_the_upload_is_complete(place: Settings, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(DATA)
    server = ApiProcess(place)
    done: list[str] = []
    refused = threading.Event()
    try:
        with Client(server.url, patience_seconds=PATIENCE_SECONDS) as client:
            lock = locked(tmp_path / "service.db", "IMMEDIATE")

            def note(sent_bytes: int, _: int) -> None:
                if sent_bytes == 0:  # it was announced, and nothing was sent yet
                    lock.__enter__()
                    threading.Thread(target=release, daemon=True).start()

            def release() -> None:
                incoming = place.storage_dir / "incoming"
                wait_for(lambda: any(found.stat().st_nlink > 1 for found in incoming.iterdir()))
                lock.__exit__(None, None, None)
                refused.set()

            done.append(client.upload_file(path, progress=note).id)
            assert refused.wait(PATIENCE_SECONDS)
            assert httpx.get(f"{server.url}/v1/uploads/{done[0]}").json()["state"] == "complete"
    finally:
        server.close()


def test_hashing_takes_no_turn_of_the_writers(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one writer: while a large file is read again, others still write."""
    hashing, go_on = threading.Event(), threading.Event()
    real = UploadFile.sha256

    def slow(self: UploadFile) -> str:
        hashing.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return real(self)

    monkeypatch.setattr(UploadFile, "sha256", slow)
    upload_id = open_upload(front, size_bytes=len(DATA))
    sender = threading.Thread(target=patch, args=(front, upload_id, DATA, 0))
    sender.start()
    try:
        assert hashing.wait(PATIENCE_SECONDS)
        other = open_upload(front, size_bytes=len(DATA))
        assert patch(front, other, DATA[:10], 0).status_code == 204
    finally:
        go_on.set()
        sender.join(PATIENCE_SECONDS)
    part_file(front, other).unlink()
    is_complete(front, upload_id)
