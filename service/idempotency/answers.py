"""Stored responses of idempotency keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Header
from fastapi.responses import JSONResponse

from service.contracts.command_errors import TransientError
from service.contracts.errors import QuantmillError

IDEMPOTENCY_HEADER = "Idempotency-Key"
IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_HEADER,
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Unique text that identifies this request. If the request is repeated with the same body, the "
        "first response is returned again.",
    ),
]


class IdempotencyKeyReuseError(
    QuantmillError, code="idempotency-key-reuse", title="Idempotency key already used", status=422
):
    """The idempotency key was already used with a different body."""


class IdempotencyInFlightError(TransientError, code="idempotency-in-flight", title="Request in progress", status=409):
    """A request with the same idempotency key is currently being processed."""


@dataclass(frozen=True)
class Answer:
    """What is sent, and sent again: status, JSON body, headers."""

    status: int
    body: Any = field(repr=False)  # may be a new key or secret
    headers: dict[str, str]
    replayed: bool = False

    def response(self) -> JSONResponse:
        """As an HTTP response."""
        extra = {"Idempotent-Replayed": "true"} if self.replayed else {}
        return JSONResponse(self.body, status_code=self.status, headers={**self.headers, **extra})
