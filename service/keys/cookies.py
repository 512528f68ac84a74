"""Browser sessions: a cookie instead of a key, and the CSRF token that its pages send.

Cookies come with whatever a browser sends here, so that a request that changes something has to prove beside it that a
page of ours has sent it: in the header or the form field that only those pages know.
Reference: OWASP Cross-Site Request Forgery Prevention, "signed double submit" bound to the session; RFC 6265bis.
"""

from __future__ import annotations

import hmac

from fastapi import Request, Response
from starlette.datastructures import FormData

from service.contracts.errors import QuantmillError
from service.keys.keyring import Keyring
from service.keys.tokens import MOST_CHARS, SESSION_SECONDS

COOKIE = "quantmill_session"
GUARD_HEADER, GUARD_FIELD = "X-CSRF-Token", "csrf"
_FILES = "multipart/form-data"
_FORM = "application/x-www-form-urlencoded"
READING = frozenset({"GET", "HEAD", "OPTIONS"})


class GuardMissingError(
    QuantmillError, code="guard-missing", title="Request not sent by a page of this session", status=403
):
    """A request from a signed-in browser lacks the token that proves it was sent by a page of this service; nothing was
    done.
    """


def session_of(request: Request) -> str | None:
    """The token that the browser has sent; None: it is not signed in."""
    token = request.cookies.get(COOKIE)
    return token if token and len(token) <= MOST_CHARS else None


async def check_guard(request: Request, keyring: Keyring, token: str) -> None:
    """See to it that a request that changes something comes from a page of the session; may read its form.

    Raises:
        GuardMissingError: it lacks the guard.
    """
    if request.method in READING:
        return
    header = request.headers.get(GUARD_HEADER)
    if header is None and request.headers.get("content-type", "").startswith(_FORM):
        check_form(await request.form(), keyring, token)
    else:
        _check(header, keyring, token)


def check_form(form: FormData, keyring: Keyring, token: str) -> None:
    """See to it that a form comes from a page of the session.

    Raises:
        GuardMissingError: it lacks the guard.
    """
    field = form.get(GUARD_FIELD)
    _check(field if isinstance(field, str) else None, keyring, token)


def _check(given: str | None, keyring: Keyring, token: str) -> None:
    if not hmac.compare_digest((given or "").encode(), keyring.guard(token).encode()):
        raise GuardMissingError(
            "The request has no valid CSRF token of this session.",
            hint=f"Reload the page and submit it again; a script sends {GUARD_HEADER}, or the form field "
            f"{GUARD_FIELD} before any file.",
            header=GUARD_HEADER,
        )


def _is_multipart(request: Request) -> bool:
    """True by the media type, which may be written in any case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FILES


def sends_files(request: Request) -> bool:
    """True for a form that may hold files, and so be large."""
    return _is_multipart(request)


def guards_in_files(request: Request) -> bool:
    """True if such a form has to hold the guard."""
    return request.method not in READING and sends_files(request) and GUARD_HEADER not in request.headers


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
