"""Middleware that counts and times requests by the template of their route."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.monitoring.declarations import HTTP_ACTIVE, HTTP_DURATION

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# OpenTelemetry's word for all others.
_OTHER_METHOD = "_OTHER"
UNMATCHED = "unmatched"
# Of a client that left before there was an answer, as nginx counts it.
_CLIENT_LEFT = 499
_FAULT = 500


class MeasuringMiddleware:
    """Counts and times requests by the template of their route, whatever answers them.

    Args:
        app: what serves.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = _CLIENT_LEFT

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        begun = perf_counter()
        HTTP_ACTIVE.inc()
        try:
            await self.app(scope, receive, send_noting)
        except Exception:
            # answered outside of all middleware
            status = _FAULT
            raise
        finally:
            HTTP_ACTIVE.dec()
            method = scope["method"] if scope["method"] in _METHODS else _OTHER_METHOD
            HTTP_DURATION.labels(method, _route(scope), str(status)).observe(perf_counter() - begun)


def _route(scope: Scope) -> str:
    route: Any = scope.get("route")
    return getattr(route, "path", UNMATCHED)
