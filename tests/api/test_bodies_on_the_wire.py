"""Bodies as they arrive: in any pieces, with the next request behind them, or unwanted."""

from __future__ import annotations

import hashlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess

DATA = random.Random(5).randbytes(3 * 1024 * 1024 + 17)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PIECES = {
    "many": [1, 2, 3, 70_000, 5, 300_000],
    "few": [2**20],
    "one": [len(DATA) + 10_000],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    from service.db import migrate

    folder: Path = tmp_path_factory.mktemp("wire")
    url = f"sqlite:///{folder / 'service.db'}"
    migrate(url)
    process = ApiProcess(Settings(data_dir=folder / "data", database_url=url, min_free_bytes=0))
    yield process
    process.close()


def opened(server: ApiProcess) -> str:
    body = {"filename": "x.npz", "size_bytes": len(DATA)}
    identity: str = httpx.post(f"{server.url}/v1/uploads", json=body, timeout=PATIENCE_SECONDS).json()["id"]
    return identity


def answers(server: ApiProcess, sent: bytes, pieces: list[int]) -> bytes:
    """All that comes back until the service closes the connection."""
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port), timeout=PATIENCE_SECONDS) as one:
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


def patch(path: str, length: int) -> bytes:
    head = f"PATCH {path} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\nContent-Length: {length}\r\n"
    return head.encode() + b"Content-Type: application/octet-stream\r\n\r\n"


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_a_body_arrives_whole_and_the_request_behind_it_is_answered(server: ApiProcess, pieces: list[int]) -> None:
    identity = opened(server)
    received = answers(server, patch(f"/v1/uploads/{identity}", len(DATA)) + DATA + HEALTH, pieces)
    assert received.startswith(b"HTTP/1.1 204")
    assert received.count(b"HTTP/1.1 ") == 2
    assert received.endswith(b'{"status":"ok"}')
    shown = httpx.get(f"{server.url}/v1/uploads/{identity}", timeout=PATIENCE_SECONDS).json()
    assert (shown["state"], shown["sha256"]) == ("complete", hashlib.sha256(DATA).hexdigest())


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_the_rest_of_a_body_that_nobody_wants_is_no_request(server: ApiProcess, pieces: list[int]) -> None:
    body = HEALTH * 20_000
    received = answers(server, patch("/v1/uploads/upl_unknown", len(body)) + body + HEALTH, pieces)
    assert received.startswith(b"HTTP/1.1 404")
    assert received.count(b"HTTP/1.1 200") <= 1
