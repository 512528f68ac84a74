"""The session of a browser: a cookie in place of a key, and the guard that what its pages send carries along.

Cookies come with whatever a browser sends here, so that a request that changes something has to prove beside it that a
page of ours has sent it: in the header or the form field that only those pages know.
Reference: OWASP Cross-Site Request Forgery Prevention, "signed double submit" bound to the session; RFC 6265bis.
"""

from __future__ import annotations

import hmac

from fastapi import Request, Response

from service.contracts.errors import QuantmillError
from service.keys.keyring import Keyring
from service.keys.tokens import MOST_CHARS, SESSION_SECONDS

COOKIE = "quantmill_session"
GUARD_HEADER, GUARD_FIELD = "X-CSRF-Token", "csrf"
_FILES = "multipart/form-data"
_FORMS = ("application/x-www-form-urlencoded", _FILES)
READING = frozenset({"GET", "HEAD", "OPTIONS"})


class GuardMissingError(QuantmillError):
    """A request of a signed-in browser does not tell that a page of this service has sent it; nothing was done."""

    code = "guard-missing"
    title = "The request does not come from a page of this session"
    status = 403


def session_of(request: Request) -> str | None:
    """The token that the browser has sent; None: it is not signed in."""
    token = request.cookies.get(COOKIE)
    return token if token and len(token) <= MOST_CHARS else None


async def check_guard(request: Request, keyring: Keyring, token: str) -> None:
    """See to it that a request that changes something comes from a page of the session; may read its form.

    Raises:
        GuardMissingError: it lacks the guard.
    """
    if request.method not in READING:
        given = await _guard_of(request)
        if not hmac.compare_digest(given.encode(), keyring.guard(token).encode()):
            raise GuardMissingError(
                "The request carries no guard of this session.",
                hint=f"Load the page again and send it from there; a script sends {GUARD_HEADER}.",
                header=GUARD_HEADER,
            )


def sends_files(request: Request) -> bool:
    """True for a form that may hold files, and so be large."""
    return request.headers.get("content-type", "").startswith(_FILES)


async def _guard_of(request: Request) -> str:
    header = request.headers.get(GUARD_HEADER)
    if header is not None or not request.headers.get("content-type", "").startswith(_FORMS):
        return header or ""
    field = (await request.form()).get(GUARD_FIELD)
    return field if isinstance(field, str) else ""


def keep(response: Response, request: Request, token: str) -> None:
    """Have the browser send the token from now on."""
    response.set_cookie(
        COOKIE, token, max_age=SESSION_SECONDS, path=_root(request), secure=request.url.scheme == "https",
        httponly=True, samesite="strict",
    )  # fmt: skip


def drop(response: Response, request: Request) -> None:
    """Have the browser forget it."""
    response.delete_cookie(COOKIE, path=_root(request), secure=request.url.scheme == "https", httponly=True)


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/") or "/"
