"""ASGI middleware: request id, response headers, and compression."""

from __future__ import annotations

import gzip
import re

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import tracing
from service.ids import new_id
from service.logs import bound

REQUEST_ID_HEADER = "X-Request-ID"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestIdMiddleware:
    """Takes the client's X-Request-ID, or makes one; the answer carries it, and so do problems, jobs and the log.

    It also carries what is in ``request.state.headers``. What the request does belongs to the client's trace.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope)
        given = sent.get(REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                headers.update(scope["state"].get("headers", {}))
            await send(message)

        with bound({"request_id": request_id}), tracing.request_span(request_id, sent, scope["query_string"]):
            await self.app(scope, receive, send_with_id)


_EVERYWHERE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# Of an answer that says itself that pages of all origins may show it within theirs.
EMBEDDABLE = "frame-ancestors *"
_AGAINST_FRAMES = "X-Frame-Options"
_POLICY = "Content-Security-Policy"
_OF_PAGES = "frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'"
_OF_OTHERS = "default-src 'none'; frame-ancestors 'none'; sandbox"


def security_headers(*, page: bool = False, embeddable: bool = False) -> dict[str, str]:
    """The headers.

    Args:
        page: it is shown; all else is nothing that a browser could show or run.
        embeddable: its own policy lets pages of other origins show it.
    """
    found = {**_EVERYWHERE, _POLICY: _OF_PAGES if page else _OF_OTHERS}
    if embeddable:
        del found[_AGAINST_FRAMES]
    return found


# Answers are sent compressed to who takes that: reports, lists and documents, which are text.
#
# Left as they are: files (their digest is of what is sent, and they are asked for in parts), event streams, and answers
# to requests that change something, which may hold secrets (BREACH, https://www.breachattack.com). Starlette's
# middleware can be told content types alone: it compresses such files and answers, and answers ``gzip;q=0`` with gzip.

_FEWEST_BYTES = 1024
# More than this is compressed in a thread: it takes a millisecond.
_SMALL_BYTES = 32 * 1024
_LEVEL = 5
_TYPES = ("application/json", "application/problem+json", "text/")
# What goes with bytes that must come as they are.
_UNTOUCHED = ("content-encoding", "content-range", "accept-ranges", "repr-digest")


class CompressionMiddleware:
    """Compresses whole answers of text with gzip (RFC 9110 section 8.4.1.3).

    Args:
        app: what serves.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        wanted = _takes_gzip(Headers(scope=scope).get("accept-encoding", ""))
        held: Message | None = None

        async def send_smaller(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                if _is_text(Headers(raw=message["headers"])):
                    MutableHeaders(scope=message).add_vary_header("Accept-Encoding")
                    if wanted:
                        held = message
                        return
            elif held is not None:
                start, held = held, None
                body = message.get("body", b"")
                if not message.get("more_body", False) and len(body) >= _FEWEST_BYTES:
                    message = {**message, "body": await _compressed(body)}
                    headers = MutableHeaders(scope=start)
                    headers["Content-Encoding"] = "gzip"
                    headers["Content-Length"] = str(len(message["body"]))
                await send(start)
            await send(message)

        await self.app(scope, receive, send_smaller)


async def _compressed(body: bytes) -> bytes:
    if len(body) <= _SMALL_BYTES:
        return gzip.compress(body, _LEVEL, mtime=0)
    return await anyio.to_thread.run_sync(lambda: gzip.compress(body, _LEVEL, mtime=0))


def _is_text(headers: Headers) -> bool:
    kind = headers.get("content-type", "")
    return (
        kind.startswith(_TYPES)
        and not kind.startswith("text/event-stream")
        and not any(n in headers for n in _UNTOUCHED)
    )


def _takes_gzip(accepted: str) -> bool:
    """Whether gzip is among the codings of an Accept-Encoding header, and not with a weight of 0."""
    for entry in accepted.split(","):
        name, _, parameters = entry.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            weight = parameters.replace(" ", "").lower().removeprefix("q=")
            return weight.strip("0.") != "" if weight else True
    return False
