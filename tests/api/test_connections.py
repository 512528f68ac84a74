"""Crowds of connections that say nothing: health is answered, the idle ones go, and the log does not fill the disk."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from service.logs import EQUAL_LINES
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess
from tests.worker.workbench import wait_for

PARTIAL_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
JSON = b"Content-Type: application/json\r\nContent-Length: 100\r\n"
PARTIAL_BODY = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + JSON + b"\r\n{"


@pytest.fixture
def place(tmp_path: Path, sqlite_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0)


@contextmanager
def serving(settings: Settings, **options: int) -> Iterator[ApiProcess]:
    server = ApiProcess(settings, **options)
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


def healthy(server: ApiProcess) -> None:
    assert httpx.get(f"{server.url}/healthz", timeout=PATIENCE_SECONDS).json() == {"status": "ok"}


@pytest.mark.parametrize("sent", [b"", PARTIAL_HEAD], ids=["nothing", "half a head"])
def test_more_idle_connections_than_files(place: Settings, sent: bytes) -> None:
    """They are held for longer than any test may take: whoever is answered did not wait for their end."""
    patient = place.model_copy(update={"connection_idle_seconds": PATIENCE_SECONDS})
    with serving(patient, files=320) as server, idle(server, 600, sent):
        for _ in range(5):
            healthy(server)
            assert httpx.get(f"{server.url}/v1/jobs", timeout=PATIENCE_SECONDS).status_code == 200
        assert len(server.log.read_text().splitlines()) < 200


def test_where_no_file_can_be_opened_the_idle_ones_make_room(place: Settings) -> None:
    """The kernel refuses sockets long before the bounds do. A request that is being received is not given up."""
    patient = place.model_copy(update={"connection_idle_seconds": PATIENCE_SECONDS, "body_seconds": PATIENCE_SECONDS})
    with serving(patient) as server, idle(server, 1, PARTIAL_BODY) as (busy,):
        healthy(server)
        server.leave_files(20)
        with idle(server, 300):
            wait_for(lambda: "connections.exhausted" in server.log.read_text(), message="there were files enough")
            for _ in range(5):
                healthy(server)
                assert httpx.get(f"{server.url}/v1/jobs", timeout=PATIENCE_SECONDS).status_code == 200
        healthy(server)
        busy.sendall(b" " * 99)
        assert busy.recv(65536).startswith(b"HTTP/1.1 4"), "its request was dropped"
        assert len(server.log.read_text().splitlines()) < 200


@pytest.mark.parametrize("crowd", [PARTIAL_BODY, PARTIAL_HEAD], ids=["busy", "idle"])
def test_the_log_of_a_process_without_files_stays_short(place: Settings, crowd: bytes) -> None:
    """Where nothing can be closed the listening socket is left alone for a while, and not asked again at once."""
    patient = place.model_copy(update={"connection_idle_seconds": PATIENCE_SECONDS, "body_seconds": PATIENCE_SECONDS})
    with serving(patient) as server:
        server.leave_files(10)
        with idle(server, 100, crowd):
            wait_for(lambda: server.log.read_text().count("connections.exhausted") >= EQUAL_LINES)
        wait_for(lambda: httpx.get(f"{server.url}/v1/jobs", timeout=PATIENCE_SECONDS).status_code == 200)
        told = server.log.read_text()
        assert told.count("connections.exhausted") <= 2 * EQUAL_LINES, "equal lines are not collapsed"
        assert len(told.splitlines()) < 200
        assert "Traceback" not in told


@pytest.mark.parametrize("sent", [b"", PARTIAL_HEAD], ids=["nothing", "half a head"])
def test_idle_connections_are_closed(place: Settings, sent: bytes) -> None:
    with serving(place.model_copy(update={"connection_idle_seconds": 0.3})) as server, idle(server, 20, sent) as crowd:
        assert all(is_closed(one) for one in crowd)
        healthy(server)


def test_a_body_that_does_not_come_is_given_up(place: Settings) -> None:
    with serving(place.model_copy(update={"body_seconds": 0.3})) as server, idle(server, 1, PARTIAL_BODY) as (one,):
        answer = b""
        while part := one.recv(65536):
            answer += part
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"request-stalled"' in answer


def test_where_all_connections_are_busy_health_is_still_served(place: Settings) -> None:
    few = place.model_copy(update={"max_connections_per_address": 3, "body_seconds": PATIENCE_SECONDS})
    with serving(few) as server:
        with idle(server, 3, PARTIAL_BODY):
            wait_for(lambda: httpx.get(f"{server.url}/v1/jobs", timeout=PATIENCE_SECONDS).status_code == 503)
            refused = httpx.get(f"{server.url}/v1/jobs", timeout=PATIENCE_SECONDS)
            assert refused.json()["code"] == "too-many-connections"
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["x-content-type-options"] == "nosniff"
            healthy(server)
            assert httpx.get(f"{server.url}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
        wait_for(lambda: httpx.get(f"{server.url}/v1/jobs", timeout=PATIENCE_SECONDS).status_code == 200)
