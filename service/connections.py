"""Which connections the API server keeps: a crowd of idle ones must not keep anybody out.

A connection without a request is idle: it has sent nothing yet, or not the whole head of a request, or it is kept alive
between two. Idle ones are closed after a while, and earlier if there are too many of them, or if the process can open
no more files. Where all places are taken by connections with requests, there are a few more, where only the health
endpoints are served: all else is told to come back later.
"""

from __future__ import annotations

import logging
import resource
from collections import Counter
from dataclasses import dataclass, replace
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from service.contracts.http_errors import TransientError
from service.security_headers import security_headers

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
RESERVED = 32
# Closed in one go where no file can be opened any more.
SHED = 16
# Descriptors for everything but connections: the database's, files that are sent and received, the broker's.
OWN_DESCRIPTORS = 200
log = logging.getLogger(__name__)


class TooManyConnectionsError(TransientError):
    """All connections that the service keeps, in all or from one address, are busy."""

    code = "too-many-connections"
    title = "Too many connections"
    retry_after_seconds = 2


@dataclass(frozen=True)
class Bounds:
    """How many connections there may be, and how long they may be idle.

    Attributes:
        total: in all.
        per_address: from one address.
        idle_seconds: without a request.
        reading_seconds: in which a client takes nothing of an answer that waits for it.
    """

    total: int
    per_address: int
    idle_seconds: float
    reading_seconds: float


class Transport(Protocol):
    """What carries a connection."""

    def abort(self) -> None:
        """Close it at once."""


class Connection(Protocol):
    """An open connection; ``address`` is the client's."""

    address: str

    @property
    def transport(self) -> Transport:
        """What carries it."""


class Connections:
    """The open connections of one process. Used by its event loop only.

    Args:
        bounds: how many there may be.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        # in the order in which they became idle: the oldest is the first to go
        self._idle: dict[Connection, None] = {}
        self._kept: set[Connection] = set()
        self._extra: dict[Connection, None] = {}
        self._by_address: Counter[str] = Counter()

    def admit(self, new: Connection) -> bool:
        """Take a new connection in, for which an idle one may have to go; False: it is served health only."""
        here = self._by_address[new.address]
        full = here >= self.bounds.per_address
        if full or len(self._kept) >= self.bounds.total:
            oldest = next((other for other in self._idle if not full or other.address == new.address), None)
            if oldest is None:
                self._admit_extra(new)
                return False
            self._close(oldest)
        self._kept.add(new)
        self._by_address[new.address] += 1
        self._idle[new] = None
        return True

    def busy(self, connection: Connection) -> None:
        """It has a request now."""
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Its request is done."""
        if connection in self._kept:
            self._idle.pop(connection, None)
            self._idle[connection] = None

    def shed(self) -> int:
        """Close some that are without a request, the oldest first, so that others can be accepted; returns how many.

        Those beyond the bounds go first: who asks for health is answered at once, and does not stay.
        """
        oldest = [*self._extra, *self._idle][:SHED]
        for connection in oldest:
            self._close(connection)
        return len(oldest)

    def forget(self, connection: Connection) -> None:
        """It is closed, or about to be."""
        self._idle.pop(connection, None)
        self._extra.pop(connection, None)
        if connection in self._kept:
            self._kept.discard(connection)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def _admit_extra(self, new: Connection) -> None:
        log.warning("connections.full address=%s", new.address)
        if len(self._extra) >= RESERVED:
            self._close(next(iter(self._extra)))
        self._extra[new] = None

    def _close(self, connection: Connection) -> None:
        log.warning("connections.dropped address=%s: another one needs its place", connection.address)
        self.forget(connection)
        connection.transport.abort()


class HealthOnly:
    """The application for connections beyond the bounds.

    Args:
        app: the whole application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        error = TooManyConnectionsError(
            "All connections of the service are busy.",
            hint="Send the request again in a moment; close connections that are not needed.",
        )
        body = error.problem(instance=scope["path"]).model_dump_json(exclude_none=True).encode()
        headers = {
            **security_headers(),
            **error.headers(),
            "Content-Type": "application/problem+json",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": error.status, "headers": raw})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def raise_descriptor_limit() -> int:
    """Let this process open as many files as it may at all; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("connections.descriptor_limit soft=%d hard=%d: %s", soft, hard, error)
            return soft
    return hard


def bounds_within(limit: int, asked: Bounds) -> Bounds:
    """The bounds that were asked for, or fewer where the process may open no more than ``limit`` files."""
    total = asked.total
    possible = max(limit - RESERVED - OWN_DESCRIPTORS, limit // 4, 1) if limit != resource.RLIM_INFINITY else total
    if possible < total:
        log.warning("connections.few asked=%d possible=%d: raise the limit of open files (ulimit -n)", total, possible)
    return replace(asked, total=min(total, possible))
