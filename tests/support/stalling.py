"""Servers that fall silent: a TCP proxy that may hold everything back, and a Redis that may be frozen."""

from __future__ import annotations

import ctypes
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis

from tests.support.services import require
from tests.worker.workbench import wait_for

# A filter of one instruction, "keep no byte": the kernel drops what comes for the socket before TCP sees it.
_SO_ATTACH_FILTER = 26
_KEEP_NOTHING = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
_FILTER = struct.pack("HP", 1, ctypes.addressof(_KEEP_NOTHING))


class StallingProxy:
    """Passes bytes to a server, and while it is stalled takes everything and gives nothing, as a hung server does.

    Once it has vanished its kernel acknowledges nothing either, as if its host, or the way to it, were gone.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        """Nothing gets through from here on; connections are still accepted."""
        self._flowing.clear()

    def resume(self) -> None:
        """Go on, with what was held back first."""
        self._flowing.set()

    def vanish(self) -> None:
        """Whatever comes from either side is lost, and nobody is told; there are no new connections."""
        self.stall()
        for each in (self._listener, *self._sockets):
            each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _FILTER)

    def close(self) -> None:
        """Break all connections."""
        self._closed = True
        self.resume()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._flowing.wait()
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        self._sockets.append(server)
        threading.Thread(target=self._pump, args=(client, server), daemon=True).start()
        self._pump(server, client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class FreezableRedis:
    """A Redis of the test's own, with its files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{port}/0"
        self._command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self.start()

    def start(self) -> None:
        """Begin, without what was there before."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        wait_for(self._answers)

    def kill(self) -> None:
        """It is gone at once."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """It stands still: connections are accepted by the kernel, and nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on."""
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with suppress(redis.RedisError), redis.Redis.from_url(self.url) as client:
            return bool(client.ping())
        return False


@contextmanager
def freezable_redis(folder: Path) -> Iterator[FreezableRedis]:
    """A Redis for the length of the block."""
    require(None if shutil.which("redis-server") else "no redis-server: a frozen broker is not tried")
    server = FreezableRedis(folder)
    try:
        yield server
    finally:
        server.kill()
