"""The HTTP server: uvicorn, with problems as responses to invalid HTTP too.

Of time and crowds it bounds what one process can at little cost: a request's head, silence between two requests, and an
answer that nobody takes. What a hostile network can do beyond that is a proxy's work: docs/deploy.md.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
from collections.abc import Callable

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.contracts.errors import QuantmillError
from service.errors import PROBLEM_MEDIA_TYPE, MalformedRequestError
from service.limits import HEAD_BYTES, HeadersTooLargeError
from service.middleware import security_headers

# Connections that wait to be accepted; where no file can be opened, asyncio logs as many lines a second.
BACKLOG = 128
log = logging.getLogger(__name__)


class ProblemProtocol(H11Protocol):
    """One connection, as uvicorn's; the head of a request must have come within its keep-alive time, too."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It was accepted."""
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of several."""
        super().data_received(data)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self._stop_head_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has too large a head, in the form of every other problem."""
        error = sys.exception()
        too_large = getattr(error, "error_status_hint", 400) == HeadersTooLargeError.status
        problem: QuantmillError = (
            HeadersTooLargeError(
                f"The headers of the request are larger than {HEAD_BYTES} bytes.", hint="Send fewer or smaller headers."
            )
            if too_large
            else MalformedRequestError("The request is not valid HTTP.", hint="Check the format of the request.")
        )
        body = problem.problem().model_dump_json(exclude_none=True).encode()
        headers = {
            **security_headers(),
            "Content-Type": PROBLEM_MEDIA_TYPE,
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(self.conn.send(h11.Response(status_code=problem.status, headers=raw)) or b"")
            self.transport.write(self.conn.send(h11.Data(data=body)) or b"")
        self.transport.close()

    def _time_head(self) -> None:
        """Bound the time of a head that has not come whole; from its first byte on, however often another comes."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class ApiServer(uvicorn.Server):
    """Uvicorn's server.

    Args:
        config: of uvicorn.
        on_stop: called once no more connections are accepted: who waits for news is to be answered now.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer who waits, then as uvicorn's."""
        self._on_stop()
        await super().shutdown(sockets)


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """A bound socket for every address that ``host`` stands for; port 0 takes any free one, the same for all.

    Raises:
        OSError: an address is taken, not ours, or forbidden.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        bound = socket.socket(family, kind, protocol)
        sockets.append(bound)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = port or (sockets[0].getsockname()[1] if len(sockets) > 1 else 0)
            bound.bind((address[0], chosen, *address[2:]))
        except OSError:
            for each in sockets:
                each.close()
            raise
    return sockets


def bound_reading(listening: socket.socket, seconds: float) -> None:
    """Let the kernel give up connections of this socket whose clients take nothing for so long (Linux, tcp(7))."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(seconds * 1000)))


def raise_descriptor_limit() -> None:
    """Let this process open as many files as it may at all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("server.descriptor_limit soft=%d hard=%d: %s", soft, hard, error)
