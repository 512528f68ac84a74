"""A real API process: large uploads in little memory, crashes, crowds of connections, and bodies in any pieces."""

from __future__ import annotations

import hashlib
import random
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.client import Client
from service.settings import Settings
from tests.api.conftest import front_of
from tests.api.serving import served
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess
from tests.worker.workbench import wait_for

pytestmark = pytest.mark.slow
MIB = 1024 * 1024


def quick(folder: Path) -> Settings:
    return Settings(
        data_dir=folder / "data",
        database_url=f"sqlite:///{folder}/service.db",
        min_free_bytes=0,
        ping_seconds=0.3,
        upload_idle_seconds=1.0,
    )


@pytest.fixture(scope="module")
def _process(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path) -> Iterator[ApiProcess]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copyfile(_sqlite_template, folder / "service.db")
    process = ApiProcess(quick(folder))
    yield process
    process.close()


@pytest.fixture
def server(_process: ApiProcess) -> ApiProcess:
    """The one process of these tests; started anew after one that killed it."""
    _process.freshen()
    return _process


@pytest.fixture
def worker(app: FastAPI, server: ApiProcess) -> Iterator[Front]:
    """The database behind the server, to do the worker's part."""
    with front_of(app, server.settings) as front:
        yield front


def blocks(count: int, digest: object | None = None) -> Iterator[bytes]:
    block = bytes(range(256)) * 4096
    for _ in range(count):
        if digest is not None:
            digest.update(block)
        yield block


def announced(server: ApiProcess, **body: Any) -> str:
    """The address of a new upload."""
    made = httpx.post(f"{server.url}/v1/uploads", json={"filename": "net.onnx", **body}, timeout=PATIENCE_SECONDS)
    address: str = server.url + made.json()["links"]["self"]
    return address


def patched(url: str, content: bytes | Iterator[bytes], offset: int = 0, **headers: str) -> httpx.Response:
    given = {"Upload-Offset": str(offset), **headers}
    return httpx.patch(url, content=content, headers=given, timeout=PATIENCE_SECONDS)


def kept(url: str) -> int:
    return int(httpx.head(url, timeout=PATIENCE_SECONDS).headers["upload-offset"])


@pytest.mark.parametrize("method", ["PUT", pytest.param("PATCH", marks=pytest.mark.long)])
def test_memory_does_not_grow_with_the_upload(server: ApiProcess, method: str) -> None:
    size_bytes = 160 * MIB
    url = announced(server, size_bytes=size_bytes)
    before = server.rss_bytes()
    digest = hashlib.sha256()
    if method == "PUT":
        answer = httpx.put(f"{url}/content", content=blocks(160, digest), timeout=PATIENCE_SECONDS)
    else:
        answer = patched(url, blocks(160, digest), **{"Content-Length": str(size_bytes)})
    grown = server.rss_bytes(peak=True) - before
    assert answer.is_success, answer.text
    shown = httpx.get(url).json()
    assert (shown["state"], shown["size_bytes"], shown["sha256"]) == ("complete", size_bytes, digest.hexdigest())
    assert grown < 80 * MIB, f"memory grew by {grown / MIB:.0f} MiB"


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_client_that_breaks_off_is_one_line_in_the_log(server: ApiProcess, method: str) -> None:
    noun = announced(server, size_bytes=8 * MIB)
    path = noun.removeprefix(server.url) + ("/content" if method == "PUT" else "")
    offset = "" if method == "PUT" else "Upload-Offset: 0\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {8 * MIB}\r\n{offset}\r\n"
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port)) as connection:
        connection.sendall(head.encode() + b"x" * 4 * MIB)
        seen = wait_for(lambda: kept(noun))
    wait_for(lambda: "request.broken_off" in server.log.read_text())
    assert seen <= kept(noun) <= 4 * MIB
    lines = server.log.read_text().splitlines()
    told = [line for line in lines if path in line or "ClientDisconnect" in line or "Traceback" in line]
    assert len(told) == 1, told
    assert " INFO " in told[0]
    assert f"request.broken_off {method} {path}" in told[0]
    assert not [line for line in lines if " ERROR " in line]


def test_the_client_gets_through_a_crash(server: ApiProcess, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"".join(blocks(32)))
    seen: list[int] = []
    killed = threading.Event()

    def progress(sent: int, total: int) -> None:
        seen.append(sent)
        assert total == 32 * MIB
        if sent >= 16 * MIB and not killed.is_set():
            killed.set()
            server.kill()
            threading.Timer(0.1, server.start).start()

    with Client(server.url, patience_seconds=PATIENCE_SECONDS) as client:
        upload = client.upload_file(path, kind="model", progress=progress)
    assert killed.is_set()
    assert upload.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    shown = httpx.get(f"{server.url}/v1/uploads/{upload.id}").json()
    assert (shown["state"], shown["sha256"]) == ("complete", upload.sha256)
    assert seen[-1] == 32 * MIB


def test_one_writer_at_a_time(server: ApiProcess) -> None:
    url = announced(server, size_bytes=4 * MIB)
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        for number, block in enumerate(blocks(4)):
            if number == 2:
                begun.set()
                assert go_on.wait(PATIENCE_SECONDS)
            yield block

    answers: list[httpx.Response] = []
    first = threading.Thread(target=lambda: answers.append(patched(url, slowly())))
    first.start()
    assert begun.wait(PATIENCE_SECONDS)
    wait_for(lambda: kept(url))
    second, third = patched(url, b"x"), httpx.put(f"{url}/content", content=b"x")
    go_on.set()
    first.join()
    for refused in (second, third):
        assert (refused.status_code, refused.json()["code"]) == (409, "upload-busy")
        assert refused.headers["retry-after"] == "1"
    assert answers[0].status_code == 204
    assert httpx.get(url).json()["state"] == "complete"


def test_a_silent_client_is_cut_off_and_what_it_sent_is_kept(server: ApiProcess) -> None:
    url = announced(server, size_bytes=4 * MIB)

    def stalling() -> Iterator[bytes]:
        yield b"x" * 1000
        wait_for(lambda: patched(url, b"", 9).json()["code"] != "upload-busy")
        yield b"y" * 1000

    answer = patched(url, stalling())
    assert (answer.status_code, answer.json()["code"]) == (408, "upload-stalled")
    assert kept(url) == 1000


def test_a_clean_stop_does_not_wait_for_streams(server: ApiProcess, worker: Front) -> None:
    url = f"{server.url}/v1/jobs/{worker.new_job()}/events"
    with httpx.stream("GET", url, headers={"Accept": "text/event-stream"}, timeout=PATIENCE_SECONDS) as answer:
        assert next(answer.iter_text()).startswith("retry")
        assert server.stop() in (0, -15)
    assert "Traceback" not in server.log.read_text()


PARTIAL_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
JSON = b"Content-Type: application/json\r\nContent-Length: 100\r\n"
PARTIAL_BODY = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + JSON + b"\r\n{"


@pytest.fixture
def place(tmp_path: Path, sqlite_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0)


@contextmanager
def serving(settings: Settings) -> Iterator[ApiProcess]:
    server = ApiProcess(settings)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def idle(server: ApiProcess, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, held open for the length of the block."""
    address = httpx.URL(server.url)
    crowd = []
    try:
        for _ in range(count):
            one = socket.create_connection((address.host, address.port), timeout=PATIENCE_SECONDS)
            one.sendall(sent)
            crowd.append(one)
        yield crowd
    finally:
        for one in crowd:
            one.close()


def is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


def jobs_of(server: ApiProcess) -> httpx.Response:
    return httpx.get(f"{server.url}/v1/jobs", timeout=PATIENCE_SECONDS)


def healthy(server: ApiProcess) -> None:
    assert httpx.get(f"{server.url}/healthz", timeout=PATIENCE_SECONDS).json() == {"status": "ok"}


def test_idle_connections_are_closed_and_a_body_that_does_not_come_is_given_up(place: Settings) -> None:
    with serving(place.model_copy(update={"connection_idle_seconds": 1.0, "body_seconds": 0.3})) as server:
        for sent in (b"", PARTIAL_HEAD):
            with idle(server, 20, sent) as crowd:
                assert all(is_closed(one) for one in crowd)
                healthy(server)
        with idle(server, 1, PARTIAL_BODY) as (one,):
            answer = b""
            while part := one.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"request-stalled"' in answer


def test_where_all_connections_are_busy_health_is_still_served(place: Settings) -> None:
    few = place.model_copy(update={"max_connections_per_address": 3, "body_seconds": PATIENCE_SECONDS})
    with serving(few) as server:
        with idle(server, 3, PARTIAL_BODY):
            wait_for(lambda: jobs_of(server).status_code == 503)
            refused = jobs_of(server)
            assert refused.json()["code"] == "too-many-connections"
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["x-content-type-options"] == "nosniff"
            healthy(server)
            assert httpx.get(f"{server.url}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
        wait_for(lambda: jobs_of(server).status_code == 200)


DATA = random.Random(5).randbytes(3 * 1024 * 1024 + 17)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PIECES = {"many": [1, 2, 3, 70_000, 5, 300_000], "few": [2**20], "one": [len(DATA) + 10_000]}


@pytest.fixture
def address(app: FastAPI, front: Front) -> Iterator[str]:
    with served(app) as url:
        yield url


def opened(address: str) -> str:
    body = {"filename": "x.npz", "size_bytes": len(DATA)}
    identity: str = httpx.post(f"{address}/v1/uploads", json=body, timeout=PATIENCE_SECONDS).json()["id"]
    return identity


def answers(address: str, sent: bytes, pieces: list[int]) -> bytes:
    """All that comes back until the service closes the connection."""
    place = httpx.URL(address)
    with socket.create_connection((place.host, place.port), timeout=PATIENCE_SECONDS) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        offset = turn = 0
        while offset < len(sent):
            size = pieces[turn % len(pieces)]
            one.sendall(sent[offset : offset + size])
            offset, turn = offset + size, turn + 1
        received = b""
        while block := one.recv(65536):
            received += block
        return received


def patch_head(path: str, length: int) -> bytes:
    head = f"PATCH {path} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\nContent-Length: {length}\r\n"
    return head.encode() + b"Content-Type: application/octet-stream\r\n\r\n"


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_a_body_arrives_whole_and_the_request_behind_it_is_answered(address: str, pieces: list[int]) -> None:
    identity = opened(address)
    received = answers(address, patch_head(f"/v1/uploads/{identity}", len(DATA)) + DATA + HEALTH, pieces)
    assert received.startswith(b"HTTP/1.1 204")
    assert received.count(b"HTTP/1.1 ") == 2
    assert received.endswith(b'{"status":"ok"}')
    shown = httpx.get(f"{address}/v1/uploads/{identity}", timeout=PATIENCE_SECONDS).json()
    assert (shown["state"], shown["sha256"]) == ("complete", hashlib.sha256(DATA).hexdigest())


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_the_rest_of_a_body_that_nobody_wants_is_no_request(address: str, pieces: list[int]) -> None:
    body = HEALTH * 20_000
    received = answers(address, patch_head("/v1/uploads/upl_unknown", len(body)) + body + HEALTH, pieces)
    assert received.startswith(b"HTTP/1.1 404")
    assert received.count(b"HTTP/1.1 200") <= 1
