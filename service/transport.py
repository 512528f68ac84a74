"""HTTP as the client needs it: problems become exceptions, passing trouble is tried again for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from service.contracts.errors import Problem, QuantmillError
from service.keys import local

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PASSING_STATUS = frozenset({502, 503, 504})
_PASSING_CODES = frozenset({"upload-busy", "upload-stalled", "idempotency-in-flight", "database-unavailable"})
_PAUSE_SECONDS = (0.1, 2.0)
_Got = TypeVar("_Got")


class DownloadCorruptError(QuantmillError):
    """What arrived is not what the service keeps."""

    code = "download-corrupt"
    title = "The download is damaged"
    status = 502


class JobNotSucceededError(QuantmillError):
    """The job ended without a result and without an error: it was canceled."""

    code = "job-not-succeeded"
    title = "The job did not succeed"
    status = 409


class WaitTimeoutError(QuantmillError):
    """What was waited for did not come in time; it goes on in the service."""

    code = "wait-timeout"
    title = "It takes longer than the time given"
    status = 504


class ApiError(QuantmillError):
    """The service refused; carries the problem that it sent."""

    code = "api-error"
    title = "The service refused the request"
    status = 502

    def __init__(self, sent: Problem) -> None:
        super().__init__(sent.detail, hint=sent.hint, errors=sent.errors)
        self.where = dict(sent.where)
        self.sent = sent

    @property
    def passing(self) -> bool:
        """True if the same request may succeed later."""
        return self.sent.status in _PASSING_STATUS or self.sent.code in _PASSING_CODES

    def problem(self, *, instance: str | None = None, request_id: str | None = None) -> Problem:
        """The service's own problem object."""
        return self.sent


class ServerUnreachableError(QuantmillError):
    """The service does not answer."""

    code = "server-unreachable"
    title = "The service cannot be reached"
    status = 503


class Transport:
    """One HTTP connection pool to one service.

    Args:
        base_url: such as ``http://127.0.0.1:8000``.
        key: a key of the service; None: that of the user's own service on this host, if it is one.
        timeout_seconds: for a single answer.
        patience_seconds: how long trouble may go on before it is reported.
    """

    def __init__(self, base_url: str, key: str | None, *, timeout_seconds: float, patience_seconds: float) -> None:
        self.base_url = base_url.rstrip("/")
        self.patience_seconds = patience_seconds
        self._timeout_seconds = timeout_seconds
        found = key or local.key_for(self.base_url)
        self._http = httpx.Client(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {found}"} if found else {},
            timeout=self._timeout(timeout_seconds),
            # a proxy from the environment must not come between this host and itself
            trust_env=urlsplit(self.base_url).hostname not in _LOOPBACK,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        wait_seconds: float = 0.0,
        headers: Mapping[str, str] | None = None,
        **request: Any,
    ) -> httpx.Response:
        """One request, once. ``wait_seconds`` is added to the time that the answer may take.

        Raises:
            ApiError: the service refused.
            httpx.TransportError: the connection failed.
        """
        timeout = self._timeout(self._timeout_seconds + wait_seconds)
        response = self._http.request(method, path, headers=headers, timeout=timeout, **request)
        raise_for_problem(response)
        return response

    def stream(self, path: str, *, headers: Mapping[str, str], silence_seconds: float) -> Any:
        """A streamed GET, as a context manager; check it with ``raise_for_problem`` first."""
        return self._http.stream("GET", path, headers=headers, timeout=self._timeout(silence_seconds))

    def patiently(self, action: Callable[[], _Got]) -> _Got:
        """Do ``action`` until it succeeds, or its trouble has lasted for too long.

        Raises:
            ApiError: the service refused for good.
            ServerUnreachableError: the connection kept failing.
        """
        patience = Patience(self)
        while True:
            try:
                return action()
            except (httpx.TransportError, ApiError) as error:
                patience.endure(error)

    @staticmethod
    def _timeout(seconds: float) -> httpx.Timeout:
        return httpx.Timeout(seconds, connect=min(10.0, seconds))


class Patience:
    """Counts how long trouble has lasted."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.renew()

    def renew(self) -> None:
        """Something went well."""
        self._ends = time.monotonic() + self._transport.patience_seconds
        self._pause = _PAUSE_SECONDS[0]

    def endure(self, error: httpx.TransportError | ApiError) -> None:
        """Wait a little after an error that may pass; raise it if it will not, or if it lasts for too long."""
        if isinstance(error, ApiError) and not error.passing:
            raise error
        if time.monotonic() + self._pause > self._ends:
            if isinstance(error, ApiError):
                raise error
            raise ServerUnreachableError(
                f"The service at {_shown(self._transport.base_url)} does not answer: {error or type(error).__name__}",
                hint="Check the address, and that the service runs: GET /healthz.",
            ) from error
        time.sleep(self._pause)
        self._pause = min(_PAUSE_SECONDS[1], self._pause * 2)


def _shown(url: str) -> str:
    """Without user, password and query: somebody may report what is shown."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def raise_for_problem(response: httpx.Response) -> None:
    """Raise the problem that a response carries, if it does.

    Raises:
        ApiError: the status says error.
    """
    if response.status_code < 400:
        return
    response.read()
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        # not from the service itself: a proxy, or something else at this address; a HEAD has no body
        asked = f"{response.request.method} {_shown(str(response.request.url))}"
        problem = Problem(
            type="about:blank",
            title=response.reason_phrase or "Error",
            status=response.status_code,
            detail=f"{asked} was answered with {response.status_code}.",
            code=f"http-{response.status_code}",
            hint="Check that this is the address of a Quantmill service.",
        )
    raise ApiError(problem)
