"""How long trouble may last."""

from __future__ import annotations

import time

import httpx

from service.client.errors import ApiError, ServerUnreachableError, shown
from service.client.steps import Sleep, Steps

_PAUSE_SECONDS = (0.1, 2.0)


class Patience:
    """Counts how long trouble has lasted.

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
            hint="Check the address, and that the service runs: GET /healthz.",
        )
