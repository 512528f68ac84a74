"""A database that is locked or silent, a broker that is frozen: readers go on, writers are told, no bytes are lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from service.client import Client
from service.db import head_revision
from service.queues.repository import announce
from service.settings import Settings
from service.uploads import repository
from service.uploads.writer import UploadFile
from tests.api.conftest import front_of
from tests.api.serving import served
from tests.api.test_uploads import DATA, offset, open_upload, part_file, patch, put, sha256, stored
from tests.support.front import Front, problem
from tests.support.patience import PATIENCE_SECONDS
from tests.support.stalling import StallingProxy, freezable_redis
from tests.worker.workbench import wait_for

pytestmark = pytest.mark.slow
LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("BEGIN " + sys.argv[2])
print("locked", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
"""
# More than there are threads for requests.
CROWD = 60


@contextmanager
def locked(path: Path, kind: str) -> Iterator[None]:
    """The file is locked for the length of the block, by another process."""
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(path), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    try:
        yield
    finally:
        holder.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture
def opened(app: FastAPI, tmp_path: Path, sqlite_url: str) -> Callable[[float], AbstractContextManager[Front]]:
    """The API server whose writers wait so long."""
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0)
    patient = {"api_answer_seconds": PATIENCE_SECONDS}
    return lambda seconds: front_of(app, settings.model_copy(update={"api_lock_seconds": seconds, **patient}))


class Crowd:
    """Requests that are sent at once, each by a thread."""

    def __init__(self, count: int, url: str, body: dict) -> None:
        self.answers: list[httpx.Response] = []
        self._threads = [threading.Thread(target=self._send, args=(url, body), daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _send(self, url: str, body: dict) -> None:
        self.answers.append(httpx.post(url, json=body, timeout=PATIENCE_SECONDS))

    def wait(self) -> list[httpx.Response]:
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        assert len(self.answers) == len(self._threads)
        return self.answers


@pytest.mark.parametrize("kind", [pytest.param("IMMEDIATE", marks=pytest.mark.long), "EXCLUSIVE"])
@pytest.mark.usefixtures("unhurried_probes")
def test_readers_do_not_wait_behind_writers(app: FastAPI, opened: Any, tmp_path: Path, kind: str) -> None:
    """The writers wait for longer than any test may take, so whoever is answered did not wait for one of them."""
    with opened(PATIENCE_SECONDS) as front, served(app) as url:
        body = front.job_body()
        job_id = front.new_job(**body)
        with locked(tmp_path / "service.db", kind), httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http:
            crowd = Crowd(CROWD, f"{url}/v1/jobs", body)
            for _ in range(10):
                assert http.get("/healthz").json() == {"status": "ok"}
                assert http.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"
                assert http.get("/v1/jobs").json()["items"][0]["id"] == job_id
                assert http.get("/readyz").json()["checks"]["database"]["outcome"] == "ok"
            assert crowd.answers == [], "the writers wait"
        assert {answer.status_code for answer in crowd.wait()} == {202}


def test_writers_are_told_to_come_back(app: FastAPI, opened: Any, tmp_path: Path) -> None:
    with opened(0.3) as front, served(app) as url:
        body = front.job_body()
        job_id = front.new_job(**body)
        with locked(tmp_path / "service.db", "IMMEDIATE"):
            answers = Crowd(CROWD, f"{url}/v1/jobs", body).wait()
            answers.append(httpx.post(f"{url}/v1/jobs/{job_id}/cancel", timeout=PATIENCE_SECONDS))
        for answer in answers:
            assert answer.status_code == 503, answer.text
            assert answer.json()["code"] in ("database-unavailable", "service-busy")
            assert int(answer.headers["retry-after"]) >= 1
        assert front.http.post("/v1/jobs", json=body).status_code == 202
        assert len(front.http.get("/v1/jobs").json()["items"]) == 2, "what was refused was not stored"


JOBS = 10


@pytest.mark.long
@pytest.mark.redis
def test_a_frozen_broker_keeps_no_submission(app: FastAPI, tmp_path: Path, sqlite_url: str) -> None:
    """A message may take longer than any test: whoever is answered did not wait for one."""
    plain = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0)
    with freezable_redis(tmp_path) as broker:
        settings = plain.model_copy(update={"broker_url": broker.url, "publish_seconds": PATIENCE_SECONDS})
        broker.freeze()
        with front_of(app, settings) as front:
            body = front.job_body()
            made = [front.http.post("/v1/jobs", json=body) for _ in range(JOBS)]
            assert {answer.status_code for answer in made} == {202}
            checks = front.http.get("/readyz").json()
            assert (checks["status"], checks["checks"]["broker"]["outcome"]) == ("ready", "degraded")
            broker.thaw()
            with front.app.database.write() as session:
                announce(session, "w", {"cpu": JOBS})
            front.app.dispatch()
            with redis.Redis.from_url(broker.url) as client:
                wait_for(lambda: client.llen("cpu") >= JOBS)


@pytest.mark.postgres
def test_a_database_that_falls_silent(app, tmp_path: Path, postgres_url: str) -> None:
    where = make_url(postgres_url)
    proxy = StallingProxy(where.host or "127.0.0.1", where.port or 5432)
    url = where.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    settings = Settings(data_dir=tmp_path / "data", database_url=url, min_free_bytes=0, api_answer_seconds=0.5)
    try:
        with front_of(app, settings) as front:
            body = front.job_body()
            job_id, http = front.new_job(**body), front.http
            assert http.get(f"/v1/jobs/{job_id}").status_code == 200
            proxy.stall()
            for answer in (http.get(f"/v1/jobs/{job_id}"), http.post("/v1/jobs", json=body), http.get("/v1/jobs")):
                problem(answer, 503, "database-unavailable")
                assert int(answer.headers["retry-after"]) >= 1
            assert http.get("/healthz").status_code == 200
            assert http.get("/readyz").json()["checks"]["database"]["outcome"] == "failed"
            proxy.resume()
            wait_for(lambda: http.get(f"/v1/jobs/{job_id}").status_code == 200)
            assert http.post("/v1/jobs", json=body).status_code == 202
    finally:
        proxy.close()


@pytest.mark.both_databases
@pytest.mark.usefixtures("unhurried_probes")
def test_a_schema_that_is_left_behind(app: FastAPI, settings: Settings) -> None:
    with front_of(app, settings) as front:

        def rename(old: str, new: str, revision: str) -> None:
            with front.app.database.write() as session:
                session.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))
                session.execute(text("UPDATE alembic_version SET version_num = :it"), {"it": revision})

        rename("jobs", "jobs_of_then", "0001")
        try:
            told = problem(front.http.get("/v1/jobs"), 503, "schema-behind")
            ready = front.http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["checks"]["database"]["detail"] == told["detail"]
            assert "quantmill migrate" in told["detail"]
        finally:
            rename("jobs_of_then", "jobs", head_revision())
        assert front.http.get("/v1/jobs").json()["items"] == []


@pytest.fixture
def place(tmp_path: Path, sqlite_url: str) -> Settings:
    return Settings(
        data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0, api_lock_seconds=0.2, api_writers=1
    )


@pytest.fixture
def front(app: FastAPI, place: Settings) -> Iterator[Front]:
    with front_of(app, place) as front:
        yield front


def is_complete(front: Front, upload_id: str) -> None:
    """It is, and nothing of it is left anywhere but in its place."""
    found = front.http.get(f"/v1/uploads/{upload_id}").json()
    assert (found["state"], found["sha256"], found["size_bytes"]) == ("complete", sha256(DATA), len(DATA))
    assert stored(front) == [sha256(DATA)]
    assert front.app.store.path(sha256(DATA)).read_bytes() == DATA
    assert front.app.store.path(sha256(DATA)).stat().st_mode & 0o222 == 0
    assert list(front.app.store.incoming.iterdir()) == []


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
    upload_id, other = open_upload(front, size_bytes=len(DATA)), open_upload(front)
    with locked(tmp_path / "service.db", "IMMEDIATE"):
        problem(put(front, upload_id, DATA), 503, "database-unavailable")
    assert put(front, other, b"x" * 100).status_code == 200
    assert put(front, upload_id, DATA[::-1]).json()["sha256"] == sha256(DATA[::-1])
    assert front.app.store.path(sha256(DATA)).read_bytes() == DATA
    assert list(front.app.store.incoming.iterdir()) == []


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


def test_the_client_goes_on_until_the_upload_is_complete(app: FastAPI, front: Front, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(DATA)
    lock, refused = locked(tmp_path / "service.db", "IMMEDIATE"), threading.Event()

    def note(sent_bytes: int, _: int) -> None:
        if sent_bytes == 0:  # it was announced, and nothing was sent yet
            lock.__enter__()
            threading.Thread(target=release, daemon=True).start()

    def release() -> None:
        incoming = front.app.store.incoming
        wait_for(lambda: any(found.stat().st_nlink > 1 for found in incoming.iterdir()))
        lock.__exit__(None, None, None)
        refused.set()

    with served(app) as url, Client(url, patience_seconds=PATIENCE_SECONDS) as client:
        upload_id = client.upload_file(path, progress=note).id
    assert refused.wait(PATIENCE_SECONDS)
    is_complete(front, upload_id)


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
