"""Clients that ask and do not read, or that write a byte now and then, on real sockets: they are cut off."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from service.jobs import events
from service.settings import Settings
from tests.api.conftest import front_of
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess
from tests.worker.workbench import wait_for

pytestmark = pytest.mark.slow  # starts a process
# More than the kernel's buffers on both sides take.
LARGE_BYTES = 40 * 1024**2
SOON = 0.4
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def place(tmp_path: Path, sqlite_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0)


@pytest.fixture
def filled(app: FastAPI, place: Settings) -> Iterator[Front]:
    with front_of(app, place) as front:
        yield front


@contextmanager
def serving(place: Settings, **settings: float) -> Iterator[ApiProcess]:
    server = ApiProcess(place.model_copy(update=settings))
    try:
        yield server
    finally:
        server.close()


@contextmanager
def asking(server: ApiProcess, *paths: str, headers: str = "") -> Iterator[socket.socket]:
    """A connection on which all of these were asked for, and nothing is read."""
    address = httpx.URL(server.url)
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(PATIENCE_SECONDS)
        one.connect((address.host, address.port))
        one.sendall(b"".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode() for path in paths))
        yield one


def was_cut_off(server: ApiProcess, one: socket.socket, whole_bytes: int) -> None:
    """The service has given the connection up, although the client still holds it; others are served."""
    wait_for(lambda: "connections.unread" in server.log.read_text(), message="the reader was waited for")
    assert httpx.get(f"{server.url}/healthz", timeout=PATIENCE_SECONDS).status_code == 200
    read = 0
    try:
        while part := one.recv(1024**2):
            read += len(part)
    except ConnectionResetError:
        pass
    assert read < whole_bytes


def test_a_download_that_nobody_reads(filled: Front, place: Settings) -> None:
    job_id = filled.succeeded_job(bytes(LARGE_BYTES))
    artifact = filled.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"][0]["id"]
    path = f"/v1/artifacts/{artifact}/content"
    with serving(place, reading_seconds=SOON) as server, asking(server, path) as one:
        was_cut_off(server, one, LARGE_BYTES)
        whole = httpx.get(f"{server.url}{path}", timeout=PATIENCE_SECONDS)
        assert len(whole.content) == LARGE_BYTES, "a client that reads is served"


def test_an_event_stream_that_nobody_reads(filled: Front, place: Settings) -> None:
    job_id = filled.new_job()
    filled.claim(job_id)
    text = {"level": "info", "message": "x" * 100_000}
    with filled.desk.database.write() as session:
        for _ in range(20):
            events.append_all(session, job_id, 1, [("log", text)] * 10)
    with (
        serving(place, reading_seconds=SOON) as server,
        asking(server, f"/v1/jobs/{job_id}/events", headers="Accept: text/event-stream\r\n") as one,
    ):
        was_cut_off(server, one, 20 * 10 * 100_000)


def test_answers_that_nobody_reads(place: Settings) -> None:
    """Many requests on one connection; each answer is small, together they are not."""
    with serving(place, reading_seconds=SOON) as server:
        size = len(httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE_SECONDS).content)
        with asking(server, *["/openapi.json"] * (LARGE_BYTES // size)) as one:
            was_cut_off(server, one, LARGE_BYTES - size)


def test_a_last_answer_that_nobody_reads(place: Settings) -> None:
    """The connection is to be closed, and would wait for that until everything was read."""
    with serving(place, reading_seconds=SOON, connection_idle_seconds=SOON) as server:
        size = len(httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE_SECONDS).content)
        before = server.open_files()
        with asking(server, *["/openapi.json"] * 20, headers="X-Last: 1\r\n") as one:
            read = 0

            def was_taken() -> bool:
                return server.open_files() > before or "connections.unread" in server.log.read_text()

            wait_for(was_taken, message="the connection was not taken")
            wait_for(lambda: server.open_files() <= before, message="the connection was kept")
            try:
                while part := one.recv(1024**2):
                    read += len(part)
            except ConnectionResetError:
                pass
            assert read < 20 * size


def test_who_reads_slowly_is_served(filled: Front, place: Settings) -> None:
    """Some kilobytes now and then are enough, however large the answer is."""
    job_id = filled.succeeded_job(bytes(LARGE_BYTES // 8))
    artifact = filled.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"][0]["id"]
    with serving(place, reading_seconds=PATIENCE_SECONDS) as server:
        with asking(server, f"/v1/artifacts/{artifact}/content", headers="Connection: close\r\n") as one:
            read = 0
            while part := one.recv(16 * 1024):
                read += len(part)
            assert read > LARGE_BYTES // 8
        assert "connections.unread" not in server.log.read_text()


def test_an_upload_that_drips_in(place: Settings) -> None:
    """Never silent for long, and never at an end: what has arrived is kept, and can be gone on from."""
    with serving(place, upload_idle_seconds=1.0) as server:
        made = httpx.post(f"{server.url}/v1/uploads", json={"filename": "a.npz", "size_bytes": 1000}).json()["id"]
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port), timeout=0.05) as one:
            head = (
                f"PATCH /v1/uploads/{made} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\nContent-Length: 1000\r\n"
            )
            one.sendall(head.encode() + b"\r\n")
            answer = b""
            for _ in range(900):
                try:
                    one.sendall(b"x")
                    answer = one.recv(65536)
                    break
                except TimeoutError:
                    continue
            one.settimeout(PATIENCE_SECONDS)
            while more := one.recv(65536):
                answer += more
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"upload-stalled"' in answer
        kept = httpx.head(f"{server.url}/v1/uploads/{made}", timeout=PATIENCE_SECONDS)
        assert int(kept.headers["Upload-Offset"]) > 0


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"NONSENSE\r\n\r\n", 400, "malformed-request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, "malformed-request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed-request"),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400, "malformed-request"),
        (
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
            "malformed-request",
        ),
        (b"GET /" + b"a" * 70_000, 431, "headers-too-large"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000, 431, "headers-too-large"),
    ],
    ids=["nonsense", "TLS", "no host", "negative length", "two lengths", "a long line", "many headers"],
)
def test_what_is_no_request_is_told_as_every_problem(process: ApiProcess, sent: bytes, status: int, code: str) -> None:
    address = httpx.URL(process.url)
    with socket.create_connection((address.host, address.port), timeout=PATIENCE_SECONDS) as one:
        one.sendall(sent)
        answer = b""
        try:
            while part := one.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/problem+json" in head
    assert b"x-content-type-options: nosniff" in head
    assert f'"code":"{code}"'.encode() in body


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path) -> Iterator[ApiProcess]:
    folder = tmp_path_factory.mktemp("parser")
    (folder / "service.db").write_bytes(_sqlite_template.read_bytes())
    with serving(Settings(data_dir=folder, database_url=f"sqlite:///{folder / 'service.db'}", min_free_bytes=0)) as one:
        yield one
