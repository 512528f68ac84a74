"""Servers that say what a test has them say, byte by byte, on a real socket, over TLS or not."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.patience import PATIENCE_SECONDS

Script = Callable[[socket.socket], None]


@dataclass
class Scripted:
    """A running server; ``requests`` are the heads that came, each with what arrived of its body."""

    port: int
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


def replying(reply: bytes) -> Script:
    """Always the same reply."""
    return lambda connection: connection.sendall(reply)


def endless(head: bytes, part: bytes) -> Script:
    """A head, then the same part until the other side is gone."""

    def script(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(part)

    return script


@contextmanager
def scripted(
    script: Script, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, bodies: bool = True
) -> Iterator[Scripted]:
    """Serve with ``script`` for the length of the block. It ends where the client goes away, or the block does.

    Without ``bodies`` nothing behind the head of a request is waited for: the script reads it, or does not.
    """
    listener = socket.create_server((host, 0))
    server = Scripted(listener.getsockname()[1])
    opened: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        try:
            with tls.wrap_socket(connection, server_side=True) if tls else connection as talk:
                server.requests.append(_request(talk, bodies=bodies))
                script(talk)
        except OSError:
            pass  # the client has gone, as many of these tests want
        finally:
            server.ended.set()

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            server.connections += 1
            connection.settimeout(PATIENCE_SECONDS)
            opened.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in opened:
            connection.close()
        thread.join(PATIENCE_SECONDS)


def _request(connection: socket.socket, *, bodies: bool) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    missing = int(lengths[0]) - len(body) if lengths and bodies else 0
    while missing > 0 and (part := connection.recv(65536)):
        data += part
        missing -= len(part)
    return data
