"""ASGI middleware that enforces the limits of each route, in size and time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.contracts.errors import QuantmillError
from service.deps import address_of, get_app
from service.errors import answer, told_path
from service.limits import (
    KEYLESS,
    BodyTooLargeError,
    HeadersTooLargeError,
    Limits,
    RequestOverdueError,
    TooManyConnectionsError,
    UrlTooLongError,
    limits_of,
)
from service.quotas.schemas import AddressRateError

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
log = logging.getLogger(__name__)


class ConcurrencyMiddleware:
    """Refuses requests beyond a number at a time, in all and from one address; health is told all the same.

    Args:
        app: what serves the requests.
        total: at a time.
        per_address: at a time from one address.
    """

    def __init__(self, app: ASGIApp, total: int, per_address: int) -> None:
        self.app = app
        self._total = total
        self._per_address = per_address
        self._by_address: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in HEALTH_PATHS:
            await self.app(scope, receive, send)
            return
        address = scope["client"][0] if scope.get("client") else ""
        if self._by_address[address] >= self._per_address or self._by_address.total() >= self._total:
            error = TooManyConnectionsError(
                "All connections of the service are in use.",
                hint="Send the request again in a moment; close connections that are not needed.",
            )
            await answer(Request(scope), error, {"Connection": "close"})(scope, receive, send)
            return
        self._by_address[address] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]


class AddressMiddleware:
    """Counts requests of routes that ask for no key, by address, and refuses too many; others are counted by key.

    Args:
        app: what serves the requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and KEYLESS.fullmatch(scope["path"]):
            request = Request(scope)
            state = await get_app(request)
            try:
                await state.addresses.count(address_of(request))
            except AddressRateError as error:
                await answer(request, error)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class LimitMiddleware:
    """Refuses what is too large before it is held in memory, and gives up what takes too long.

    Args:
        app: what serves the requests.
        max_body_bytes: of any JSON body, whatever the table allows.
        max_files_bytes: of a form with files.
        body_seconds: in which a body must have arrived, but that of a form with files.
        idle_seconds: of silence after which a form with files is given up.
        request_seconds: after which a request that has no answer yet gets one.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        max_files_bytes: int,
        body_seconds: float,
        idle_seconds: float,
        request_seconds: float,
    ) -> None:
        self.app = app
        self._max_body_bytes = max_body_bytes
        self._max_files_bytes = max_files_bytes
        self._body_seconds = body_seconds
        self._idle_seconds = idle_seconds
        self._request_seconds = request_seconds
        # cancelled, but a call in a thread goes on to its end
        self._overdue: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limits = limits_of(scope["method"], scope["path"])
        most = self._most_bytes(limits)
        error = _refusal(scope, limits, most)
        if error is not None:
            await answer(Request(scope), error)(scope, receive, send)
            return
        limited = receive if most is None else self._limited(receive, most, limits)
        if limits.timed:
            await self._serve_in_time(scope, limited, send)
        else:
            await self.app(scope, limited, send)

    def _limited(self, receive: Receive, most: int, limits: Limits) -> Receive:
        """What the request receives, up to its limits."""
        seconds = self._idle_seconds if limits.files else self._body_seconds
        return _BoundedBody(receive, most, seconds, of_silence=limits.files)

    def _most_bytes(self, limits: Limits) -> int | None:
        """Of the body; None: the endpoint looks to it."""
        if limits.files:
            return self._max_files_bytes
        return None if limits.body_bytes is None else min(limits.body_bytes, self._max_body_bytes)

    async def _serve_in_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, or tell that it takes too long. Not by cancelling alone: that waits for the end of a thread's call."""
        begun = given_up = False

        async def send_in_time(message: Message) -> None:
            nonlocal begun
            if not given_up:
                begun = True
                await send(message)

        task = asyncio.ensure_future(_call(self.app, scope, receive, send_in_time))
        try:
            done, _ = await asyncio.wait({task}, timeout=self._request_seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done or begun:
            await task
            return
        given_up = True
        self._overdue.add(task)
        task.add_done_callback(self._forget)
        task.cancel()
        log.error("request.overdue %s %s", scope["method"], told_path(Request(scope)))
        error = RequestOverdueError(
            f"The request did not complete within {self._request_seconds:g} s; it may still be carried out.",
            hint="Check whether it was carried out, or send it again with the same Idempotency-Key.",
        )
        await answer(Request(scope), error)(scope, receive, send)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._overdue.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("request.overdue ended with an error", exc_info=error)


async def _call(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


class _BoundedBody:
    """What a request receives, up to its limit of bytes and of time: for all of it, or of silence."""

    def __init__(self, receive: Receive, most_bytes: int, seconds: float, *, of_silence: bool) -> None:
        self._receive = receive
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._of_silence = of_silence
        self._received = 0
        self._complete = False
        self._ends = asyncio.get_running_loop().time() + seconds

    async def __call__(self) -> Message:
        try:
            # after the body come only news of a client that leaves, for which there is no time
            async with asyncio.timeout_at(None if self._complete else self._ends):
                message = await self._receive()
        except TimeoutError:
            told = f"The body did not arrive within {self._seconds:g} s."
            raise HTTPException(408, told, headers={"Connection": "close"}) from None
        if self._of_silence:
            self._ends = asyncio.get_running_loop().time() + self._seconds
        self._complete = not message.get("more_body", False)
        self._received += len(message.get("body", b""))
        if self._received > self._most_bytes:
            raise HTTPException(413, f"The body is larger than {self._most_bytes} bytes.")
        return message


def _refusal(scope: Scope, limits: Limits, most_body_bytes: int | None) -> QuantmillError | None:
    """What is wrong with the head of a request, if anything."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    path, query = scope.get("raw_path") or b"", scope["query_string"]
    checks: tuple[tuple[int, int, Callable[[int, int], QuantmillError]], ...] = (
        (len(path), limits.path_bytes, _too_long("path", "bytes")),
        (len(query), limits.query_bytes, _too_long("query", "bytes")),
        (query.count(b"&") + 1 if query else 0, limits.query_parameters, _too_long("query", "parameters")),
        (len(headers), limits.headers, _too_many_headers("lines")),
        (sum(len(name) + len(value) for name, value in headers), limits.header_bytes, _too_many_headers("bytes")),
    )
    for found, most, error in checks:
        if found > most:
            return error(found, most)
    declared = Headers(scope=scope).get("content-length", "")
    if most_body_bytes is not None and declared.isdecimal() and int(declared) > most_body_bytes:
        return BodyTooLargeError(
            f"The body is larger than {most_body_bytes} bytes.",
            hint="Upload files with POST /v1/uploads, which streams them to disk.",
            pointer="",
        )
    return None


def _too_long(part: str, unit: str) -> Callable[[int, int], QuantmillError]:
    return lambda found, most: UrlTooLongError(
        f"The {part} of the URL has {found} {unit}; the maximum is {most}.", hint="Request less at a time.", part=part
    )


def _too_many_headers(unit: str) -> Callable[[int, int], QuantmillError]:
    return lambda found, most: HeadersTooLargeError(
        f"The headers of the request have {found} {unit}; the maximum is {most}.",
        hint="Remove headers that the service does not use.",
    )
