"""A real API process: large uploads in little memory, crashes in the middle, and what a client meets meanwhile."""

from __future__ import annotations

import hashlib
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.client import ApiError, Client
from service.contracts.errors import EngineError
from service.contracts.runner import ProgressLine
from service.jobs import events, transitions
from service.settings import Settings
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess
from tests.worker.workbench import wait_for

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
def worker(server: ApiProcess) -> Iterator[Front]:
    """The database behind the server, to do the worker's part."""
    app = create_app(server.settings)
    with TestClient(app) as http:
        yield Front(http, app.state.desk)


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


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
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


def test_a_crash_in_the_middle_of_an_upload(server: ApiProcess) -> None:
    data = b"".join(blocks(24))
    digest = hashlib.sha256(data).hexdigest()
    url = announced(server, size_bytes=len(data), sha256=digest)

    def until_killed() -> Iterator[bytes]:
        for number, block in enumerate(blocks(24)):
            if number == 12:
                wait_for(lambda: kept(url))
                server.kill()
            yield block

    with pytest.raises(httpx.TransportError):
        patched(url, until_killed())
    server.start()
    offset = kept(url)
    assert 0 < offset <= 12 * MIB
    sent = patched(url, data[offset:], offset)
    assert sent.status_code == 204, sent.text
    assert httpx.get(url).json()["sha256"] == digest


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


def test_the_client_goes_on_with_events_after_a_crash(server: ApiProcess, worker: Front) -> None:
    job_id = worker.new_job()
    worker.claim(job_id)
    seen = []
    with Client(server.url, patience_seconds=PATIENCE_SECONDS) as client:
        for event in client.follow(job_id):
            seen.append(event.seq)
            if event.seq == 2:
                server.kill()
                with worker.desk.database.write() as session:
                    events.append(session, job_id, 1, "log", {"message": "while nobody listened"})
                    transitions.record_progress(session, job_id, 1, ProgressLine(stage="ranges"))
                threading.Timer(0.1, server.start).start()
            if event.seq == 4:
                with worker.desk.database.write() as session:
                    transitions.fail(session, job_id, 1, problem=EngineError("x").problem())
    assert seen == [1, 2, 3, 4, 5]


def test_a_damaged_download_breaks_off(server: ApiProcess, worker: Front) -> None:
    data = b"x" * MIB
    job_id = worker.succeeded_job(data)
    artifact = httpx.get(f"{server.url}/v1/jobs/{job_id}/artifacts").json()["items"][0]
    path = worker.desk.store.path(artifact["sha256"])
    path.chmod(0o600)
    path.write_bytes(b"y" + data[1:])
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(server.url + artifact["links"]["content"])
    lines = server.log.read_text().splitlines()
    assert [line for line in lines if " ERROR " in line and artifact["sha256"] in line]


def test_the_key_of_the_settings(tmp_path: Path, sqlite_url: str) -> None:
    key = "0a1b2c3d4e5f-of-a-test"
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0, api_key=key)
    process = ApiProcess(settings)
    try:
        (tmp_path / "net.onnx").write_bytes(b"model")
        with Client(process.url, key) as client:
            assert client.push_model(tmp_path / "net.onnx").status == "validating"
        with Client(process.url, "wrong") as client, pytest.raises(ApiError) as caught:
            client.job("job_x")
        assert caught.value.problem().code == "unauthorized"
        assert key not in process.log.read_text()
    finally:
        process.close()


def test_a_clean_stop(server: ApiProcess) -> None:
    assert server.stop() in (0, -15)
    assert "Traceback" not in server.log.read_text()
