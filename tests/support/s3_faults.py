"""A proxy in front of an S3 server, on loopback, that breaks what a test wants to see broken: the network's edge."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Fault = Literal["unavailable", "hang", "reset", "truncate", "slow"]
SLOW_SECONDS = 0.3


class FaultyBucket:
    """Requests for which ``broken`` says a fault meet it; all others reach the server behind."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream = upstream_port
        self._broken: Callable[[str, str], Fault | None] = lambda method, path: None
        self.seen: list[tuple[str, str]] = []
        self.thawed = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                proxy._serve(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[FaultyBucket]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.thawed.set()
            self._server.shutdown()
            self._server.server_close()

    @contextmanager
    def broken(self, fault: Fault, *, method: str = "", path: str = "", times: int = 1_000_000) -> Iterator[None]:
        """Requests of this method (all, if empty) whose path has ``path`` in it meet the fault, so many at most."""
        left, lock = times, threading.Lock()

        def judge(seen_method: str, seen_path: str) -> Fault | None:
            nonlocal left
            if method not in ("", seen_method) or path not in seen_path:
                return None
            with lock:
                left -= 1
                return fault if left >= 0 else None

        self._broken = judge
        self.thawed.clear()
        try:
            yield
        finally:
            self._broken = lambda method, path: None
            self.thawed.set()

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.seen.append((request.command, request.path))
        fault = self._broken(request.command, request.path)
        if fault == "hang":
            self.thawed.wait()
        if fault in ("hang", "reset"):
            request.close_connection = True
            return
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        if fault == "unavailable":
            request.wfile.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self._upstream)
        upstream.request(request.command, request.path, body, dict(request.headers))
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in ("connection", "date")}
        headers.pop("Transfer-Encoding", None)
        headers.setdefault("Content-Length", str(len(data)))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        request.wfile.write(f"HTTP/1.1 {answer.status} {answer.reason}\r\n{head}\r\n".encode())
        if fault == "truncate":
            request.wfile.write(data[: len(data) // 2])
            request.close_connection = True
            return
        request.wfile.write(data)
