"""Errors whose answers carry headers; apart from the web framework, which workers and clients need not load."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class HttpError(QuantmillError):
    """An error whose answer carries headers of its own."""

    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {}


class TransientError(HttpError):
    """It cannot be done right now; asking again later may help."""

    status = 503
    retry_after_seconds = 1

    def headers(self) -> dict[str, str]:
        """Says when to ask again."""
        return {"Retry-After": str(self.retry_after_seconds)}
