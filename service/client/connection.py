"""What the calls of all resources share: one service, asked again for as long as the client was told to."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from json import dumps
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel

from service.client.driving import Place
from service.client.errors import (
    ApiError,
    ServerUnreachableError,
    ServiceNotFoundError,
    WaitTimeoutError,
    raise_for_problem,
    shown,
)
from service.client.steps import FilePart, Give, Items, Send, Sleep, Steps
from service.contracts.arguments import checked
from service.contracts.command_errors import InvalidServerError
from service.contracts.documents import config_document
from service.contracts.errors import InvalidRequestError
from service.contracts.surfaces import for_python
from service.keys import local

# Which service a client talks to, and by which key: what it was told, what the environment says, or the user's own.

SERVER_VARIABLE = "QUANTMILL_SERVER"
KEY_VARIABLE = "QUANTMILL_API_KEY"
# User and password of an address, which are not told again.
_USER = re.compile(r"//[^/@]*@")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def find_service(url: str | None = None, key: str | None = None) -> Place:
    """The service at ``url``; without one, that of QUANTMILL_SERVER; without that, what this user runs on this host.

    The key is the one given, else that of QUANTMILL_API_KEY, else the one that the user's own service has noted.

    Raises:
        InvalidServerError: what was told is no address.
        ServiceNotFoundError: nothing says which service is meant.
    """
    address = checked_address(url or os.environ.get(SERVER_VARIABLE) or own_service())
    found = key or os.environ.get(KEY_VARIABLE) or local.key_for(address)
    if found and not (found.isascii() and found.isprintable()):
        raise InvalidRequestError("The key has characters that no key has.", hint="Copy it again, in one line.")
    return Place(
        address,
        # a proxy from the environment must not come between this host and itself
        trust_environment=urlsplit(address).hostname not in _LOOPBACK,
        key=found or None,
    )


def checked_address(server: str) -> str:
    """The address of a service without a trailing slash.

    Raises:
        InvalidServerError: it is no http or https URL.
    """
    address = server.strip()
    shown = _USER.sub("//***@", address)
    hint = "An address looks like http://127.0.0.1:8000."
    if "://" not in address:
        raise InvalidServerError(
            f"{shown!r} does not start with http:// or https://.", hint=f"Did you mean http://{shown}?"
        )
    try:
        parts = urlsplit(address)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half a bracket
        raise InvalidServerError(f"{shown!r} is not an address.", hint=hint) from None
    if not usable:
        raise InvalidServerError(f"{shown!r} is not the http or https address of a host.", hint=hint)
    return address.rstrip("/")


def own_service() -> str:
    """The address of the one service that this user runs on this host; of several, of the one that was started here.

    Raises:
        ServiceNotFoundError: there is none, or there are several, and none or more than one was started here.
    """
    found = local.own_services()
    here = [address for address, folder in found.items() if folder is not None and folder.parent == Path.cwd()]
    for addresses in (list(found), here):
        if len(addresses) == 1:
            return addresses[0]
    if found:
        told = ", ".join(f"{address} ({folder})" for address, folder in found.items())
        raise ServiceNotFoundError(
            f"You run several services on this host: {told}.",
            hint=f"Choose one with {SERVER_VARIABLE}, or change to the folder where it was started.",
        )
    raise ServiceNotFoundError(
        "No service is given, and you run none on this host.",
        hint=f"Give the address, set {SERVER_VARIABLE}, or start a service with `quantmill up`.",
    )


_PAUSE_SECONDS = (0.1, 2.0)


class Retries:
    """Counts how long trouble has lasted, and pauses before the next try.

    Args:
        seconds: how long it may.
        url: of the service, for the error.
    """

    def __init__(self, seconds: float, url: str) -> None:
        self._seconds, self._url = seconds, url
        self.renew()

    def renew(self) -> None:
        """Something went well."""
        self._ends = time.monotonic() + self._seconds
        self._pause = _PAUSE_SECONDS[0]

    def endure(self, error: httpx.TransportError | ApiError) -> Steps[None]:
        """Wait a little after an error that may pass; raise it if it will not, or if it lasts for too long."""
        if isinstance(error, ApiError) and not error.passing:
            raise error
        asked = error.retry_after_seconds if isinstance(error, ApiError) else None
        pause = max(self._pause, asked or 0.0)
        if time.monotonic() + pause > self._ends:
            raise error if isinstance(error, ApiError) else self.unreachable(error) from error
        yield Sleep(pause)
        self._pause = min(_PAUSE_SECONDS[1], self._pause * 2)

    def unreachable(self, error: httpx.TransportError) -> ServerUnreachableError:
        """A failure of the connection in words."""
        return ServerUnreachableError(
            f"The service at {shown(self._url)} does not answer: {error or type(error).__name__}",
            hint="Check the address, and that the service runs.",
        )


LONG_POLL_SECONDS = 25.0
MOST_PER_PAGE = 200
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE", "PATCH"})
_IDEMPOTENCY = "Idempotency-Key"
_Seen = TypeVar("_Seen")
_Item = TypeVar("_Item", bound=BaseModel)


@runtime_checkable
class Resource(Protocol):
    """What the service has an id for."""

    @property
    def id(self) -> str:
        """The id."""


class Connection:
    """See ``Client``. Calls of resources are mixed into it; what they share is here.

    Attributes:
        place: the service.
    """

    _driving: Callable[[Place, Callable[[str], str]], Any]
    _words = staticmethod(for_python)  # in which errors name what the service names by its routes

    @checked
    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        patience_seconds: float = 30.0,
    ) -> None:
        self.place = find_service(base_url, key)
        self._driver: Any = self._driving(self.place, self._words)
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.place.url)!r})"

    def _retries(self) -> Retries:
        return Retries(self._patience_seconds, self.place.url)

    def _send(
        self,
        method: str,
        path: str,
        *,
        wait_seconds: float = 0.0,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        content: FilePart | None = None,
    ) -> Steps[httpx.Response]:
        """One request, once. ``wait_seconds`` is added to the time that the answer may take.

        Raises:
            ApiError: the service refused.
            httpx.TransportError: the connection failed.
        """
        try:
            dumps(json, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(
                f"The request cannot be written as JSON: {error}",
                hint="Give strings, numbers, lists and dicts.",
            ) from None
        seconds = self._timeout_seconds + wait_seconds
        response: httpx.Response = yield Send(method, path, seconds, headers or {}, params or {}, json, content)
        raise_for_problem(response)
        return response

    def _request(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool = False,
        headers: Mapping[str, str] | None = None,
        **given: Any,
    ) -> Steps[httpx.Response]:
        """One request, sent again while trouble may pass, where that is safe.

        Args:
            method: POST is safe to repeat under an idempotency key alone, all others are.
            path: of the request.
            repeatable: a POST that changes nothing if it is done twice.
            headers: of the request.
            given: as for ``_send``.

        Raises:
            ApiError: the service refused for good.
            ServerUnreachableError: the connection kept failing.
        """
        retries = self._retries()
        safe = repeatable or method in _REPEATABLE or _IDEMPOTENCY in (headers or {})
        while True:
            try:
                return (yield from self._send(method, path, headers=headers, **given))
            except (httpx.TransportError, ApiError) as error:
                if not safe and not _nothing_done(error):
                    raise error if isinstance(error, ApiError) else retries.unreachable(error) from error
                yield from retries.endure(error)

    def _json(self, method: str, path: str, *, wait_seconds: float = 0.0, **given: Any) -> Steps[Any]:
        if wait_seconds:
            given["params"] = {**given.get("params", {}), "wait": f"{wait_seconds:g}"}
        response = yield from self._request(method, path, wait_seconds=wait_seconds, **given)
        return response.json()

    def _get(self, kind: type[_Item], path: str, **given: Any) -> Steps[_Item]:
        return kind.model_validate((yield from self._json("GET", path, **given)))

    def _get_once(
        self, kind: type[_Item], path: str, done: Callable[[_Item], bool], timeout_seconds: float | None
    ) -> Steps[_Item]:
        """What is at ``path``, once it is ``done``."""

        def look(wait_seconds: float) -> Steps[_Item]:
            return self._get(kind, path, wait_seconds=wait_seconds)

        return (yield from self._wait(look, done, timeout_seconds, path))

    def _create(self, path: str, body: Mapping[str, Any], key: str | None = None) -> Steps[Any]:
        """POST what must not be made twice, under an idempotency key: a fresh one, unless it is given."""
        headers = {_IDEMPOTENCY: key or uuid.uuid4().hex}
        return (yield from self._json("POST", path, json=dict(body), headers=headers))

    def _all(
        self, path: str, kind: type[_Item], filters: Mapping[str, object], limit: int | None
    ) -> Items[_Item, None]:
        """The items of a list, page by page as they are wanted, at most ``limit``."""
        params: dict[str, object] = as_parameters(filters)
        left = limit
        while left is None or left > 0:
            params["limit"] = MOST_PER_PAGE if left is None else min(MOST_PER_PAGE, left)
            page = yield from self._json("GET", path, params=params)
            for item in page["items"]:
                yield Give(kind.model_validate(item))
            if page["next_cursor"] is None:
                return
            params["cursor"] = page["next_cursor"]
            left = None if left is None else left - len(page["items"])

    def _wait(
        self,
        look: Callable[[float], Steps[_Seen]],
        done: Callable[[_Seen], bool],
        timeout_seconds: float | None,
        what: str,
    ) -> Steps[_Seen]:
        ends = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = LONG_POLL_SECONDS if ends is None else max(0.0, ends - time.monotonic())
            seen = yield from look(min(LONG_POLL_SECONDS, left))
            if done(seen):
                return seen
            if ends is not None and time.monotonic() >= ends:
                raise too_late(what, timeout_seconds or 0.0)


def _nothing_done(error: httpx.TransportError | ApiError) -> bool:
    """Whether the service has surely not done what it was asked for."""
    if isinstance(error, ApiError):
        return error.retry_after_seconds is not None
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def too_late(what: str, timeout_seconds: float) -> WaitTimeoutError:
    """What was waited for did not come in time."""
    return WaitTimeoutError(
        f"{what} has not ended within {timeout_seconds:g} s.", hint="It continues in the service: ask again."
    )


def as_parameters(filters: Mapping[str, object]) -> dict[str, object]:
    """Filters as a query holds them, without those that are None."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in filters.items()
        if value is not None
    }


def id_of(resource: Resource | str) -> str:
    """The id of what a call was given, which may be the id itself."""
    return resource if isinstance(resource, str) else resource.id


def with_config(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request for a job, or changes of one, with its config as requests hold it."""
    config = request.get("config")
    return dict(request) if config is None else {**request, "config": config_document(config)}
