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
from tests.support.each import each
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess
from tests.worker.workbench import wait_for

pytestmark = pytest.mark.slow  # starts a process
# More than the kernel's buffers on both sides take.
LARGE_BYTES = 40 * 1024**2
SOON = 0.4
SSE = "Accept: text/event-stream\r\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path) -> Settings:
    folder = tmp_path_factory.mktemp("readers")
    (folder / "service.db").write_bytes(_sqlite_template.read_bytes())
    soon = {"reading_seconds": SOON, "connection_idle_seconds": SOON, "upload_idle_seconds": 1.0}
    return Settings(data_dir=folder, database_url=f"sqlite:///{folder / 'service.db'}", min_free_bytes=0, **soon)


@pytest.fixture(scope="module")
def server(shared: Settings) -> Iterator[ApiProcess]:
    """In a hurry, and used by all that do not stop it."""
    with serving(shared) as process:
        yield process


@pytest.fixture
def filled(app: FastAPI, shared: Settings) -> Iterator[Front]:
    with front_of(app, shared) as front:
        yield front


@contextmanager
def serving(settings: Settings) -> Iterator[ApiProcess]:
    process = ApiProcess(settings)
    try:
        yield process
    finally:
        process.close()


def download(filled: Front, size: int) -> str:
    job_id = filled.succeeded_job(bytes(size))
    artifact = filled.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"][0]["id"]
    return f"/v1/artifacts/{artifact}/content"


def connected(server: ApiProcess, *, timeout: float = PATIENCE_SECONDS, buffer_bytes: int | None = None):
    address, one = httpx.URL(server.url), socket.socket()
    if buffer_bytes is not None:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    one.settimeout(timeout)
    one.connect((address.host, address.port))
    return one


def asking(server: ApiProcess, *paths: str, headers: str = "") -> socket.socket:
    """A connection on which all of these were asked for, and nothing is read."""
    one = connected(server, buffer_bytes=4096)
    one.sendall(b"".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode() for path in paths))
    return one


def rest(one: socket.socket) -> bytes:
    parts = []
    try:
        while part := one.recv(1024**2):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def is_held(one: socket.socket) -> bool:
    """Whether the kernel still has the service's end of a connection."""
    ours, theirs = (f":{end[1]:04X}" for end in (one.getpeername(), one.getsockname()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(ours) and row[2].endswith(theirs) for row in rows)


def is_cut_off(server: ApiProcess, whole_bytes: int, *paths: str, headers: str = "") -> None:
    """The service gives the connection up, although the client still holds it; others are served."""
    before = server.open_sockets()
    with asking(server, *paths, headers=headers) as one:
        assert is_held(one)
        wait_for(lambda: not is_held(one), message="the reader was waited for")
        wait_for(lambda: server.open_sockets() <= before, message="its socket was kept")
        assert httpx.get(f"{server.url}/healthz", timeout=PATIENCE_SECONDS).status_code == 200
        assert len(rest(one)) < whole_bytes


def test_a_download_that_nobody_reads(filled: Front, server: ApiProcess) -> None:
    path = download(filled, LARGE_BYTES)
    is_cut_off(server, LARGE_BYTES, path)
    whole = httpx.get(f"{server.url}{path}", timeout=PATIENCE_SECONDS)
    assert len(whole.content) == LARGE_BYTES, "a client that reads is served"


def test_an_event_stream_that_nobody_reads(filled: Front, server: ApiProcess) -> None:
    job_id = filled.new_job()
    filled.claim(job_id)
    text = {"level": "info", "message": "x" * 100_000}
    with filled.app.database.write() as session:
        for _ in range(20):
            events.append_all(session, job_id, 1, [("log", text)] * 10)
    is_cut_off(server, 20 * 10 * 100_000, f"/v1/jobs/{job_id}/events", headers=SSE)


@pytest.mark.long
def test_answers_that_nobody_reads(server: ApiProcess) -> None:
    """Many requests on one connection; each answer is small, together they are not."""
    size = len(httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE_SECONDS).content)
    is_cut_off(server, LARGE_BYTES - size, *["/openapi.json"] * (LARGE_BYTES // size))


@pytest.mark.long
def test_a_last_answer_that_nobody_reads(server: ApiProcess) -> None:
    """The connection is to be closed, and would wait for that until everything was read."""
    size = len(httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE_SECONDS).content)
    is_cut_off(server, 20 * size, *["/openapi.json"] * 20, headers="X-Last: 1\r\n")


@pytest.mark.long
def test_who_reads_slowly_is_served(filled: Front, shared: Settings) -> None:
    """Some kilobytes now and then are enough, however large the answer is."""
    path = download(filled, LARGE_BYTES // 8)
    patient = shared.model_copy(update={"reading_seconds": PATIENCE_SECONDS})
    with serving(patient) as server, asking(server, path, headers="Connection: close\r\n") as one:
        assert sum(map(len, iter(lambda: one.recv(16 * 1024), b""))) > LARGE_BYTES // 8


def test_an_upload_that_drips_in(server: ApiProcess) -> None:
    """Never silent for long, and never at an end: what has arrived is kept, and can be gone on from."""
    made = httpx.post(f"{server.url}/v1/uploads", json={"filename": "a.npz", "size_bytes": 1000}).json()["id"]
    with connected(server, timeout=0.05) as one:
        head = f"PATCH /v1/uploads/{made} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\nContent-Length: 1000\r\n"
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
        answer += rest(one)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"upload-stalled"' in answer
    kept = httpx.head(f"{server.url}/v1/uploads/{made}", timeout=PATIENCE_SECONDS)
    assert int(kept.headers["Upload-Offset"]) > 0


POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"


@each(
    ("sent", "status", "code"),
    [
        (b"NONSENSE\r\n\r\n", 400, "malformed-request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, "malformed-request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed-request"),
        (POST + b"Content-Length: -1\r\n\r\n", 400, "malformed-request"),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "malformed-request"),
        (b"GET /" + b"a" * 70_000, 431, "headers-too-large"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000, 431, "headers-too-large"),
    ],
)
def test_what_is_no_request_is_told_as_every_problem(server: ApiProcess, sent: bytes, status: int, code: str) -> None:
    with connected(server) as one:
        one.sendall(sent)
        head, _, body = rest(one).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/problem+json" in head
    assert b"x-content-type-options: nosniff" in head
    assert f'"code":"{code}"'.encode() in body
