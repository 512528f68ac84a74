"""The HTTP server: uvicorn, with a bound on everything that a connection may keep to itself.

Uvicorn's own timeouts begin with the first request, and asyncio's own accept loop, once no file can be opened any more,
tries (and logs) some thousand times a second. So connections are accepted and watched over here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import h11
import uvicorn
from h11._readers import ContentLengthReader
from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.connections import Bounds, Connections, HealthOnly
from service.contracts.errors import QuantmillError
from service.errors import PROBLEM_MEDIA_TYPE, MalformedRequestError
from service.limits import HEAD_BYTES, HeadersTooLargeError
from service.security_headers import security_headers

BACKLOG = 1024
# Of an answer, what the kernel holds that was not sent: with less of it the loop is told that there is room for more.
UNSENT_BYTES = 128 * 1024
# Of what waits to be sent, a client has to take so much in the time that it is given, or all of it.
READ_BYTES = 64 * 1024
# Connections taken in one go: the requests of others are not to wait for a whole crowd.
_ACCEPTS = 64
# After no file could be opened: while those without a request are closed, and where there are none.
SHED_SECONDS = 0.05
EXHAUSTED_SECONDS = 0.5
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
log = logging.getLogger(__name__)


class FrontProtocol(H11Protocol):
    """One connection: as uvicorn's, but it may not be idle for ever, nor take its time with the head of a request.

    Nor may it leave an answer unread: what waits to be sent has to move on, or the connection is given up.
    """

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.address = ""
        self._connections_kept = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It was accepted."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        # to be told of every byte that has to wait, and of the moment when none does any more
        transport.set_write_buffer_limits(high=0)
        if not self._connections_kept.admit(self):
            self.app = cast(Any, HealthOnly(cast(Any, self.app)))
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of several."""
        if not self._hand_over(data):
            super().data_received(data)
        self._note()

    def _hand_over(self, data: bytes) -> bool:
        """Give bytes from the middle of a body to its request as they are.

        h11 would copy them three times on their way, and uvicorn twice more, which is most of what an upload costs. It
        sees the beginning of each body, and its end with all that follows.

        Returns:
            Whether that is what they were.
        """
        reader = self.conn._reader
        if not isinstance(reader, ContentLengthReader) or len(data) >= reader._remaining:
            return False
        if self.conn.their_state is not h11.SEND_BODY or self.conn.our_state is h11.DONE or self.conn.trailing_data[0]:
            return False
        reader._remaining -= len(data)
        cycle = self.cycle
        cycle.body = cast(bytearray, cycle.body + data if cycle.body else data)
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()
        return True

    def on_response_complete(self) -> None:
        """A response was sent; uvicorn gives the connection some time for the next request."""
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        """Something of an answer waits: the client has to take it."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """It has taken all of it."""
        super().resume_writing()
        self._clear_unread()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has too large a head, in the form of every other problem."""
        error = sys.exception()
        too_large = getattr(error, "error_status_hint", 400) == HeadersTooLargeError.status
        problem: QuantmillError = (
            HeadersTooLargeError(f"The head of the request is larger than {HEAD_BYTES} bytes.", hint="Send less of it.")
            if too_large
            else MalformedRequestError("This is no HTTP request.", hint="Look at the request's form.")
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

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self._connections_kept.forget(self)
        self._clear_deadline()
        self._clear_unread()
        super().connection_lost(exc)

    def _note(self) -> None:
        """Be bounded by time as long as there is no request: head and first byte are waited for alike."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._connections_kept.busy(self)
            self._clear_deadline()
            return
        self._connections_kept.idle(self)
        if self.timeout_keep_alive_task is None:
            self._set_deadline()

    def _set_deadline(self) -> None:
        if self._deadline is None:
            seconds = self._connections_kept.bounds.idle_seconds
            self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()

    def _watch_reader(self) -> None:
        self._clear_unread()
        waiting = self.transport.get_write_buffer_size()
        seconds = self._connections_kept.bounds.reading_seconds
        self._unread = self.loop.call_later(seconds, self._on_unread, waiting)

    def _clear_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _on_unread(self, waited: int) -> None:
        """Not closed but aborted: to close is to wait until the rest was read."""
        self._unread = None
        if waited - self.transport.get_write_buffer_size() >= READ_BYTES:
            self._watch_reader()
            return
        log.warning("connections.unread address=%s: an answer is not read", self.address)
        self.transport.abort()


class Listener:
    """Accepts connections of one listening socket; stands in for asyncio's own server.

    Args:
        listening: bound; it is made to listen.
        make_protocol: one per connection.
        shed: closes some connections that can be spared; tells how many.
        spare: where there are none, closes other files that can be spared. Called in a thread: it may take its time.
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        shed: Callable[[], int],
        spare: Callable[[], None],
    ) -> None:
        self._socket = listening
        self._make_protocol = make_protocol
        self._shed = shed
        self._spare = spare
        self._sparing: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._resume()

    def close(self) -> None:
        """Accept no more."""
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        if self._retry is not None:
            self._retry.cancel()

    async def wait_closed(self) -> None:
        """There is nothing to wait for."""

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                connection, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(error)
                return
            connection.setblocking(False)
            # what the client does not take waits here, where it is counted, and not in the kernel
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            task = self._loop.create_task(self._connect(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def _pause(self, error: OSError) -> None:
        """Make room, and look at the socket again once there may be some: it stays readable all the while."""
        shed = self._shed()
        if not shed and (self._sparing is None or self._sparing.done()):
            self._sparing = self._loop.run_in_executor(None, self._spare)
        seconds = SHED_SECONDS if shed else EXHAUSTED_SECONDS
        log.warning("connections.exhausted: none is accepted for %g s: %s", seconds, error)
        self._loop.remove_reader(self._socket.fileno())
        self._retry = self._loop.call_later(seconds, self._resume)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            log.info("connections.broken_off: %s", error)
            connection.close()


class FrontServer(uvicorn.Server):
    """Uvicorn's server on our own listeners.

    Args:
        config: of uvicorn.
        bounds: of its connections.
        on_stop: called once no more connections are accepted: who waits for news is to be answered now.
        spare: closes files of the application that nobody uses now, where no connection can be spared any more.
    """

    def __init__(self, config: Config, bounds: Bounds, on_stop: Callable[[], None], spare: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._spare = spare
        self._connections = Connections(bounds)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        listening: Sequence[socket.socket] = sockets or ()
        shed = self._connections.shed
        self.servers = cast(Any, [Listener(each, self._make_protocol, shed, self._spare) for each in listening])
        for each in listening:
            log.info("listening on %s", each.getsockname())
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer who waits, then as uvicorn's."""
        self._on_stop()
        await super().shutdown(sockets)

    def _make_protocol(self) -> FrontProtocol:
        return FrontProtocol(
            self._connections,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )


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
