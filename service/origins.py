"""Which browser pages may send requests: those of this service, under its own host names.

A service on loopback needs no key, so that every page that a browser on the same machine shows could use it: by a form
or a script of another origin, or by a name of its own that it has resolved to 127.0.0.1 (DNS rebinding). Programs send
neither of the headers that are looked at, and name the host that they mean.
Reference: Fetch Metadata Request Headers (W3C), RFC 6454, RFC 9110 section 15.5.20.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.contracts.errors import QuantmillError
from service.errors import problem_response
from service.middleware import EMBEDDABLE, security_headers

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
# What a page may send besides what any may, and what it is shown of an answer's headers.
_SENT = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-Match",
    "If-None-Match",
    "Last-Event-ID",
    "Range",
    "Upload-Offset",
    "X-Request-ID",
)
_SHOWN = (
    "Content-Disposition",
    "Content-Range",
    "ETag",
    "Link",
    "Location",
    "Repr-Digest",
    "Retry-After",
    "Upload-Offset",
    "X-Request-ID",
)
_PREFLIGHT_SECONDS = 600
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain"})


class ForeignOriginError(QuantmillError, code="foreign-origin", title="Cross-origin request refused", status=403):
    """The request was sent by a page of another origin; nothing was done."""


class ForeignHostError(QuantmillError, code="foreign-host", title="Host not allowed", status=421):
    """The request's Host header is not a name of this service; nothing was read or done."""


def shared(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """The app for pages of other origins, too, which send keys of their own: CORS (Fetch standard), without cookies.

    Args:
        app: what serves.
        origins: whose pages these are, such as ``https://dash.example``; none: nothing is shared.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=_METHODS,
        allow_headers=_SENT,
        expose_headers=_SHOWN,
        max_age=_PREFLIGHT_SECONDS,
    )


class OriginMiddleware:
    """Refuses what another origin's page sends, and names that are not ours; says in every answer what pages may do.

    Args:
        app: what serves the others.
        allowed_hosts: names, besides those of loopback, under which a service on loopback is reached.
        origins: other origins whose pages may use the service; see ``shared``.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: tuple[str, ...], origins: tuple[str, ...] = ()) -> None:
        self.app = app
        self._allowed = frozenset(name.casefold() for name in allowed_hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                is_page = headers.get("content-type", "").startswith("text/html")
                embeddable = EMBEDDABLE in headers.get("content-security-policy", "")
                for name, value in security_headers(page=is_page, embeddable=embeddable).items():
                    headers.setdefault(name, value)
            await send(message)

        error = self._refusal(scope)
        answer = self.app if error is None else problem_response(Request(scope), error)
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> QuantmillError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host and _is_loopback((scope.get("server") or ("",))[0]) and not self._is_own(_name(host)):
            return ForeignHostError(
                f"This service accepts requests on loopback only, not for host {host[:255]!r}.",
                hint="Use 127.0.0.1 or localhost. Behind a proxy, set QUANTMILL_ALLOWED_HOSTS to its host names.",
                header="Host",
            )
        if scope["method"] in _READING:
            return None
        origin = headers.get("origin")
        if origin in self._origins:
            return None
        if headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            return _foreign("Sec-Fetch-Site")
        if origin is not None and not self._is_same(origin, host):
            return _foreign("Origin")
        return None

    def _is_same(self, origin: str, host: str) -> bool:
        """Behind a proxy the service may know itself by another name than the browser does."""
        place = origin.partition("://")[2]
        return bool(place) and (place.casefold() == host.casefold() or _name(place) in self._allowed)

    def _is_own(self, name: str) -> bool:
        return name in _LOOPBACK_NAMES or name in self._allowed or _is_loopback(name)


class PublicUrlMiddleware:
    """Has requests come to the public URL: what is told of it, cookies and links, is then as browsers see it.

    Args:
        app: what serves them.
        public_url: scheme and host, with the port where it has one.
    """

    def __init__(self, app: ASGIApp, public_url: str) -> None:
        self.app = app
        self._scheme, _, host = public_url.partition("://")
        self._host = (b"host", host.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            others = [header for header in scope["headers"] if header[0] != b"host"]
            # changed in place: whoever measures finds there which route served it
            scope.update(scheme=self._scheme, headers=[self._host, *others])
        await self.app(scope, receive, send)


def _foreign(header: str) -> ForeignOriginError:
    return ForeignOriginError(
        "The request was sent by a page of another origin.",
        hint="Send it from a program, or from a page of this service; pages of other sites must use a "
        "server of their own.",
        header=header,
    )


def _name(host: str) -> str:
    """The name of a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").casefold().rstrip(".")
    except ValueError:
        return ""


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
