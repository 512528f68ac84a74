"""A SQLite file that another process has locked: who reads is answered at once, who writes is told to come back."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from service.settings import Settings
from tests.api.conftest import front_of
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess

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
def place(tmp_path: Path, sqlite_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0)


@pytest.fixture
def submission(app, place: Settings) -> tuple[str, dict]:
    """A job that is there, and the body of another."""
    with front_of(app, place) as front:
        body = front.job_body()
        return front.new_job(**body), body


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


@pytest.mark.parametrize("kind", ["IMMEDIATE", "EXCLUSIVE"])
def test_readers_do_not_wait_behind_writers(
    place: Settings, submission: tuple[str, dict], tmp_path: Path, kind: str
) -> None:
    """The writers wait for longer than any test may take, so whoever is answered did not wait for one of them."""
    job_id, body = submission
    patient = place.model_copy(update={"api_lock_seconds": PATIENCE_SECONDS})
    server = ApiProcess(patient)
    try:
        with locked(tmp_path / "service.db", kind), httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as http:
            crowd = Crowd(CROWD, f"{server.url}/v1/jobs", body)
            for _ in range(10):
                assert http.get("/healthz").json() == {"status": "ok"}
                assert http.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"
                assert http.get("/v1/jobs").json()["items"][0]["id"] == job_id
                assert http.get("/readyz").json()["checks"]["database"]["outcome"] == "ok"
            assert crowd.answers == [], "the writers wait"
        assert {answer.status_code for answer in crowd.wait()} == {202}
    finally:
        server.close()


def test_writers_are_told_to_come_back(place: Settings, submission: tuple[str, dict], tmp_path: Path) -> None:
    job_id, body = submission
    server = ApiProcess(place.model_copy(update={"api_lock_seconds": 0.3}))
    try:
        with locked(tmp_path / "service.db", "IMMEDIATE"):
            answers = Crowd(CROWD, f"{server.url}/v1/jobs", body).wait()
            canceled = httpx.post(f"{server.url}/v1/jobs/{job_id}/cancel", timeout=PATIENCE_SECONDS)
        for answer in [*answers, canceled]:
            assert answer.status_code == 503, answer.text
            assert answer.json()["code"] in ("database-unavailable", "service-busy")
            assert int(answer.headers["retry-after"]) >= 1
        assert httpx.post(f"{server.url}/v1/jobs", json=body, timeout=PATIENCE_SECONDS).status_code == 202
        listed = httpx.get(f"{server.url}/v1/jobs", timeout=PATIENCE_SECONDS).json()["items"]
        assert len(listed) == 2, "what was refused was not stored"
    finally:
        server.close()
