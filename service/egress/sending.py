"""One request to another host, and its response."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import httpcore
import httpx

from service.egress.addresses import Allowed
from service.egress.errors import PayloadTooLargeError, UrlNotAllowedError
from service.egress.resolving import Resolver, checked_addresses, system_resolver
from service.egress.urls import MOST_CHARACTERS, check_url
from service.egress.wire import Deadline, PinnedBackend, as_egress_error

MOST_SENT_BYTES = 1024**2
MOST_REPLY_BYTES = 64 * 1024
# Heads, chunk sizes and what informational replies (1xx) there may be before the one that counts.
_HEAD_BYTES = 64 * 1024
SECONDS = 10.0
# Set here, of what was checked; a caller's own would say something else to whoever reads the reply's other end.
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "upgrade"})


@dataclass(frozen=True)
class Bounds:
    """What one request may cost."""

    seconds: float = SECONDS  # from the resolution of the name to the last byte of the reply
    sent_bytes: int = MOST_SENT_BYTES  # of the body
    reply_bytes: int = MOST_REPLY_BYTES  # of the reply's body that are read
    url_characters: int = MOST_CHARACTERS  # of the URL
    # to the first byte of a body, for each block of it, and from the last one to the end of the reply. None: nothing
    # but ``seconds`` bounds them.
    step_seconds: float | None = None


@dataclass(frozen=True)
class Streamed:
    """A body that is never whole in memory; what its ``blocks`` raise ends the request, and is raised to the caller."""

    size_bytes: int
    blocks: Iterator[bytes]


@dataclass(frozen=True)
class Reply:
    """What the other host said. A redirect is a reply like any other: it is not followed."""

    status: int  # of HTTP
    headers: Mapping[str, str]  # by their lower-case names; of several of one name the last
    body: bytes  # as it was sent, not unpacked, as far as the bounds let it be read
    complete: bool  # False if there was more of the body, or if it came too slowly

    @property
    def is_success(self) -> bool:
        """True for 2xx."""
        return 200 <= self.status < 300


@dataclass(frozen=True)
class Egress:
    """Sends requests to URLs that clients have named. May be shared between threads."""

    allowed: Allowed = field(default_factory=Allowed)  # what may be reached beyond the public internet
    bounds: Bounds = field(default_factory=Bounds)  # of every request
    resolver: Resolver = system_resolver  # tells a name's addresses; asked once per request
    # whose certificates are believed. Default: the system's, or those of SSL_CERT_FILE.
    tls: ssl.SSLContext = field(default_factory=httpx.create_ssl_context)

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | Streamed = b""
    ) -> Reply:
        """Send one request over a connection of its own, without cookies, proxies and redirects.

        Raises:
            UrlNotAllowedError: of the URL's form, or a header that may not be given.
            AddressNotAllowedError: of an address of its host.
            HostUnresolvedError: its host has none.
            PayloadTooLargeError: of the body.
            UnreachableError: there was no connection, or not with the host's own certificate.
            NoReplyError: there was no reply.
        """
        destination = check_url(url, self.allowed, most_characters=self.bounds.url_characters)
        length = body.size_bytes if isinstance(body, Streamed) else len(body)
        if length > self.bounds.sent_bytes:
            raise PayloadTooLargeError(
                f"{length} bytes exceed the maximum of {self.bounds.sent_bytes} bytes for outgoing requests.",
                hint="Send a smaller payload.",
            )
        sent: dict[str | bytes, str | bytes] = {
            "Host": destination.authority,
            "Connection": "close",
            "Accept-Encoding": "identity",
        }
        if length or method in ("POST", "PUT", "PATCH"):
            sent["Content-Length"] = str(length)
        if refused := sorted(name for name in headers or () if name.casefold() in _OWN_HEADERS):
            raise UrlNotAllowedError(
                f"The header {refused[0]} is not allowed.", hint="Remove the header.", part="headers"
            )
        sent.update((name, value) for name, value in (headers or {}).items())
        deadline = Deadline(self.bounds.seconds, self.bounds.step_seconds)
        content = _stepwise(body.blocks, deadline) if isinstance(body, Streamed) else body
        addresses = checked_addresses(destination, self.allowed, self.resolver, deadline.left_seconds)
        backend = PinnedBackend(addresses, deadline, _HEAD_BYTES + self.bounds.reply_bytes)
        request_url = httpcore.URL(
            scheme=destination.scheme, host=destination.host, port=destination.port, target=destination.target
        )
        with httpcore.ConnectionPool(ssl_context=self.tls, network_backend=backend, retries=0) as pool:
            try:
                with pool.stream(method, request_url, headers=sent, content=content) as response:
                    return self._read(response)
            except httpcore.LocalProtocolError as error:
                raise UrlNotAllowedError(
                    "A header contains a character that HTTP does not allow.", hint="Remove the header.", part="headers"
                ) from error
            except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
                raise as_egress_error(error, destination.host) from error

    def _read(self, response: httpcore.Response) -> Reply:
        """The status is there; a body that is too large, too slow or breaks off does not take it back."""
        body = bytearray()
        complete = True
        try:
            for part in response.iter_stream():
                body += part
                if len(body) > self.bounds.reply_bytes:
                    complete = False
                    break
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError):
            complete = False
        headers = {name.decode("latin-1").casefold(): value.decode("latin-1") for name, value in response.headers}
        return Reply(response.status, headers, bytes(body[: self.bounds.reply_bytes]), complete)


def _stepwise(blocks: Iterator[bytes], deadline: Deadline) -> Iterator[bytes]:
    for block in blocks:
        deadline.step()
        yield block
    deadline.step()
