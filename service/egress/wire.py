"""Network layer of a request: connects to checked addresses only, with limits on time and size."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore

from service.egress.addresses import Address
from service.egress.errors import NoReplyError, UnreachableError

_READ_BYTES = 16 * 1024


class Deadline:
    """A moment after which nothing is waited for; every wait on the way takes of the same time.

    Args:
        seconds: to that moment.
        step_seconds: that each step has at most: whoever stands still is not waited for until the end of all.
    """

    def __init__(self, seconds: float, step_seconds: float | None = None) -> None:
        self._ends = time.monotonic() + seconds
        self._step_seconds = seconds if step_seconds is None else step_seconds
        self.step()

    def step(self) -> None:
        """Another step begins."""
        self._step_ends = min(self._ends, time.monotonic() + self._step_seconds)

    @property
    def left_seconds(self) -> float:
        """What there still is for this step; 0 once it has passed."""
        return max(0.0, self._step_ends - time.monotonic())

    def hold(self, connection: socket.socket) -> None:
        """Let the next call on ``connection`` last no longer.

        Raises:
            TimeoutError: it has passed.
        """
        left = self.left_seconds
        if not left:
            raise TimeoutError("the time limit was exceeded")
        connection.settimeout(left)


class BoundedStream(httpcore.NetworkStream):
    """A connection whose bytes and whose time are counted; ``left_bytes`` may still be read."""

    def __init__(self, connection: socket.socket, deadline: Deadline, left_bytes: int) -> None:
        self._connection = connection
        self._deadline = deadline
        self.left_bytes = left_bytes

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Some bytes of the reply.

        Raises:
            httpcore.ReadError, httpcore.ReadTimeout: it broke off, is too slow or too large.
        """
        if self.left_bytes <= 0:
            raise httpcore.ReadError("the response is too large")
        try:
            self._deadline.hold(self._connection)
            data = self._connection.recv(min(max_bytes, _READ_BYTES, self.left_bytes))
        except TimeoutError as error:
            raise httpcore.ReadTimeout from error
        except OSError as error:
            raise httpcore.ReadError from error
        self.left_bytes -= len(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send everything.

        Raises:
            httpcore.WriteError, httpcore.WriteTimeout: it broke off, or is not taken in time.
        """
        view = memoryview(buffer)
        try:
            while view:
                self._deadline.hold(self._connection)
                view = view[self._connection.send(view) :]
        except TimeoutError as error:
            raise httpcore.WriteTimeout from error
        except OSError as error:
            raise httpcore.WriteError from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        """The same within TLS, once the certificate was found to be that of ``server_hostname``.

        Raises:
            httpcore.ConnectError, httpcore.ConnectTimeout: it is not, or the handshake did not come about.
        """
        try:
            self._deadline.hold(self._connection)
            wrapped = ssl_context.wrap_socket(self._connection, server_hostname=server_hostname)
        except TimeoutError as error:
            self.close()
            raise httpcore.ConnectTimeout from error
        except OSError as error:  # ssl.SSLError is one
            self.close()
            raise httpcore.ConnectError(_said(error)) from error
        return BoundedStream(wrapped, self._deadline, self.left_bytes)

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks for: the socket within."""
        return self._connection if info == "ssl_object" and isinstance(self._connection, ssl.SSLSocket) else None


class PinnedBackend(httpcore.NetworkBackend):
    """Connects to the addresses that were checked, whatever the name resolves to by now.

    Args:
        addresses: one after the other, until one takes the connection.
        deadline: of the whole request.
        most_bytes: of everything that is read.
    """

    def __init__(self, addresses: Sequence[Address], deadline: Deadline, most_bytes: int) -> None:
        self._addresses = addresses
        self._deadline = deadline
        self._most_bytes = most_bytes

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """A connection to one of the addresses.

        Raises:
            httpcore.ConnectError, httpcore.ConnectTimeout: none took it.
        """
        told: OSError = OSError("the host has no address")
        for number, address in enumerate(self._addresses):
            # one that does not answer leaves time for those behind it
            share = self._deadline.left_seconds / (len(self._addresses) - number)
            if not share:
                break
            try:
                connection = socket.create_connection((str(address), port), timeout=share)
            except OSError as error:
                told = error
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return BoundedStream(connection, self._deadline, self._most_bytes)
        if isinstance(told, TimeoutError) or not self._deadline.left_seconds:
            raise httpcore.ConnectTimeout from told
        raise httpcore.ConnectError(_said(told)) from told

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Never.

        Raises:
            httpcore.ConnectError: always.
        """
        raise httpcore.ConnectError(path)


def as_egress_error(error: Exception, host: str) -> UnreachableError | NoReplyError:
    """What a failure of the wire means to whoever wanted the request sent."""
    if isinstance(error, httpcore.ConnectError | httpcore.ConnectTimeout):
        said = str(error) or "no connection in time"
        return UnreachableError(
            f"Could not connect to {host}: {said}.", hint="Check the host, its port and its certificate.", host=host
        )
    return NoReplyError(
        f"{host} accepted the connection, but did not send a valid HTTP response in time.",
        hint="The host must respond immediately, with a short response.",
        host=host,
    )


def _said(error: OSError) -> str:
    """Short words of the system's; of a certificate, what is wrong with it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was rejected ({error.verify_message})"
    return error.strerror or type(error).__name__
