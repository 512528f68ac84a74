"""A TCP proxy that breaks connections off: in the middle of what is sent, or where an event stream is asked for."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress

import httpx

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class BreakingProxy:
    """Passes requests to the server at ``url`` and answers back, and counts what it broke off, refused and sent."""

    def __init__(self, url: str) -> None:
        address = httpx.URL(url)
        self._target = (address.host, address.port or 80)
        # each of the next connections that sends so many bytes is broken off there, one after the other
        self.breaks: list[int] = []
        self.cuts_streams = False  # requests for event streams, before they reach the server
        self.most_bytes: int | None = None  # requests with larger bodies are refused with 413, as proxies do
        self.lose_after: int | None = None  # the next answer is broken off after so many bytes
        self.lose_answers = 0  # so many of the next answers are lost
        self.broken = self.refused = self.sent_bytes = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept nothing more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._join(client, socket.create_connection(self._target))
            del client  # the last one that knows a connection closes it

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        threading.Thread(target=self._upstream, args=(client, server), daemon=True).start()
        threading.Thread(target=self._downstream, args=(server, client), daemon=True).start()

    def _upstream(self, client: socket.socket, server: socket.socket) -> None:
        sent = 0
        with suppress(OSError):
            while data := client.recv(65536):
                if self.cuts_streams and b"text/event-stream" in data:
                    with self._lock:
                        self.broken += 1
                    break
                if self._is_too_large(data):
                    self._refuse(client)
                    break
                server.sendall(data)
                sent += len(data)
                with self._lock:
                    self.sent_bytes += len(data)
                if self._breaks_at(sent):
                    break
        self._shut(client, server)

    def _is_too_large(self, data: bytes) -> bool:
        length = _LENGTH.search(data) if data.startswith(b"PATCH ") else None
        return self.most_bytes is not None and length is not None and int(length[1]) > self.most_bytes

    def _refuse(self, client: socket.socket) -> None:
        """Answer without the server, and take what is on its way: a reset would destroy the answer."""
        with self._lock:
            self.refused += 1
        client.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass

    def _downstream(self, server: socket.socket, client: socket.socket) -> None:
        received = 0
        with suppress(OSError):
            while data := server.recv(65536):
                if self._loses(received):
                    break
                client.sendall(data)
                received += len(data)
        self._shut(client, server)

    def _breaks_at(self, sent_bytes: int) -> bool:
        with self._lock:
            if not self.breaks or sent_bytes < self.breaks[0]:
                return False
            self.breaks.pop(0)
            self.broken += 1
            return True

    def _loses(self, received_bytes: int) -> bool:
        with self._lock:
            if self.lose_after is not None and received_bytes >= self.lose_after:
                self.lose_after = None
            elif self.lose_answers:
                self.lose_answers -= 1
            else:
                return False
            self.broken += 1
            return True

    @staticmethod
    def _shut(*ends: socket.socket) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
