"""ASGI middleware and headers of every answer: a request id, and what a browser may do with it."""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.ids import new_id

REQUEST_ID_HEADER = "X-Request-ID"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestIdMiddleware:
    """Takes the client's X-Request-ID, or makes one; the answer carries it, and so do problems and jobs.

    It also carries what is in ``request.state.headers``.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                headers.update(scope["state"].get("headers", {}))
            await send(message)

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
