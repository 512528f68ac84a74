"""ASGI middleware: a request id for every request, and bounds on the size and the time of JSON bodies."""

from __future__ import annotations

import asyncio
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.ids import new_id

REQUEST_ID_HEADER = "X-Request-ID"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_UPLOAD_METHODS = ("PATCH", "PUT")


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


class BodyLimitMiddleware:
    """Refuses bodies above a limit before they are held in memory, and those that take too long to arrive.

    Uploads stream to disk and have their own limits.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or _is_upload(scope):
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        received = int(declared) if declared.isdecimal() else 0
        ends = asyncio.get_running_loop().time() + self.seconds
        complete = False

        async def receive_limited() -> Message:
            nonlocal received, complete
            if received > self.max_bytes:
                raise HTTPException(413, f"The body is larger than {self.max_bytes} bytes.")
            try:
                # after the body come only news of a client that leaves, for which there is no time
                async with asyncio.timeout_at(None if complete else ends):
                    message = await receive()
            except TimeoutError:
                told = f"The body did not arrive within {self.seconds:g} s."
                raise HTTPException(408, told, headers={"Connection": "close"}) from None
            complete = not message.get("more_body", False)
            if declared == "0":
                received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise HTTPException(413, f"The body is larger than {self.max_bytes} bytes.")
            return message

        await self.app(scope, receive_limited, send)


def _is_upload(scope: Scope) -> bool:
    return scope["method"] in _UPLOAD_METHODS and scope["path"].startswith("/v1/uploads/")
